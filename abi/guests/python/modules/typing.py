"""Names for annotations, which are read and forgotten here. Each of them may stand wherever a type may."""


class _Any:
    def __getitem__(self, _):
        return self

    def __or__(self, _):
        return self

    def __ror__(self, _):
        return self

    def __call__(self, *args, **_):
        return args[-1] if args else self


_any = _Any()
TYPE_CHECKING = False


def cast(_, value):
    return value


def NamedTuple(name, fields):
    from collections import namedtuple

    return namedtuple(name, [field for field, _ in fields])


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    return _any
