"""The images of a job's result, as an answer shows them to a model: each after a line that says where it belongs."""

import base64
from collections.abc import Sequence

import mcp_types as t

from cuttlefish.jobs.result_images import ResultImage
from cuttlefish.mcp.results import image_uri

__all__ = ["MOST_SHOWN_BYTES", "image_content"]

MOST_SHOWN_BYTES = 640 << 10
"""Of the images in one answer, in base64 as they stand there. With an Envelope beside them they stay below some clients' 1 MiB."""


def image_content(job_id: str, images: Sequence[ResultImage], *, links: bool) -> list[t.ContentBlock]:
    """The images in order: shown as far as `MOST_SHOWN_BYTES` go, then links; a reason for each that could not be kept.

    `links`: whether the client's revision knows them; the line names the address in any case.
    """
    content: list[t.ContentBlock] = []
    left = MOST_SHOWN_BYTES
    for number, image in enumerate(images):
        written_bytes = 4 * -(-len(image.data) // 3)
        if image.problem is not None:
            content.append(_line(f"{image.place} cannot be shown: {image.problem}"))
        elif written_bytes <= left:
            left -= written_bytes
            data = base64.b64encode(image.data).decode()
            content += [_line(f"{image.place}:"), t.ImageContent(type="image", data=data, mime_type=image.media_type)]
        else:
            uri = image_uri(job_id, number)
            content.append(_line(f"{image.place} is too large to be shown here; resources/read gives {uri}"))
            if links:
                link = t.ResourceLink(
                    type="resource_link", name=image.place, uri=uri, mime_type=image.media_type, size=len(image.data)
                )
                content.append(link)
    return content


def _line(text: str) -> t.TextContent:
    return t.TextContent(type="text", text=text)
