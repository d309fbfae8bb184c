"""JSON as in ordinary Python: the same defaults, but for `load` and `dump`, which need files."""

from _block import dumps as _dumps
from _block import loads as _loads


class JSONDecodeError(ValueError):
    pass


def loads(text):
    try:
        return _loads(text)
    except ValueError as problem:
        raise JSONDecodeError(str(problem))


def dumps(value, ensure_ascii=True, indent=None, separators=None, sort_keys=False, default=None):
    if sort_keys or default is not None:
        value = _prepared(value, sort_keys, default)
    if separators is None:
        separators = (", " if indent is None else ",", ": ")
    if indent is None:
        return _dumps(value, separators[0], separators[1], ensure_ascii)
    step = " " * indent if isinstance(indent, int) else indent
    return _indented(value, "\n", step, separators, ensure_ascii)


def _prepared(value, sort_keys, default):
    """The same with keys in order, and what JSON does not know replaced."""
    if isinstance(value, dict):
        from collections import OrderedDict

        keys = sorted(value) if sort_keys else value
        return OrderedDict([(key, _prepared(value[key], sort_keys, default)) for key in keys])
    if isinstance(value, (list, tuple)):
        return [_prepared(item, sort_keys, default) for item in value]
    if default is not None and not (value is None or isinstance(value, (str, int, float, bool))):
        return _prepared(default(value), sort_keys, default)
    return value


def _key(key):
    """A key as ordinary Python writes it: what is no text as its JSON."""
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, (bool, int, float)):
        return _dumps(key, "", "", True)
    raise TypeError("a key of JSON is text, found %r" % (key,))


def _indented(value, line, step, separators, ensure_ascii):
    inner = line + step
    if isinstance(value, dict) and value:
        parts = [
            "%s%s%s"
            % (
                _dumps(_key(key), "", "", ensure_ascii),
                separators[1],
                _indented(value[key], inner, step, separators, ensure_ascii),
            )
            for key in value
        ]
        return "{" + inner + (separators[0] + inner).join(parts) + line + "}"
    if isinstance(value, (list, tuple)) and value:
        parts = [_indented(item, inner, step, separators, ensure_ascii) for item in value]
        return "[" + inner + (separators[0] + inner).join(parts) + line + "]"
    return _dumps(value, separators[0], separators[1], ensure_ascii)
