"""Uses the whole of what a Python block can say: see ../../CONFORMANCE.md."""

from binascii import hexlify

SIGNATURE = "{requests: [json], stop_at: text, rounds: number} -> json"

tokens = []
stop_at = ""


def on_token(token):
    tokens.append(token)
    return token != stop_at


def run(input):
    global stop_at
    try:
        requests, stop_at, rounds = input["requests"], input["stop_at"], input["rounds"]
    except (KeyError, TypeError) as problem:
        fail("bad_input", "the input lacks something: %r" % (problem,))
    if not isinstance(requests, list) or not isinstance(stop_at, str) or isinstance(rounds, bool) or not isinstance(rounds, int):
        fail("bad_input", "the input is not {requests: [json], stop_at: text, rounds: number}")
    if rounds < 1:
        fail("bad_input", "rounds is a whole number from 1, found %d" % rounds)
    seen = []
    for _ in range(rounds):
        seen.clear()
        tokens.clear()
        for request in requests:
            try:
                command = command_of(request)
            except (KeyError, TypeError, AttributeError) as problem:
                fail("bad_input", "request %d is no command: %r" % (len(seen), problem))
            if isinstance(command, Done):
                return command.result
            seen.append(fields_of((yield command)))
    return {"seen": seen, "tokens": tokens}


class Done:
    def __init__(self, result):
        self.result = result


def command_of(request):
    name = request["cmd"]
    if name == "infer":
        options = request.get("options", {})
        images = request.get("images", [])
        if images is None:
            raise TypeError("images is a list")
        return infer(
            request["prompt"],
            request["max_tokens"],
            images=images,
            temperature=options.get("temperature"),
            seed=options.get("seed"),
            stop=options.get("stop"),
            schema=options.get("schema"),
        )
    if name == "embed":
        return embed(request["texts"])
    if name == "open":
        return open(request["path"])
    if name == "slice":
        return slice(request["handle"], request["offset"], len=request["len"])
    if name == "slice_bytes":
        return slice_bytes(request["handle"], request["offset"], len=request["len"])
    if name == "page_text":
        return page_text(request["handle"], request["page"])
    if name == "page_text_opt":
        return page_text_opt(request["handle"], request["page"])
    if name == "document_text":
        return document_text(request["handle"])
    if name == "page_image":
        return page_image(request["handle"], request["page"])
    if name == "image_op":
        op = request["op"]
        if op["op"] == "resize":
            return resize(request["handle"], op["max_width"], op["max_height"])
        if op["op"] == "crop":
            return crop(request["handle"], op["x"], op["y"], op["width"], op["height"])
        if op["op"] == "frame":
            return frame(request["handle"], op["index"])
        raise KeyError(op["op"])
    if name == "emit":
        return emit(request["progress"])
    if name == "done":
        return Done(request["result"])
    if name == "fail":
        return fail(request["code"], request["message"])
    raise KeyError(name)


def fields_of(event):
    if isinstance(event, InferDone):
        return {
            "event": "infer_done",
            "text": event.text,
            "tokens_out": event.tokens_out,
            "finish_reason": event.finish_reason,
        }
    if isinstance(event, Embedded):
        return {"event": "embedded", "vectors": event.vectors}
    if isinstance(event, Opened):
        kind = {"kind": event.kind}
        if event.kind == "image":
            kind["format"] = event.format
        elif event.kind == "document":
            kind["pages"], kind["has_text_layer"] = event.pages, event.has_text_layer
        return {"event": "opened", "handle": event.handle, "len": event.len, "kind": kind}
    if isinstance(event, Sliced):
        return {"event": "sliced", "text": event.text, "next_offset": event.next_offset}
    if isinstance(event, SlicedBytes):
        return {"event": "sliced_bytes", "hex": hexlify(event.bytes).decode(), "next_offset": event.next_offset}
    if isinstance(event, PageTexted):
        return {"event": "page_texted", "text": event.text, "images": event.images, "coverage": event.coverage}
    if isinstance(event, PageTextAttempted):
        return {"event": "page_text_attempted", "text": event.text, "error": event.error}
    if isinstance(event, PageImaged):
        return {
            "event": "page_imaged",
            "handle": event.handle,
            "len": event.len,
            "format": event.format,
            "frames": event.frames,
        }
    return {"event": "emitted"}
