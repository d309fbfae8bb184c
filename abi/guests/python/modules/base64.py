"""Base64 in its two alphabets, and base16."""

from binascii import a2b_base64, b2a_base64, hexlify, unhexlify


def b64encode(data):
    return b2a_base64(data)[:-1]


def b64decode(text):
    return a2b_base64(text)


def urlsafe_b64encode(data):
    return b64encode(data).replace(b"+", b"-").replace(b"/", b"_")


def urlsafe_b64decode(text):
    if isinstance(text, str):
        text = text.encode()
    return a2b_base64(text.replace(b"-", b"+").replace(b"_", b"/"))


def b16encode(data):
    return hexlify(data).upper()


def b16decode(text):
    return unhexlify(text)


standard_b64encode = b64encode
standard_b64decode = b64decode
