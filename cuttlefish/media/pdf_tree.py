"""How many pages the page tree of a PDF really holds, which PDFium does not say. For the worker process only.

PDFium believes `/Count` when it is too small, and then the pages behind it are lost without a word. This reads the tree itself: the
newest cross-reference table, the nodes of the tree, and nothing else of the file. It reads what is written as the standard says,
and is `Unsure` about the rest (a damaged table, encrypted object streams); then a copy that PDFium writes is read in its place,
because in one everything stands in the open.
"""

import bisect
import itertools
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cuttlefish.media.reading import Read

__all__ = ["TooLong", "Unsure", "pages_in_tree"]

HEADER_BYTES = 1024  # the header may stand so far in, and offsets count from it
TAIL_BYTES = 4096  # `startxref` is looked for in so much of the end, as PDFium does
FIRST_READ_BYTES, GROWTH, MOST_OBJECT_BYTES = 1024, 8, 64 << 20
MOST_UNPACKED_BYTES = 64 << 20  # of one stream, and of those that are kept
MOST_SECTIONS = 1 << 15  # of all cross-reference tables together: one for each update of the file, or more
MOST_VISITS = 1 << 17  # of nodes and pages, in a second or two; a tree that shares its branches may have any number
MOST_WORK = 1 << 29  # in bytes that are read or unpacked: a few seconds. What else there is to do takes as long as so many of them:
SECTION_WORK = 64  # a section that is asked for an object
PARSE_WORK = 128  # a byte that is parsed
PREDICTED_WORK = 32  # a byte that was written as a difference
MOST_INDEX_BYTES = 4 << 20  # of an object stream
DEEPEST_NODE = 1000
DEEPEST_VALUE = 64
ENTRY_BYTES = 20  # PDF 1.7, 7.5.4
FREE, PLAIN, PACKED = 0, 1, 2  # PDF 1.7, table 18

# Quantifiers are possessive: none of these may go back over hostile input
GAP = rb"(?:[\0\t\n\f\r ]++|%[^\r\n]*+)*+"
REGULAR = rb"[^\0\t\n\f\r ()<>\[\]{}/%]"
TOKEN = re.compile(GAP + rb"(<<|>>|[\[\](]|<[^>]*+>|/?" + REGULAR + rb"++|/)")
REST_OF_REFERENCE = re.compile(GAP + rb"\d{1,5}+" + GAP + rb"R(?!" + REGULAR + rb")")
OBJECT = re.compile(GAP + rb"(\d{1,10}+)" + GAP + rb"(\d{1,5}+)" + GAP + rb"obj")
STREAM = re.compile(GAP + rb"stream(?:\r\n|\n|\r)")
SUBSECTION = re.compile(GAP + rb"(\d{1,10}+)[ \t]++(\d{1,10}+)[ \t]*+(?:\r\n|\n|\r)")
TRAILER = re.compile(GAP + rb"trailer")
ENTRY = re.compile(rb"(\d{10}) \d{5} ([nf])(?: \r| \n|\r\n)")
PART_OF_STRING = re.compile(rb"[^()\\]++|\\.|[()]", re.DOTALL)
NEEDS_READING = re.compile(rb"Kids|[%#]")  # what a page that is no node does not hold, or what may hide it
ESCAPED = re.compile(rb"\\.", re.DOTALL)


END = object()


class Unsure(Exception):  # not an error of the tree: it is always caught
    """The tree is not written as the standard says, or cannot be read without keys."""


class TooLong(Unsure):
    """To read the tree would take too long, in whatever copy."""


@dataclass(frozen=True, slots=True)
class Reference:
    """`12 0 R`."""

    number: int


Value = dict[bytes, object] | list[object] | Reference | int | bytes | None
"""A name is bytes with its slash; strings, other numbers and words are None, because nothing here needs them."""

Entry = tuple[int, int]
"""`PLAIN` and an offset, `PACKED` and the number of an object stream, or `FREE`."""


def pages_in_tree(read: Read, size: int, claimed: int) -> int:
    """The pages of a tree, given that PDFium finds `claimed` of them: that many, and those that it does not get to.

    A place in the tree that holds nothing is a page for PDFium and not for us: only what looks like a page counts beyond the claim.

    Where it would take too long to find all of those, some are enough to know that the claim is wrong.

    Raises:
        Unsure: the tree cannot be told; `TooLong` if for its size.
    """
    file, beyond = _File(read, size), 0
    try:
        for leaf in itertools.islice(file.leaves(), claimed, None):
            beyond += file.is_page(leaf)
    except TooLong:
        if not beyond:
            raise
    return claimed + beyond


