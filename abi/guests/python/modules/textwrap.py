"""wrap, fill, indent, dedent and shorten, for text with ordinary spaces."""


def wrap(text, width=70):
    lines, line = [], ""
    for word in text.split():
        while len(word) > width:
            room = width - len(line) - 1 if line else width
            if room < 1:
                lines.append(line)
                line, room = "", width
            line = line + " " + word[:room] if line else word[:room]
            word = word[room:]
            lines.append(line)
            line = ""
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        elif word:
            line = line + " " + word if line else word
    if line:
        lines.append(line)
    return lines


def fill(text, width=70):
    return "\n".join(wrap(text, width))


def indent(text, prefix):
    return "".join([prefix + line if line.strip() else line for line in text.splitlines(True)])


def dedent(text):
    lines = text.split("\n")
    margin = None
    for line in lines:
        bare = line.lstrip(" \t")
        if bare:
            space = line[: len(line) - len(bare)]
            if margin is None:
                margin = space
            while not space.startswith(margin):
                margin = margin[:-1]
    margin = len(margin or "")
    return "\n".join([line[margin:] if line.strip() else "" for line in lines])


def shorten(text, width, placeholder=" [...]"):
    words = text.split()
    if len(" ".join(words)) <= width:
        return " ".join(words)
    while words and len(" ".join(words)) + len(placeholder) > width:
        words.pop()
    return " ".join(words) + placeholder if words else placeholder.lstrip()
