"""The iterators of itertools, but for tee."""

_NONE = object()


def count(start=0, step=1):
    while True:
        yield start
        start += step


def cycle(items):
    items = list(items)
    while items:
        for item in items:
            yield item


def repeat(item, times=None):
    if times is None:
        while True:
            yield item
    for _ in range(times):
        yield item


def _chain_from(iterables):
    for items in iterables:
        for item in items:
            yield item


class _Chain:
    from_iterable = staticmethod(_chain_from)

    def __call__(self, *iterables):
        return _chain_from(iterables)


chain = _Chain()


def islice(items, start, stop=_NONE, step=1):
    if stop is _NONE:
        start, stop = 0, start
    start, step = start or 0, step or 1
    if stop is not None and stop <= start:
        return
    wanted, at = start, 0
    for item in items:
        if at == wanted:
            yield item
            wanted += step
        at += 1
        if stop is not None and (at >= stop or wanted >= stop):
            return


def takewhile(test, items):
    for item in items:
        if not test(item):
            return
        yield item


def dropwhile(test, items):
    dropping = True
    for item in items:
        if dropping and test(item):
            continue
        dropping = False
        yield item


def filterfalse(test, items):
    for item in items:
        if not (item if test is None else test(item)):
            yield item


def compress(items, selectors):
    for item, selected in zip(items, selectors):
        if selected:
            yield item


def starmap(function, items):
    for args in items:
        yield function(*args)


def accumulate(items, function=None, initial=None):
    items = iter(items)
    total = initial
    if initial is None:
        try:
            total = next(items)
        except StopIteration:
            return
    yield total
    for item in items:
        total = total + item if function is None else function(total, item)
        yield total


def pairwise(items):
    items = iter(items)
    try:
        left = next(items)
    except StopIteration:
        return
    for right in items:
        yield left, right
        left = right


def batched(items, n):
    if n < 1:
        raise ValueError("n must be at least one")
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == n:
            yield tuple(batch)
            batch = []
    if batch:
        yield tuple(batch)


def zip_longest(*iterables, fillvalue=None):
    iterators = [iter(items) for items in iterables]
    left = len(iterators)
    while True:
        row = []
        for i in range(len(iterators)):
            item = fillvalue
            if iterators[i] is not None:
                try:
                    item = next(iterators[i])
                except StopIteration:
                    iterators[i] = None
                    left -= 1
            row.append(item)
        if left == 0:
            return
        yield tuple(row)


def groupby(items, key=None):
    """Each group comes as a list, and not as an iterator."""
    group, name = [], _NONE
    for item in items:
        its_name = item if key is None else key(item)
        if group and its_name != name:
            yield name, group
            group = []
        name = its_name
        group.append(item)
    if group:
        yield name, group


def product(*iterables, repeat=1):
    rows = [()]
    for items in [list(items) for items in iterables] * repeat:
        rows = [row + (item,) for row in rows for item in items]
    for row in rows:
        yield row


def permutations(items, r=None):
    items = list(items)
    for chosen in product(range(len(items)), repeat=len(items) if r is None else r):
        if len(set(chosen)) == len(chosen):
            yield tuple([items[i] for i in chosen])


def combinations(items, r):
    items = list(items)
    chosen = list(range(r))
    while r <= len(items):
        yield tuple([items[i] for i in chosen])
        for place in range(r - 1, -1, -1):
            if chosen[place] < len(items) - r + place:
                break
        else:
            return
        chosen[place] += 1
        for i in range(place + 1, r):
            chosen[i] = chosen[i - 1] + 1
