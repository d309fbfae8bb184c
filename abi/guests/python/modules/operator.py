"""Operators as functions, and itemgetter, attrgetter, methodcaller."""


def itemgetter(*keys):
    if len(keys) == 1:
        key = keys[0]
        return lambda value: value[key]
    return lambda value: tuple([value[key] for key in keys])


def attrgetter(*names):
    if len(names) == 1:
        return lambda value: _attr(value, names[0])
    return lambda value: tuple([_attr(value, name) for name in names])


def _attr(value, name):
    for part in name.split("."):
        value = getattr(value, part)
    return value


def methodcaller(name, *args, **keywords):
    return lambda value: getattr(value, name)(*args, **keywords)


def add(a, b):
    return a + b


def sub(a, b):
    return a - b


def mul(a, b):
    return a * b


def truediv(a, b):
    return a / b


def floordiv(a, b):
    return a // b


def mod(a, b):
    return a % b


def neg(a):
    return -a


def eq(a, b):
    return a == b


def ne(a, b):
    return a != b


def lt(a, b):
    return a < b


def le(a, b):
    return a <= b


def gt(a, b):
    return a > b


def ge(a, b):
    return a >= b


def and_(a, b):
    return a & b


def or_(a, b):
    return a | b


def xor(a, b):
    return a ^ b


def not_(a):
    return not a


def getitem(a, key):
    return a[key]


def contains(a, item):
    return item in a