class _File:
    """The objects of a PDF by number. Every method may raise `Unsure`."""

    def __init__(self, read: Read, size: int) -> None:
        self._read_file = read
        self._work_left = MOST_WORK
        self._start = max(0, read(HEADER_BYTES, 0).find(b"%PDF-"))
        self._sections: list[Callable[[int], Entry | None]] = []  # newest first
        self._unpacked: dict[int, tuple[bytes, dict[int, tuple[int, int]]]] = {}
        self._unpacked_bytes = 0
        tail = read(TAIL_BYTES, max(0, size - TAIL_BYTES))
        found = TOKEN.match(tail, tail.rfind(b"startxref") + len(b"startxref"))
        if b"startxref" not in tail or found is None:
            raise Unsure
        self._trailer = self._read_tables(_whole(_number(found[1])))

    def _spend(self, work: int) -> None:
        """Count what hostile files could have us do without end: every part of a tree may lead to a long way through the file."""
        self._work_left -= work
        if self._work_left < 0:
            raise TooLong

    def _read(self, length: int, at: int) -> bytes:
        data = self._read_file(length, at)
        self._spend(len(data))
        return data

    def _parse(self, data: bytes, at: int) -> tuple[Value, int]:
        self._spend((len(data) - at) * PARSE_WORK)
        return _parsed(data, at)

    def leaves(self) -> Iterator[object]:
        """Each leaf of the page tree, in order: its text that is not parsed yet, or its value. Not all of them are pages."""
        catalogue = self._resolved(self._trailer.get(b"/Root"))
        root = catalogue.get(b"/Pages") if isinstance(catalogue, dict) else None
        branches, path = [self._kids(self._resolved(root))], [root if isinstance(root, Reference) else None]
        above = set(path)
        for _ in range(MOST_VISITS):
            kid = next(branches[-1], END)
            if kid is END:
                branches.pop()
                above.discard(path.pop())
                if not branches:
                    return
                continue
            if isinstance(kid, Reference):
                if kid in above:
                    continue  # PDFium does not count a loop
                text = self._text(kid.number)
                if text is not None and not _may_be_node(text):
                    yield text
                    continue
                node: object = None if text is None else self._parse(text, 0)[0]
            else:
                node = kid
            if not isinstance(node, dict) or b"/Kids" not in node:
                yield node
                continue
            if len(branches) > DEEPEST_NODE:
                raise Unsure
            branches.append(self._kids(node))
            path.append(kid if isinstance(kid, Reference) else None)
            above.add(path[-1])
        raise TooLong

    def is_page(self, leaf: object) -> bool:
        """Whether a leaf looks like a page: by its type, or by what only pages have where it names none."""
        if isinstance(leaf, bytes):
            leaf = self._parse(leaf, 0)[0]
        if not isinstance(leaf, dict):
            return False
        kind = self._resolved(leaf.get(b"/Type"))
        return kind == b"/Page" or (kind is None and not leaf.keys().isdisjoint((b"/Contents", b"/MediaBox", b"/Resources")))

    def _kids(self, node: object) -> Iterator[object]:
        kids = self._resolved(node.get(b"/Kids")) if isinstance(node, dict) else None
        if not isinstance(kids, list):
            raise Unsure
        return iter(kids)

    def _resolved(self, value: object) -> object:
        """A value, or what it refers to."""
        if not isinstance(value, Reference):
            return value
        text = self._text(value.number)
        return None if text is None else self._parse(text, 0)[0]

    def _text(self, number: int) -> bytes | None:
        """An object as it is written; None if there is none."""
        entry = self._entry(number)
        if entry is None or entry[0] == FREE:
            return None
        kind, place = entry
        if kind == PACKED:
            data, places = self._object_stream(place)
            if number not in places:
                raise Unsure
            start, end = places[number]
            return data[start:end]
        for chunk in self._growing(place):
            head = OBJECT.match(chunk)
            if head is None or int(head[1]) != number:
                raise Unsure
            end = chunk.find(b"endobj", head.end())
            if end >= 0:
                return chunk[head.end() : end]
        raise Unsure

    def _entry(self, number: int) -> Entry | None:
        """What the newest section that knows an object says of it."""
        for asked, section in enumerate(self._sections):
            if (found := section(number)) is not None:
                self._spend(asked * SECTION_WORK)
                return found
        self._spend(len(self._sections) * SECTION_WORK)
        return None

    def _growing(self, place: int) -> Iterator[bytes]:
        """What stands at a place, more of it each time."""
        length, had = FIRST_READ_BYTES, -1
        while length <= MOST_OBJECT_BYTES:
            chunk = self._read(length, self._start + place)
            if len(chunk) == had:
                return
            yield chunk
            had, length = len(chunk), length * GROWTH

    def _object_stream(self, number: int) -> tuple[bytes, dict[int, tuple[int, int]]]:
        """An unpacked object stream, and where in it each object starts and ends."""
        if (known := self._unpacked.get(number)) is not None:
            return known
        if b"/Encrypt" in self._trailer:
            raise Unsure
        entry = self._entry(number)
        if entry is None or entry[0] != PLAIN:
            raise Unsure
        entries, data = self._stream(entry[1])
        first, count = _whole(self._resolved(entries.get(b"/First"))), _whole(self._resolved(entries.get(b"/N")))
        if first > MOST_INDEX_BYTES:
            raise Unsure
        self._spend(first * PARSE_WORK // 4)
        try:
            index = [int(word) for word in data[:first].split()[: 2 * count]]
        except ValueError:
            raise Unsure from None
        starts = sorted(first + start for start in index[1::2])
        places: dict[int, tuple[int, int]] = {}
        for one, start in zip(index[::2], index[1::2], strict=False):
            at = bisect.bisect_right(starts, first + start)
            places.setdefault(one, (first + start, starts[at] if at < len(starts) else len(data)))
        self._unpacked_bytes += len(data)
        if self._unpacked_bytes > MOST_UNPACKED_BYTES:
            self._unpacked.clear()
            self._unpacked_bytes = len(data)
        self._unpacked[number] = data, places
        return data, places

    def _stream(self, place: int) -> tuple[dict[bytes, object], bytes]:
        """The dictionary and the unpacked bytes of a stream."""
        for chunk in self._growing(place):
            head = OBJECT.match(chunk)
            if head is None:
                raise Unsure
            try:
                entries, end = self._parse(chunk, head.end())
            except Unsure:
                continue  # its end may be further on
            start = STREAM.match(chunk, end)
            if start is None or not isinstance(entries, dict):
                continue
            length = _whole(self._resolved(entries.get(b"/Length")))
            if length > MOST_UNPACKED_BYTES:
                raise Unsure
            return entries, self._inflated(entries, self._read(length, self._start + place + start.end()))
        raise Unsure

    def _inflated(self, entries: dict[bytes, object], data: bytes) -> bytes:
        """The bytes of a stream without its filter."""
        filters, options = entries.get(b"/Filter"), entries.get(b"/DecodeParms")
        if isinstance(filters, list):
            filters = filters[0] if len(filters) == 1 else None if not filters else b"/several"
            options = options[0] if isinstance(options, list) and options else options
        if filters is None:
            return data
        if filters != b"/FlateDecode":
            raise Unsure
        reader = zlib.decompressobj()
        try:
            data = reader.decompress(data, MOST_UNPACKED_BYTES)
        except zlib.error:
            raise Unsure from None
        self._spend(len(data))
        if reader.unconsumed_tail or isinstance(options, Reference):
            raise Unsure
        predictor = options.get(b"/Predictor", 1) if isinstance(options, dict) else 1
        if predictor == 1:
            return data
        assert isinstance(options, dict)  # it has a predictor
        if not isinstance(predictor, int) or predictor < 10 or options.get(b"/Colors", 1) != 1:
            raise Unsure
        if options.get(b"/BitsPerComponent", 8) != 8:
            raise Unsure
        self._spend(len(data) * PREDICTED_WORK)
        return _without_predictor(data, _whole(options.get(b"/Columns", 1)))

    def _read_tables(self, place: int) -> dict[bytes, object]:
        """Find all cross-reference tables, and return the newest trailer."""
        newest: dict[bytes, object] | None = None
        seen: set[int] = set()
        while place not in seen and len(self._sections) < MOST_SECTIONS:
            seen.add(place)
            trailer = self._read_table(place)
            newest = trailer if newest is None else newest
            if b"/Prev" not in trailer:
                return newest
            place = _whole(trailer[b"/Prev"])
        raise Unsure

    def _read_table(self, place: int) -> dict[bytes, object]:
        """Add one table to those known, and return its trailer."""
        if not self._read(64, self._start + place).lstrip().startswith(b"xref"):
            entries, data = self._stream(place)
            self._sections.extend(_packed_sections(entries, data))
            return entries
        sections: list[Callable[[int], Entry | None]] = []
        head = self._read(64, self._start + place)
        at = place + head.index(b"xref") + 4
        while (found := SUBSECTION.match(self._read(64, self._start + at))) is not None:
            first, count = int(found[1]), int(found[2])
            sections.append(self._plain_section(first, count, at + found.end()))
            at += found.end() + count * ENTRY_BYTES
            if len(sections) > MOST_SECTIONS:
                raise Unsure
        trailer: object = None
        for chunk in self._growing(at):
            if (start := TRAILER.match(chunk)) is None:
                raise Unsure
            try:
                trailer = self._parse(chunk, start.end())[0]
            except Unsure:
                continue
            break
        if not isinstance(trailer, dict):
            raise Unsure
        if b"/XRefStm" in trailer:  # for readers of packed objects, which the table calls free
            self._sections.extend(_packed_sections(*self._stream(_whole(trailer[b"/XRefStm"]))))
        self._sections.extend(sections)
        return trailer

    def _plain_section(self, first: int, count: int, place: int) -> Callable[[int], Entry | None]:
        def find(number: int) -> Entry | None:
            if not first <= number < first + count:
                return None
            entry = ENTRY.match(self._read(ENTRY_BYTES, self._start + place + (number - first) * ENTRY_BYTES))
            if entry is None:
                raise Unsure
            return (PLAIN, int(entry[1])) if entry[2] == b"n" else (FREE, 0)

        return find


def _may_be_node(text: bytes) -> bool:
    """Whether an object may have kids, without parsing it, which takes a hundred times as long. One of which the end was looked for
    within a string has a parenthesis too many.
    """
    if NEEDS_READING.search(text) is not None:
        return True
    if b"\\" in text:
        text = ESCAPED.sub(b"", text)
    return text.count(b"(") != text.count(b")")


def _packed_sections(entries: dict[bytes, object], data: bytes) -> Iterator[Callable[[int], Entry | None]]:
    """The sections of a cross-reference stream."""
    index, widths = entries.get(b"/Index", [0, entries.get(b"/Size")]), entries.get(b"/W")
    if not isinstance(index, list) or not isinstance(widths, list) or len(widths) != 3:
        raise Unsure
    sizes = [_whole(width) for width in widths]
    row = sum(sizes)
    if max(sizes) > 7 or not sizes[1]:
        raise Unsure

    def section(first: int, count: int, start: int) -> Callable[[int], Entry | None]:
        def find(number: int) -> Entry | None:
            if not first <= number < first + count:
                return None
            at = start + (number - first) * row
            entry = data[at : at + row]
            if len(entry) < row:
                raise Unsure
            kind = int.from_bytes(entry[: sizes[0]], "big") if sizes[0] else PLAIN
            if kind not in (FREE, PLAIN, PACKED):
                raise Unsure
            return kind, int.from_bytes(entry[sizes[0] : sizes[0] + sizes[1]], "big")

        return find

    start = 0
    for first, count in zip(index[::2], index[1::2], strict=False):
        yield section(_whole(first), _whole(count), start)
        start += _whole(count) * row


def _without_predictor(data: bytes, columns: int) -> bytes:
    """Rows that were written as their difference to the row above (PNG's filter "up"), as all are in practice."""
    row = columns + 1
    if not 1 < row <= 64 or data[::row].strip(b"\2"):
        raise Unsure
    whole = bytearray(len(data) // row * columns)
    for column in range(columns):
        above = itertools.accumulate(data[column + 1 :: row][: len(data) // row])
        whole[column::columns] = bytes(value & 0xFF for value in above)
    return bytes(whole)


def _parsed(data: bytes, at: int, depth: int = 0) -> tuple[Value, int]:
    """The value that is written at a place, and where it ends."""
    found = TOKEN.match(data, at)
    if found is None or depth > DEEPEST_VALUE:
        raise Unsure
    token, at = found[1], found.end()
    if token == b"<<":
        entries: dict[bytes, object] = {}
        while (key := TOKEN.match(data, at)) is not None and key[1].startswith(b"/"):
            entries[_name(key[1])], at = _parsed(data, key.end(), depth + 1)
        if key is None or key[1] != b">>":
            raise Unsure
        return entries, key.end()
    if token == b"[":
        values: list[object] = []
        while (item := TOKEN.match(data, at)) is not None and item[1] != b"]":
            value, at = _parsed(data, at, depth + 1)
            values.append(value)
        if item is None:
            raise Unsure
        return values, item.end()
    if token == b"(":
        return None, _end_of_string(data, at)
    if token in (b">>", b"]"):
        raise Unsure
    if token.isdigit() and (rest := REST_OF_REFERENCE.match(data, at)) is not None:
        return Reference(_whole(_number(token))), rest.end()
    return _name(token) if token.startswith(b"/") else _number(token), at


def _end_of_string(data: bytes, at: int) -> int:
    """Where a string ends whose parenthesis was opened before."""
    depth = 1
    while depth:
        part = PART_OF_STRING.match(data, at)
        if part is None:
            raise Unsure
        depth += (part[0] == b"(") - (part[0] == b")")
        at = part.end()
    return at


def _name(token: bytes) -> bytes:
    """A name without its escapes."""
    return re.sub(rb"#([0-9A-Fa-f]{2})", lambda found: bytes([int(found[1], 16)]), token) if b"#" in token else token


def _number(token: bytes) -> int | None:
    return int(token) if token.isdigit() and len(token) <= 15 else None


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise Unsure
    return value
