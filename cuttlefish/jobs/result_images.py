"""The images that a job's result names, taken along before its handles end with it.

In a result an image is the number of a handle, which means nothing once the job is over. Who wants to see it asks for
`keep_images` and finds it here: as PNG or JPEG, upright, as a model would be shown it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import trio

from cuttlefish.errors import CuttlefishError
from cuttlefish.limits import Limits
from cuttlefish.media.documents import DocumentWorkers
from cuttlefish.media.handles import HandleTable, image_source
from cuttlefish_abi import Ty

__all__ = ["MOST_IMAGES", "ResultImage", "collect_images", "names_images"]

MOST_IMAGES = 100
"""More than a person looks through; what they hold together is bounded by the limit `image.bytes`."""


@dataclass(frozen=True, slots=True)
class ResultImage:
    """One image of a result."""

    place: str
    """Where its number stands: `result`, `result.pages[2]`. The first such place, if there are several."""
    data: bytes
    """The file's bytes; none if it could not be kept."""
    media_type: Literal["image/png", "image/jpeg"] = "image/png"
    problem: str | None = None
    """Why it could not be kept, with a code before it: `document_invalid: …`."""


def names_images(ty: Ty) -> bool:
    """Whether values of this type have images in them."""
    if ty.item is not None:
        return names_images(ty.item)
    return ty.kind == "image" or any(names_images(inner) for _, inner in ty.fields)


async def collect_images(
    ty: Ty, result: object, handles: HandleTable, documents: DocumentWorkers, limits: Limits
) -> tuple[ResultImage, ...]:
    """Every image in a result of this type, once each, in the order of the result.

    An image that cannot be kept says why in its place: it is damaged, or there are more than `MOST_IMAGES`, or all of them
    together would be larger than `image.bytes`. Cancelling stops it.
    """
    if not names_images(ty):
        return ()
    places = await trio.to_thread.run_sync(_first_places, ty, result)
    images: list[ResultImage] = []
    kept_bytes = 0
    for handle, place in places.items():
        if len(images) == MOST_IMAGES:
            more = f"limit_exceeded: {len(places) - MOST_IMAGES} more images are left out; {MOST_IMAGES} of a result are kept"
            images.append(ResultImage(place, b"", problem=more))
            break
        try:
            prepared = await documents.prepare_image(image_source(handles.get_image(handle)), limits)
        except CuttlefishError as error:
            images.append(ResultImage(place, b"", problem=f"{error.code}: {error.message}"))
            continue
        if kept_bytes + len(prepared.data) > limits.image_bytes:
            full = f"limit_exceeded: with it, the images of the result would have more than image.bytes, {limits.image_bytes}"
            images.append(ResultImage(place, b"", problem=full))
            continue
        kept_bytes += len(prepared.data)
        images.append(ResultImage(place, prepared.data, prepared.media_type))
    return tuple(images)


def _first_places(ty: Ty, result: object) -> dict[int, str]:
    places: dict[int, str] = {}
    for handle, place in _places(ty, result, "result"):
        places.setdefault(handle, place)
    return places


def _places(ty: Ty, value: object, place: str) -> Iterator[tuple[int, str]]:
    """Handles of images and where they stand. The value has the type, or lacks the field of a node that was left out."""
    if ty.kind == "image" and isinstance(value, int):
        yield value, place
    elif ty.item is not None and isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _places(ty.item, inner, f"{place}[{index}]")
    elif isinstance(value, dict):
        types = dict(ty.fields)
        for name, inner in value.items():
            if name in types:
                yield from _places(types[name], inner, f"{place}.{name}")
