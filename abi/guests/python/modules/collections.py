"""OrderedDict of MicroPython; and deque, namedtuple, Counter and defaultdict."""

from ucollections import OrderedDict
from ucollections import namedtuple as _namedtuple


def namedtuple(name, fields):
    if isinstance(fields, str):
        fields = fields.replace(",", " ").split()
    return _namedtuple(name, list(fields))


class deque:
    """A list whose front moves: what was taken from it is cut off when it is half of the list."""

    def __init__(self, items=(), maxlen=None):
        self.maxlen = maxlen
        self._items = []
        self._front = 0
        self.extend(items)

    def append(self, item):
        self._items.append(item)
        if self.maxlen is not None and len(self) > self.maxlen:
            self.popleft()

    def appendleft(self, item):
        if self._front == 0:
            room = len(self._items) + 8
            self._items = [None] * room + self._items
            self._front = room
        self._front -= 1
        self._items[self._front] = item
        if self.maxlen is not None and len(self) > self.maxlen:
            self._items.pop()

    def extend(self, items):
        for item in list(items):
            self.append(item)

    def extendleft(self, items):
        for item in list(items):
            self.appendleft(item)

    def pop(self):
        if not len(self):
            raise IndexError("pop from an empty deque")
        return self._items.pop()

    def popleft(self):
        if not len(self):
            raise IndexError("pop from an empty deque")
        item = self._items[self._front]
        self._items[self._front] = None
        self._front += 1
        if self._front > 32 and self._front * 2 > len(self._items):
            self._items = self._items[self._front :]
            self._front = 0
        return item

    def clear(self):
        self._items = []
        self._front = 0

    def rotate(self, n=1):
        items = list(self)
        if items:
            n %= len(items)
            self._items = items[len(items) - n :] + items[: len(items) - n]
            self._front = 0

    def _place(self, index):
        if not -len(self) <= index < len(self):
            raise IndexError("deque index out of range")
        return self._front + index if index >= 0 else len(self._items) + index

    def __getitem__(self, index):
        return self._items[self._place(index)]

    def __setitem__(self, index, item):
        self._items[self._place(index)] = item

    def __len__(self):
        return len(self._items) - self._front

    def __bool__(self):
        return len(self) > 0

    def __iter__(self):
        return iter(self._items[self._front :])

    def __contains__(self, item):
        return item in self._items[self._front :]

    def __eq__(self, other):
        return isinstance(other, deque) and list(self) == list(other)

    def __repr__(self):
        size = "" if self.maxlen is None else ", maxlen=%d" % self.maxlen
        return "deque(%r%s)" % (list(self), size)


class defaultdict(dict):
    def __init__(self, default_factory=None, items=(), **keywords):
        super().__init__(items, **keywords)
        self.default_factory = default_factory

    def __getitem__(self, key):
        try:
            return super().__getitem__(key)
        except KeyError:
            if self.default_factory is None:
                raise
            value = self.default_factory()
            self[key] = value
            return value


class Counter(dict):
    def __init__(self, items=(), **keywords):
        super().__init__()
        self.update(items, **keywords)

    def __getitem__(self, key):
        return self.get(key, 0)

    def update(self, items=(), **keywords):
        _count(self, items, 1)
        _count(self, keywords, 1)

    def subtract(self, items=(), **keywords):
        _count(self, items, -1)
        _count(self, keywords, -1)

    def most_common(self, n=None):
        pairs = sorted(self.items(), key=lambda pair: -pair[1])
        return pairs if n is None else pairs[:n]

    def elements(self):
        for key in self:
            for _ in range(self[key]):
                yield key

    def total(self):
        return sum(self.values())

    def __add__(self, other):
        return _positive(self, other, 1)

    def __sub__(self, other):
        return _positive(self, other, -1)


def _count(counter, items, sign):
    if isinstance(items, dict):
        for key in items:
            counter[key] = counter.get(key, 0) + sign * items[key]
    else:
        for key in items:
            counter[key] = counter.get(key, 0) + sign


def _positive(left, right, sign):
    both = Counter(left)
    _count(both, right, sign)
    result = Counter()
    for key in both:
        if both[key] > 0:
            result[key] = both[key]
    return result
