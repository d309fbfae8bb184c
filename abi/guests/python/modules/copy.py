"""Copies of lists, dicts, sets, tuples and of objects of simple classes."""


def copy(value):
    if isinstance(value, (list, dict, set, bytearray)):
        return value.copy() if not isinstance(value, bytearray) else bytearray(value)
    if hasattr(value, "__dict__"):
        return _of_class(value, lambda part: part)
    return value


def deepcopy(value, memo=None):
    memo = {} if memo is None else memo
    known = memo.get(id(value))
    if known is not None:
        return known
    if isinstance(value, list):
        result = memo[id(value)] = []
        for item in value:
            result.append(deepcopy(item, memo))
        return result
    if isinstance(value, dict):
        result = memo[id(value)] = value.copy()
        for key in list(result):
            result[key] = deepcopy(result[key], memo)
        return result
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple([deepcopy(item, memo) for item in value])
    if isinstance(value, (set, bytearray)):
        return copy(value)
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return _of_class(value, lambda part: deepcopy(part, memo))
    return value


def _of_class(value, each):
    result = object.__new__(value.__class__)
    for name, part in value.__dict__.items():
        setattr(result, name, each(part))
    return result
