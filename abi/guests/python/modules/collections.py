"""deque, namedtuple and OrderedDict of MicroPython, and Counter and defaultdict."""

from ucollections import OrderedDict, deque, namedtuple


class defaultdict(dict):
    def __init__(self, default_factory=None, items=()):
        super().__init__(items)
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
    def __init__(self, items=()):
        super().__init__()
        self.update(items)

    def __getitem__(self, key):
        return self.get(key, 0)

    def update(self, items=()):
        if isinstance(items, dict):
            for key in items:
                self[key] = self.get(key, 0) + items[key]
        else:
            for key in items:
                self[key] = self.get(key, 0) + 1

    def most_common(self, n=None):
        pairs = sorted(self.items(), key=lambda pair: -pair[1])
        return pairs if n is None else pairs[:n]

    def elements(self):
        for key in self:
            for _ in range(self[key]):
                yield key

    def total(self):
        return sum(self.values())
