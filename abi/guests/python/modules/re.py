"""Regular expressions: MicroPython's matcher, with what it lacks of the usual functions. It has no flags, no look-around, no named
groups, no \\b and no back-references.

The matcher takes what it does not know for something else, and a character that is not ASCII for several: so patterns are
translated, and what it cannot match as ordinary Python does is refused.
"""

import ure as _re

_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_MOST_TIMES = 100


def _refuse(pattern, what):
    raise ValueError("the pattern %r has %s, which re does not know in a Python block" % (pattern, what))


class _Reader:
    """A pattern as the matcher takes it, piece by piece."""

    def __init__(self, pattern):
        self.pattern = pattern
        self.at = 0

    def next(self):
        char = self.pattern[self.at : self.at + 1]
        self.at += 1
        return char

    def alternatives(self):
        """All up to a closing bracket, which is left where it is, or to the end. Beside it: whether it holds a capturing group."""
        parts, captures = [], False
        while self.at < len(self.pattern) and self.pattern[self.at] != ")":
            part, has_group = self.piece()
            parts.append(part)
            captures = captures or has_group
        return "".join(parts), captures

    def piece(self):
        char = self.next()
        captures = False
        if char == "(":
            head = "("
            if self.pattern[self.at : self.at + 1] == "?":
                if self.pattern[self.at : self.at + 2] != "?:":
                    _refuse(self.pattern, "(?" + self.pattern[self.at + 1 : self.at + 2])
                self.at += 2
                head = "(?:"
            inner, captures = self.alternatives()
            atom = head + inner + self.next()
            captures = captures or head == "("
        elif char == "[":
            atom = self.characters()
        elif char == "\\":
            atom = self.escaped()
        elif char in "|^$":
            return char, False
        elif ord(char) > 127:
            atom = "(?:" + char + ")"  # of several bytes, and repeated as a whole
        else:
            atom = "\\" + char if char in "{}" else char
        return self.repeated(atom, captures), captures

    def escaped(self):
        char = self.next()
        if char in _PLAIN_ESCAPES:
            return _PLAIN_ESCAPES[char]
        if char.isdigit() or (char.isalpha() and char not in "dDsSwW"):
            _refuse(self.pattern, "\\" + char)
        return "(?:" + char + ")" if ord(char or "a") > 127 else "\\" + char

    def characters(self):
        parts = ["["]
        if self.pattern[self.at : self.at + 1] == "^":
            parts.append(self.next())
        first = True
        while first or self.pattern[self.at : self.at + 1] != "]":
            char = self.next()
            if not char:
                raise ValueError("the pattern %r has a [ without its ]" % self.pattern)
            if ord(char) > 127:
                _refuse(self.pattern, "a character between [ and ] that is not ASCII")
            if char == "\\":
                char = self.escaped()
            elif char == "]":
                char = "\\]"
            parts.append(char)
            first = False
        return "".join(parts) + self.next()

    def repeated(self, atom, captures):
        times = self.times()
        lazy = ""
        if times is None:
            return atom
        if self.pattern[self.at : self.at + 1] == "?":
            lazy = self.next()
        if self.times() is not None:
            raise ValueError("the pattern %r repeats a repetition" % self.pattern)
        if isinstance(times, str):
            return atom + times + lazy
        least, most = times
        if captures:
            _refuse(self.pattern, "{m,n} behind a group that captures; write (?:…)")
        if max(least, most or 0) > _MOST_TIMES:
            _refuse(self.pattern, "more than %d times the same" % _MOST_TIMES)
        if most is None:
            return atom * least + atom + "*" + lazy
        return atom * least + ("(?:" + atom) * (most - least) + (")?" + lazy) * (most - least)

    def times(self):
        """What stands behind an atom: one of * + ?, or the pair of {m,n}; None where there is neither."""
        char = self.pattern[self.at : self.at + 1]
        if char and char in "*+?":
            return self.next()
        if char == "{":
            inner, found, _ = self.pattern[self.at + 1 :].partition("}")
            least, comma, most = inner.partition(",")
            if found and inner != "" and inner != "," and (least + most).isdigit():
                self.at += len(inner) + 2
                if not comma:
                    return int(least), int(least)
                return int(least or 0), (int(most) if most else None)
        return None


