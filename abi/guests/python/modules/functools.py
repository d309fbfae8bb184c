"""What of functools is small: partial, reduce, lru_cache, cache, cmp_to_key, wraps."""


def partial(function, *args, **keywords):
    def call(*more_args, **more_keywords):
        merged = keywords.copy()
        merged.update(more_keywords)
        return function(*args, *more_args, **merged)

    return call


_NONE = object()


def reduce(function, items, start=_NONE):
    items = iter(items)
    if start is _NONE:
        try:
            start = next(items)
        except StopIteration:
            raise TypeError("reduce() of empty iterable with no initial value")
    for item in items:
        start = function(start, item)
    return start


def lru_cache(maxsize=128, typed=False):
    if callable(maxsize):
        return cache(maxsize)
    return cache


def cache(function):
    """Remembers all results: a block's memory lasts for one run only."""
    results = {}

    def call(*args, **keywords):
        key = (args, tuple(sorted(keywords.items()))) if keywords else args
        if key not in results:
            results[key] = function(*args, **keywords)
        return results[key]

    return call


def cmp_to_key(compare):
    class Key:
        def __init__(self, value):
            self.value = value

        def __lt__(self, other):
            return compare(self.value, other.value) < 0

        def __gt__(self, other):
            return compare(self.value, other.value) > 0

        def __eq__(self, other):
            return compare(self.value, other.value) == 0

    return Key


def wraps(wrapped):
    """Functions cannot be renamed here, so this gives the wrapper as it is."""
    return lambda wrapper: wrapper
