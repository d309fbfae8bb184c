"""Places in sorted lists."""


def bisect_left(items, wanted, lo=0, hi=None, key=None):
    hi = len(items) if hi is None else hi
    while lo < hi:
        middle = (lo + hi) // 2
        if (items[middle] if key is None else key(items[middle])) < wanted:
            lo = middle + 1
        else:
            hi = middle
    return lo


def bisect_right(items, wanted, lo=0, hi=None, key=None):
    hi = len(items) if hi is None else hi
    while lo < hi:
        middle = (lo + hi) // 2
        if wanted < (items[middle] if key is None else key(items[middle])):
            hi = middle
        else:
            lo = middle + 1
    return lo


def insort_right(items, item, lo=0, hi=None, key=None):
    items.insert(bisect_right(items, item if key is None else key(item), lo, hi, key), item)


def insort_left(items, item, lo=0, hi=None, key=None):
    items.insert(bisect_left(items, item if key is None else key(item), lo, hi, key), item)


bisect, insort = bisect_right, insort_right
