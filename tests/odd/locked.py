"""PDFs that are locked with a password, in each way of the standard security handler (PDF 1.7, 7.6; PDF 2.0, 7.6.4)."""

import hashlib
from collections.abc import Sequence
from typing import Literal

from odd.writer import packed_pdf, page_objects, pdf, stream

__all__ = ["Method", "locked_packed_pdf", "locked_pdf"]

Method = Literal["rc4-40", "rc4-128", "aes-128", "aes-256-r5", "aes-256"]

FILLER = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")
IDENTIFIER = b"0123456789abcdef"
PERMISSIONS = (-4).to_bytes(4, "little", signed=True)
CONTENT = b"BT /F1 12 Tf 50 700 Td (secret words) Tj ET"
CONTENT_OBJECT = 5


def locked_pdf(user_password: bytes, method: Method = "rc4-40") -> bytes:
    """A page that says "secret words", encrypted. With an empty password it opens by itself.

    Its owner's password is "owner", except with aes-256, whose owner's entry is left empty: it would take a second to compute.
    """
    if method in ("aes-256-r5", "aes-256"):
        lock, content = _aes_256(user_password, method)
    else:
        lock, content = _by_md5(user_password, method)
    objects = page_objects(stream(content))
    identifier = IDENTIFIER.hex()
    return pdf(objects, f"/Encrypt<</Filter/Standard{lock}/P -4>>/ID[<{identifier}><{identifier}>]")


def locked_packed_pdf(objects: Sequence[bytes]) -> bytes:
    """These objects in an encrypted object stream. Opens by itself. None of them may be a stream."""
    entries, key, length = _md5_lock(b"", "rc4-40")

    def lock(number: int, data: bytes) -> bytes:
        return rc4(hashlib.md5(key + number.to_bytes(3, "little") + bytes(2)).digest()[: length + 5], data)

    identifier = IDENTIFIER.hex()
    trailer = f"/Encrypt<</Filter/Standard{entries}/V 1/R 2/P -4>>/ID[<{identifier}><{identifier}>]"
    return packed_pdf(objects, trailer=trailer, lock=lock)


def _md5_lock(password: bytes, method: Method) -> tuple[str, bytes, int]:
    """What the file says of its passwords, the file's key, and how much of the key there is."""
    length, turns = (5, 0) if method == "rc4-40" else (16, 50)
    user = (password + FILLER)[:32]
    owner_key = _md5_again((b"owner" + FILLER)[:32], turns, length)
    owner = _rc4_again(owner_key, user, turns)
    key = _md5_again(user + owner + PERMISSIONS + IDENTIFIER, turns, length)
    check = _rc4_again(key, hashlib.md5(FILLER + IDENTIFIER).digest(), turns) + bytes(16) if turns else rc4(key, FILLER)
    return f"/O<{owner.hex()}>/U<{check.hex()}>", key, length


def _by_md5(password: bytes, method: Method) -> tuple[str, bytes]:
    """Revisions 2 to 4: RC4 with 40 or 128 bits, AES with 128."""
    entries, key, length = _md5_lock(password, method)
    numbers = CONTENT_OBJECT.to_bytes(3, "little") + bytes(2)
    if method == "aes-128":
        object_key = hashlib.md5(key + numbers + b"sAlT").digest()
        entries += "/V 4/R 4/Length 128/CF<</StdCF<</CFM/AESV2/AuthEvent/DocOpen/Length 16>>>>/StmF/StdCF/StrF/StdCF"
        return entries, IDENTIFIER + aes_cbc(object_key, IDENTIFIER, _filled_up(CONTENT))
    object_key = hashlib.md5(key + numbers).digest()[: min(16, length + 5)]
    return entries + ("/V 2/R 3/Length 128" if method == "rc4-128" else "/V 1/R 2"), rc4(object_key, CONTENT)


def _aes_256(password: bytes, method: Method) -> tuple[str, bytes]:
    """Revisions 5 (Adobe's own) and 6 (PDF 2.0), which differ in their hash only."""
    revision = 5 if method == "aes-256-r5" else 6
    file_key = hashlib.sha256(b"the key of this file").digest()
    user_salts, owner_salts = b"usersaltuserkey.", b"ownrsaltownrkey."

    def entry(password: bytes, salts: bytes, user: bytes) -> tuple[bytes, bytes]:
        check = _hash(password, salts[:8], user, revision) + salts
        return check, aes_cbc(_hash(password, salts[8:], user, revision), bytes(16), file_key)

    user, user_key = entry(password, user_salts, b"")
    owner, owner_key = entry(b"owner", owner_salts, user) if revision == 5 else (bytes(48), bytes(32))
    permissions = aes_cbc(file_key, bytes(16), PERMISSIONS + b"\xff\xff\xff\xffTadb" + b"four")  # one block: the same as ECB
    lock = (
        f"/V 5/R {revision}/Length 256/O<{owner.hex()}>/U<{user.hex()}>/OE<{owner_key.hex()}>/UE<{user_key.hex()}>"
        f"/Perms<{permissions.hex()}>/CF<</StdCF<</CFM/AESV3/AuthEvent/DocOpen/Length 32>>>>/StmF/StdCF/StrF/StdCF"
    )
    return lock, IDENTIFIER + aes_cbc(file_key, IDENTIFIER, _filled_up(CONTENT))


