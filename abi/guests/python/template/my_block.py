"""my-block: tells how often each word stands in a text file, the most frequent first."""

from collections import Counter

SIGNATURE = "{path: text} -> {path: text, words: [{word: text, count: number}]}"


def run(input):
    file = yield open(input["path"])
    if file.kind != "text":
        fail("no_text", input["path"] + " is no text file")
    counts = Counter()
    offset, cut = 0, ""
    while offset < file.len:
        window = yield slice(file.handle, offset)
        offset = window.next_offset
        words = (cut + window.text).lower().split(" ")
        cut = words.pop()  # the window may have ended within a word
        for word in words:
            counts.update(word.split())
        yield emit({"done": offset, "of": file.len})
    counts.update(cut.split())
    return {"path": input["path"], "words": [{"word": word, "count": count} for word, count in counts.most_common(10)]}
