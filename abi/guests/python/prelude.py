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
        command = self.fields["cmd"]
        if name[:1] == "_":  # asked for by a loop, by `with`, by tools
            raise AttributeError("a command has no '%s'; it is only asked for: write answer = yield %s(...)" % (name, command))
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
    """A picture as a new `handle`, its `len` in bytes, its `kind` ("image") and `format`, and the `frames` of an animation."""


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
    return Command(
        {"cmd": "slice", "handle": _handle(handle), "offset": _whole(offset, "offset", _U64), "len": _whole(len, "len", _U64)}
    )


def slice_bytes(handle, offset, len=65536):
    """Read at most `len` raw bytes of any file. The answer is a `SlicedBytes`."""
    return Command(
        {"cmd": "slice_bytes", "handle": _handle(handle), "offset": _whole(offset, "offset", _U64), "len": _whole(len, "len", _U64)}
    )


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


def frame(handle, index):
    """Take one frame of an animation, counted from 0. The answer is a `PageImaged`; its `frames` says how many there are."""
    return Command({"cmd": "image_op", "handle": _handle(handle), "op": {"op": "frame", "index": _whole(index, "index")}})


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


_U32 = 4294967295
_U64 = 18446744073709551615


def _text(value, name):
    if isinstance(value, str):
        return value
    raise TypeError("%s must be text, found %r" % (name, value))


def _whole(value, name, most=_U32):
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
        return value
    raise TypeError("%s must be a whole number from 0 to %d, found %r" % (name, most, value))


def _handle(value):
    """A handle's number; the event that brought it does as well."""
    if isinstance(value, Command):
        command = value.fields["cmd"]
        raise TypeError("handle must be a handle, found a command that was not yielded: write file = yield %s(...)" % command)
    return _whole(getattr(value, "handle", value), "handle")


_ANSWERS = {
    "open": "opened",
    "slice": "sliced",
    "slice_bytes": "sliced_bytes",
    "page_text": "page_texted",
    "page_text_opt": "page_text_attempted",
    "document_text": "page_texted",
    "page_image": "page_imaged",
    "image_op": "page_imaged",
    "infer": "infer_done",
    "embed": "embedded",
    "emit": "emitted",
}
_EVENTS = {
    # Each event's fields: the class of its value, and whether an older host may leave it out.
    "opened": (Opened, (("handle", int, False), ("len", int, False))),
    "sliced": (Sliced, (("text", str, False), ("next_offset", int, False))),
    "sliced_bytes": (SlicedBytes, (("bytes_base64", str, False), ("next_offset", int, False))),
    "page_texted": (PageTexted, (("text", str, False), ("images", int, True), ("coverage", float, True))),
    "page_text_attempted": (PageTextAttempted, (("text", str, True), ("error", str, True))),
    "page_imaged": (PageImaged, (("handle", int, False), ("len", int, False), ("frames", int, True))),
    "infer_done": (InferDone, (("text", str, False), ("tokens_out", int, False), ("finish_reason", str, True))),
    "embedded": (Embedded, (("vectors", list, False),)),
    "emitted": (Emitted, ()),
}
_KINDS = {"text": (), "binary": (), "image": ("format",), "document": ("pages", "has_text_layer")}
_asked = [None]
"""The name of the command that was yielded last."""


def _command(value):
    """The message that a yielded value stands for: of a Command, or written as a dict by hand."""
    if isinstance(value, Command):
        fields = value.fields
    elif isinstance(value, dict) and isinstance(value.get("cmd"), str):
        fields = value
    elif hasattr(value, "send"):
        raise TypeError("yield takes a command, found a generator: write yield from for a function of yours that yields")
    else:
        raise TypeError("yield takes a command, such as open(path) or emit(progress), found %r" % (value,))
    _asked[0] = fields["cmd"]
    return fields


def _event(fields):
    """The event that a host's message (a dict of its JSON) stands for. A message that breaks the contract ends the block."""
    name = fields.get("event") if isinstance(fields, dict) else None
    wanted = _ANSWERS.get(_asked[0])
    if wanted is None and isinstance(name, str):  # to a command that is newer than this file
        event = Event()
        for field in fields:
            setattr(event, field, fields[field])
        return event
    if name not in _EVENTS:
        _bad_event()
    if name != wanted:
        raise Fail("bad_event", 'the host answered "%s" with "%s"' % (_asked[0], name))
    make, known = _EVENTS[name]
    event = make()
    for field, kind, is_optional in known:
        value = fields.get(field)
        if not _fits(value, kind) and not (is_optional and value is None):
            _bad_event()
        setattr(event, field, value)
    if name == "sliced_bytes":
        event.bytes = _decoded(event.bytes_base64)
        del event.bytes_base64
    elif name == "opened":
        event.format = event.pages = event.has_text_layer = None
        _add_kind(event, fields.get("kind", {"kind": "text"}))
    elif name == "page_imaged":
        event.kind = event.format = None
        if "kind" in fields:
            _add_kind(event, fields["kind"])
    return event


def _no_result(result, problem):
    """Why what `run` returned is no result. The mistakes of beginners get a word more."""
    if isinstance(result, Command):
        return "run returned a command that was not yielded: write return (yield %s(...))" % result.fields["cmd"]
    if isinstance(result, dict):
        parts = result.values()
    else:
        parts = result if isinstance(result, (list, tuple)) else (result,)
    for part in parts:
        if isinstance(part, Command):
            return "what run returned holds a command that was not yielded: write answer = yield %s(...)" % part.fields["cmd"]
        if hasattr(part, "send"):
            return "what run returned holds a generator: call a function of yours that yields with yield from"
    return "what run returned is no JSON value: %s" % problem


def _fits(value, kind):
    if isinstance(value, bool):
        return kind is bool
    if kind is int:
        return isinstance(value, int) and 0 <= value <= _U64
    return isinstance(value, kind) or (kind is float and isinstance(value, int))


def _add_kind(event, kind):
    """The parts of a kind become fields of the event, its name the kind. One that is not known is binary, says the contract."""
    name = kind.get("kind") if isinstance(kind, dict) else None
    if not isinstance(name, str):
        _bad_event()
    event.kind = name if name in _KINDS else "binary"
    for part in _KINDS.get(name, ()):
        value = kind.get(part)
        if not _fits(value, {"format": str, "pages": int, "has_text_layer": bool}[part]):
            _bad_event()
        setattr(event, part, value)


def _decoded(base64):
    from binascii import a2b_base64

    try:
        return a2b_base64(base64)
    except ValueError:
        _bad_event()


def _bad_event(_=None):
    raise Fail("bad_event", 'the host answered "%s" with an event that this block cannot read' % _asked[0])


def _bad_input(problem):
    raise Fail("bad_input", "the input cannot be read: %s" % problem)


def _signature(text):
    """The contract's form of a block's SIGNATURE."""
    if not isinstance(text, str) or " -> " not in text:
        raise TypeError('SIGNATURE must be text such as "{path: text} -> {words: number}", found %r' % (text,))
    input, output = text.split(" -> ", 1)
    return {"input": input, "output": output}