def _translated(pattern):
    reader = _Reader(pattern)
    text, _ = reader.alternatives()
    if reader.at < len(pattern):
        raise ValueError("the pattern %r has a ) without its (" % pattern)
    return text


class Match:
    """A match. MicroPython's own is of use only within the call that it is given to."""

    def __init__(self, match):
        self._groups = (match.group(0),) + match.groups()
        self._spans = [match.span(i) for i in range(len(self._groups))]

    def group(self, *numbers):
        if len(numbers) > 1:
            return tuple([self._groups[number] for number in numbers])
        return self._groups[numbers[0] if numbers else 0]

    def __getitem__(self, number):
        return self._groups[number]

    def groups(self, default=None):
        return tuple([default if group is None else group for group in self._groups[1:]])

    def span(self, number=0):
        return self._spans[number]

    def start(self, number=0):
        return self._spans[number][0]

    def end(self, number=0):
        return self._spans[number][1]


class Pattern:
    def __init__(self, pattern):
        self.pattern = pattern
        self._translated = _translated(pattern) if isinstance(pattern, str) else pattern
        self._compiled = _compiled(self._translated, pattern)

    def match(self, text):
        return _kept(self._compiled.match(text))

    def search(self, text):
        return _kept(self._compiled.search(text))

    def fullmatch(self, text):
        found = _compiled("(?:" + self._translated + ")$", self.pattern).match(text)
        return _kept(found) if found and found.end() == len(text) else None

    def _never_empty(self):
        if self._compiled.match("" if isinstance(self.pattern, str) else b""):
            raise ValueError(
                "the pattern %r matches where there is nothing: going through a text with it is not known here" % self.pattern
            )

    def sub(self, replacement, text, count=0):
        self._never_empty()
        if callable(replacement):
            return self._compiled.sub(lambda match: replacement(Match(match)), text, count)
        return self._compiled.sub(replacement, text, count)

    def finditer(self, text):
        self._never_empty()
        found = []

        def keep(match):
            found.append(Match(match))
            return ""

        self._compiled.sub(keep, text)  # the one way through a text that does not copy what is left of it each time
        return iter(found)

    def findall(self, text):
        result = []
        for match in self.finditer(text):
            groups = match.groups()
            if not groups:
                result.append(match.group(0))
            elif len(groups) == 1:
                result.append(groups[0] or "")
            else:
                result.append(tuple([group or "" for group in groups]))
        return result

    def split(self, text, maxsplit=0):
        parts, at = [], 0
        for match in self.finditer(text):
            if maxsplit and len(parts) >= maxsplit:
                break
            parts.append(text[at : match.start()])
            parts.extend(match.groups())
            at = match.end()
        parts.append(text[at:])
        return parts


def _kept(match):
    return None if match is None else Match(match)


def _compiled(translated, pattern):
    try:
        return _re.compile(translated)
    except ValueError:
        raise ValueError("the pattern %r is wrong, or has what re does not know in a Python block" % pattern)


def compile(pattern):
    return pattern if isinstance(pattern, Pattern) else Pattern(pattern)


def match(pattern, text):
    return compile(pattern).match(text)


def search(pattern, text):
    return compile(pattern).search(text)


def fullmatch(pattern, text):
    return compile(pattern).fullmatch(text)


def sub(pattern, replacement, text, count=0):
    return compile(pattern).sub(replacement, text, count)


def finditer(pattern, text):
    return compile(pattern).finditer(text)


def findall(pattern, text):
    return compile(pattern).findall(text)


def split(pattern, text, maxsplit=0):
    return compile(pattern).split(text, maxsplit)


def escape(text):
    return "".join(["\\" + char if char in "()[]{}?*+-|^$\\.&~# \t\n\r\v\f" else char for char in text])
