"""Regular expressions: MicroPython's matcher, with what it lacks of the usual functions. It has no flags, no look-around, no named
groups and no {m,n}.
"""

import ure as _re


class Match:
    """One match of several. MicroPython's own is of use only within the call that it is given to."""

    def __init__(self, match):
        self._groups = (match.group(0),) + match.groups()
        self._spans = [match.span(i) for i in range(len(self._groups))]

    def group(self, *numbers):
        if len(numbers) > 1:
            return tuple([self._groups[number] for number in numbers])
        return self._groups[numbers[0] if numbers else 0]

    def __getitem__(self, number):
        return self._groups[number]

    def groups(self):
        return self._groups[1:]

    def span(self, number=0):
        return self._spans[number]

    def start(self, number=0):
        return self._spans[number][0]

    def end(self, number=0):
        return self._spans[number][1]


class Pattern:
    def __init__(self, pattern):
        self.pattern = pattern
        self._compiled = _re.compile(pattern)

    def match(self, text):
        return self._compiled.match(text)

    def search(self, text):
        return self._compiled.search(text)

    def fullmatch(self, text):
        found = self._compiled.match(text)
        return found if found and found.end() == len(text) else None

    def sub(self, replacement, text, count=0):
        return self._compiled.sub(replacement, text, count)

    def finditer(self, text):
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
    return "".join([char if char.isalpha() or char.isdigit() or char in "_ " else "\\" + char for char in text])
