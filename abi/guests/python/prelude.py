"""What a Python block can say to its host. Every block starts with these names.

A block is a generator: it yields a command and gets the event that answers it.

    file = yield open(input["path"])
    reply = yield slice(file.handle, 0)

This one file runs in two places: in MicroPython inside the sandbox, and in ordinary Python where a block is tested. So it uses
only what both have. Names with an underscore are for the interpreter's host side (`run.c`, `cuttlefish.testing`), not for blocks.
"""


class Command:
    """What a block asks of its host: something to `yield`. `fields` is the message as the contract writes it."""

    def __init__(self, fields):
        self.fields = fields

    def __getattr__(self, name):
        if name[:1] == "_":  # asked for by tools, not by a block
            raise AttributeError(name)
        command = self.fields["cmd"]
        raise AttributeError("a command has no '%s'; its answer has: write (yield %s(...)).%s" % (name, command, name))

    def __repr__(self):
        return "<command %r>" % (self.fields,)


class Event:
    """What the host answered. Its fields are attributes; one that an older host leaves out is None."""

    def __repr__(self):
        return "<%s %r>" % (self.__class__.__name__, self.__dict__)


class Opened(Event):
    """A file: `handle`, `len` in bytes, `kind` ("text", "image", "document" or "binary"), and for an image its `format`, for a
    document its `pages` and `has_text_layer`.
    """


class Sliced(Event):
    """Whole characters as `text`, and where to read on: `next_offset`."""


class SlicedBytes(Event):
    """Raw `bytes`, and where to read on: `next_offset`."""


class PageTexted(Event):
    """A page's or a document's `text`; for a page also `images` and `coverage`, which tell a scan from an empty page."""


class PageTextAttempted(Event):
    """A page's `text`, or the `error` why there is none; the other of the two is None."""


class PageImaged(Event):
    """A picture as a new `handle`, its `len` in bytes, its `kind` ("image") and `format`."""


class InferDone(Event):
    """The model's `text`, `tokens_out`, and `finish_reason` ("stop", "length" or "stopped_by_block")."""


class Embedded(Event):
    """`vectors`: one list of numbers for each text."""


class Emitted(Event):
    """The progress was passed on."""


class Fail(BaseException):
    """What `fail` raises. No Exception: a block's own `except Exception` is not meant to catch it."""

    def __init__(self, code, message=""):
        super().__init__(code, message)
        self.code = code
        self.message = message


def open(path):
    """Open a granted file. The answer is an `Opened`."""
    return Command({"cmd": "open", "path": _text(path, "path")})


def slice(handle, offset, len=65536):
    """Read at most `len` bytes of a text from byte `offset`, as whole characters. The answer is a `Sliced`."""
    return Command({"cmd": "slice", "handle": _handle(handle), "offset": _whole(offset, "offset"), "len": _whole(len, "len")})


def slice_bytes(handle, offset, len=65536):
    """Read at most `len` raw bytes of any file. The answer is a `SlicedBytes`."""
    return Command({"cmd": "slice_bytes", "handle": _handle(handle), "offset": _whole(offset, "offset"), "len": _whole(len, "len")})


def page_text(handle, page):
    """Read a document's page, counted from 0. The answer is a `PageTexted`."""
    return Command({"cmd": "page_text", "handle": _handle(handle), "page": _whole(page, "page")})


def page_text_opt(handle, page):
    """Read a document's page that may be broken. The answer is a `PageTextAttempted`."""
    return Command({"cmd": "page_text_opt", "handle": _handle(handle), "page": _whole(page, "page")})


def document_text(handle):
    """Read all pages of a document in one. The answer is a `PageTexted`."""
    return Command({"cmd": "document_text", "handle": _handle(handle)})


def page_image(handle, page):
    """Make a picture of a document's page, counted from 0. The answer is a `PageImaged`."""
    return Command({"cmd": "page_image", "handle": _handle(handle), "page": _whole(page, "page")})


def resize(handle, max_width, max_height):
    """Make an image fit into a box; never enlarges. The answer is a `PageImaged`."""
    op = {"op": "resize", "max_width": _whole(max_width, "max_width"), "max_height": _whole(max_height, "max_height")}
    return Command({"cmd": "image_op", "handle": _handle(handle), "op": op})


