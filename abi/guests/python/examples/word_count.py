"""Counts the lines, words and characters of a text file, whatever its size: it reads 64 KiB at a time and keeps only the counts."""

SIGNATURE = "{path: text} -> {path: text, lines: number, words: number, chars: number}"

WINDOWS_PER_REPORT = 64


def run(input):
    file = yield open(input["path"])
    if file.kind != "text":
        fail("unsupported_kind", "%s is no text but %s" % (input["path"], file.kind))
    lines = words = chars = offset = windows = 0
    in_word = False  # whether the last character of the window before belongs to a word
    while offset < file.len:
        window = yield slice(file, offset)
        text, offset = window.text, window.next_offset
        lines += text.count("\n")
        words += len(text.split())
        chars += len(text)
        if in_word and not text[0].isspace():
            words -= 1  # a word that the window's edge cut in two
        in_word = not text[-1].isspace()
        windows += 1
        if windows % WINDOWS_PER_REPORT == 0:
            yield emit({"stage": "reading", "done": offset, "of": file.len})
    return {"path": input["path"], "lines": lines, "words": words, "chars": chars}
