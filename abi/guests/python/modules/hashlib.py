"""sha256, the one hash that there is."""

from binascii import hexlify as _hexlify

import uhashlib as _hashes


class _Hash:
    name = "sha256"
    digest_size = 32
    block_size = 64

    def __init__(self, parts):
        self._parts = parts

    def update(self, data):
        if isinstance(data, str):
            raise TypeError("a text is encoded before it is hashed: data.encode()")
        self._parts.append(bytes(data))

    def digest(self):
        hashed = _hashes.sha256()
        for part in self._parts:
            hashed.update(part)
        return hashed.digest()

    def hexdigest(self):
        return _hexlify(self.digest()).decode()

    def copy(self):
        return _Hash(list(self._parts))


def sha256(data=b""):
    made = _Hash([])
    made.update(data)
    return made


def new(name, data=b""):
    if name != "sha256":
        raise ValueError("unsupported hash type %s: there is sha256 alone" % name)
    return sha256(data)