def crop(handle, x, y, width, height):
    """Cut a rectangle out of an image. The answer is a `PageImaged`."""
    op = {
        "op": "crop",
        "x": _whole(x, "x"),
        "y": _whole(y, "y"),
        "width": _whole(width, "width"),
        "height": _whole(height, "height"),
    }
    return Command({"cmd": "image_op", "handle": _handle(handle), "op": op})


def infer(prompt, max_tokens=256, images=(), temperature=None, seed=None, stop=None, schema=None):
    """Ask the model; `images` are handles of images. The answer is an `InferDone`."""
    fields = {"cmd": "infer", "prompt": _text(prompt, "prompt"), "max_tokens": _whole(max_tokens, "max_tokens")}
    if images:
        fields["images"] = [_handle(image) for image in images]
    options = {}
    if temperature is not None:
        options["temperature"] = temperature
    if seed is not None:
        options["seed"] = _whole(seed, "seed")
    if stop:
        options["stop"] = [stop] if isinstance(stop, str) else [_text(text, "stop") for text in stop]
    if schema is not None:
        options["schema"] = schema
    if options:
        fields["options"] = options
    return Command(fields)


def embed(texts):
    """Turn texts into vectors. The answer is an `Embedded`."""
    if isinstance(texts, str):
        raise TypeError("texts is a list of texts, found one text")
    return Command({"cmd": "embed", "texts": [_text(text, "texts") for text in texts]})


def emit(progress):
    """Tell whoever watches how far the block is, as any JSON value. The answer is an `Emitted`."""
    return Command({"cmd": "emit", "progress": progress})


def fail(code, message=""):
    """Give up, here and now: the job ends with this code, for programs, and this message, for people."""
    raise Fail(_text(code, "code"), _text(message, "message"))


def _text(value, name):
    if isinstance(value, str):
        return value
    raise TypeError("%s must be text, found %r" % (name, value))


def _whole(value, name):
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise TypeError("%s must be a whole number from 0, found %r" % (name, value))


def _handle(value):
    """A handle's number; the event that brought it does as well."""
    return _whole(getattr(value, "handle", value), "handle")


_EVENTS = {
    "opened": Opened,
    "sliced": Sliced,
    "sliced_bytes": SlicedBytes,
    "page_texted": PageTexted,
    "page_text_attempted": PageTextAttempted,
    "page_imaged": PageImaged,
    "infer_done": InferDone,
    "embedded": Embedded,
    "emitted": Emitted,
}
_LEFT_OUT = {
    "infer_done": ("finish_reason",),
    "page_texted": ("images", "coverage"),
    "opened": ("format", "pages", "has_text_layer"),
    "page_imaged": ("kind", "format"),
}
"""What an event may lack, and a block may ask for all the same."""


def _event(fields):
    """The event that a host's message (a dict of its JSON) stands for."""
    name = fields.pop("event")
    event = _EVENTS.get(name, Event)()
    for field in _LEFT_OUT.get(name, ()):
        setattr(event, field, None)
    if name == "opened" and "kind" not in fields:
        fields["kind"] = {"kind": "text"}
    kind = fields.get("kind")
    if isinstance(kind, dict):  # its parts become fields of the event, its name the kind
        fields.update(kind)
    encoded = fields.pop("bytes_base64", None)
    if encoded is not None:
        from binascii import a2b_base64

        event.bytes = a2b_base64(encoded)
    for field in fields:
        setattr(event, field, fields[field])
    return event


def _command(value):
    """The message that a yielded value stands for: of a Command, or written as a dict by hand."""
    if isinstance(value, Command):
        return value.fields
    if isinstance(value, dict) and isinstance(value.get("cmd"), str):
        return value
    raise TypeError("yield takes a command, such as open(path) or emit(progress), found %r" % (value,))


def _signature(text):
    """The contract's form of a block's SIGNATURE."""
    if not isinstance(text, str) or " -> " not in text:
        raise TypeError('SIGNATURE must be text such as "{path: text} -> {words: number}", found %r' % (text,))
    input, output = text.split(" -> ", 1)
    return {"input": input, "output": output}