def _hash(password: bytes, salt: bytes, user: bytes, revision: int) -> bytes:
    """Algorithm 2.B of PDF 2.0; revision 5 stops after its first line."""
    key = hashlib.sha256(password + salt + user).digest()
    if revision == 5:
        return key
    turn = 0
    while True:
        mixed = aes_cbc(key[:16], key[16:32], (password + key + user) * 64)
        key = hashlib.new(("sha256", "sha384", "sha512")[sum(mixed[:16]) % 3], mixed).digest()
        turn += 1
        if turn >= 64 and mixed[-1] <= turn - 32:
            return key[:32]


def _md5_again(data: bytes, turns: int, length: int) -> bytes:
    digest = hashlib.md5(data).digest()
    for _ in range(turns):
        digest = hashlib.md5(digest[:length]).digest()
    return digest[:length]


def _rc4_again(key: bytes, data: bytes, turns: int) -> bytes:
    for turn in range(20 if turns else 1):
        data = rc4(bytes(byte ^ turn for byte in key), data)
    return data


def rc4(key: bytes, data: bytes) -> bytes:
    box, j = list(range(256)), 0
    for i in range(256):
        j = (j + box[i] + key[i % len(key)]) % 256
        box[i], box[j] = box[j], box[i]
    out, i, j = bytearray(), 0, 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + box[i]) % 256
        box[i], box[j] = box[j], box[i]
        out.append(byte ^ box[(box[i] + box[j]) % 256])
    return bytes(out)


def _filled_up(data: bytes) -> bytes:
    return data + bytes([16 - len(data) % 16]) * (16 - len(data) % 16)


def _doubled(byte: int) -> int:
    return (byte << 1) ^ (0x11B if byte & 0x80 else 0)


def _substitutions() -> list[int]:
    box, p, q = [0x63] * 256, 1, 1
    while True:
        p ^= _doubled(p)
        for shift in (1, 2, 4):
            q ^= q << shift & 0xFF
        q ^= 0x09 if q & 0x80 else 0
        box[p] = q ^ 0x63
        for turn in (1, 2, 3, 4):
            box[p] ^= (q << turn | q >> 8 - turn) & 0xFF
        if p == 1:
            return box


SUBSTITUTE = _substitutions()
# What a byte in each of a column's four places does to the column: AES's second and fourth step in one look-up
COLUMNS = [
    [int.from_bytes((bytes((_doubled(s), s, s, _doubled(s) ^ s)) * 2)[4 - place : 8 - place], "big") for s in SUBSTITUTE]
    for place in range(4)
]


def _round_keys(key: bytes) -> list[int]:
    size = len(key) // 4
    words, constant = [int.from_bytes(key[at : at + 4], "big") for at in range(0, len(key), 4)], 1
    for at in range(size, 4 * (size + 7)):
        word = words[-1]
        if at % size == 0:
            word = _substituted((word << 8 | word >> 24) & 0xFFFFFFFF) ^ constant << 24
            constant = _doubled(constant)
        elif size > 6 and at % size == 4:
            word = _substituted(word)
        words.append(words[at - size] ^ word)
    return words


def _substituted(word: int) -> int:
    return int.from_bytes(bytes(SUBSTITUTE[byte] for byte in word.to_bytes(4, "big")), "big")


def aes_cbc(key: bytes, start: bytes, data: bytes) -> bytes:
    """Encrypt whole blocks."""
    keys, out = _round_keys(key), bytearray()
    one, two, three, four = COLUMNS
    s = [int.from_bytes(start[at : at + 4], "big") for at in (0, 4, 8, 12)]
    for block in range(0, len(data), 16):
        s = [s[at] ^ int.from_bytes(data[block + 4 * at : block + 4 * at + 4], "big") ^ keys[at] for at in range(4)]
        for turn in range(4, len(keys) - 4, 4):
            s = [
                one[s[at] >> 24]
                ^ two[s[at - 3] >> 16 & 255]
                ^ three[s[at - 2] >> 8 & 255]
                ^ four[s[at - 1] & 255]
                ^ keys[turn + at]
                for at in range(4)
            ]
        s = [
            _substituted(s[at] & 0xFF000000 | s[at - 3] & 0xFF0000 | s[at - 2] & 0xFF00 | s[at - 1] & 0xFF) ^ keys[at - 4]
            for at in range(4)
        ]
        out += b"".join(word.to_bytes(4, "big") for word in s)
    return bytes(out)
