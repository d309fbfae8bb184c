"""Counts the lines, words and characters of a text file, whatever its size: it reads 64 KiB at a time and keeps only the counts."""

SIGNATURE = "{path: text} -> {path: text, lines: number, words: number, chars: number}"

WINDOWS_BETWEEN_REPORTS = 64
ADVICE = {
    "image": ("an image", 'Describe it with the block "summarize" instead.'),
    "document": ("a document", 'Extract its text into a file first, or use the block "summarize".'),
    "binary": ("binary", "Convert it to text in UTF-8 first."),
}


def run(input):
    if not isinstance(input, dict) or not isinstance(input.get("path"), str):
        fail("bad_input", "the input is not {path: text}")  # a host has checked that already
    path = input["path"]
    file = yield open(path)
    if file.kind != "text":
        fail("unsupported_kind", '"%s" is %s, and word-count reads only text. %s' % ((path,) + ADVICE[file.kind]))
    lines = words = chars = offset = windows = 0
    in_word = False  # a word may go on in the next window
    while offset < file.len:
        window = yield slice(file.handle, offset)
        text = window.text
        if not offset < window.next_offset <= file.len:
            where = "byte %d of %d with next_offset %d" % (offset, file.len, window.next_offset)
            fail("bad_event", "the host answered a request at %s, which leads nowhere" % where)
        offset = window.next_offset
        lines += text.count("\n")
        data = text.encode()  # words end at ASCII white space, as in the other languages: text.split() knows more of it
        words += len(data.split())
        chars += len(text)
        if in_word and not data[:1].isspace():
            words -= 1
        in_word = not data[-1:].isspace()
        windows += 1
        if windows % WINDOWS_BETWEEN_REPORTS == 0:
            yield emit({"stage": "reading", "done": offset, "of": file.len})
    return {"path": path, "lines": lines, "words": words, "chars": chars}
