"""What went wrong with a model server, in our words: one line with what happened and what to do, and never with the key in it."""

import json
import re
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx2
import trio

from cuttlefish.errors import InferenceFailed

__all__ = [
    "broke_off",
    "context_exceeded",
    "lost_connection",
    "no_such_machine",
    "nonsense",
    "refusal",
    "scrubbed",
    "unknown_end",
    "unreachable",
    "words_of",
]

MOST_WORDS = 200


def nonsense(place: str, what: str) -> InferenceFailed:
    """The error for an answer that cannot be read. `place` is the server, such as `http://127.0.0.1:8080`."""
    return InferenceFailed(f"{place} sent {what}, which is no reply of a model. See whether the address is right")


def broke_off(place: str, words: str = "") -> InferenceFailed:
    """The error for a reply that came to no proper end; `words` are the server's own reason, if it gave one."""
    return InferenceFailed(
        f"{place} broke off in the middle of its reply" + (f": {words}" if words else ". Look at the server's log, and ask again")
    )


def unknown_end(place: str, reason: str) -> InferenceFailed:
    """The error for a reply that ended for a reason of which we do not know that it is a proper one."""
    return broke_off(place, f'it says why by "{scrubbed(reason, None)}", which is neither an end nor a limit on tokens')


def refusal(place: str, model: str, status: int, data: bytes, location: str, secret: str | None) -> InferenceFailed:
    """The error for a status that means the same with every server. `location` is where a redirect points to."""
    if (too_long := context_exceeded(model, data)) is not None:
        return too_long
    if 300 <= status < 400:
        where = scrubbed(location, secret)
        instead = f'Give the address itself: "{where}"' if where else "See whether the address is right"
        return InferenceFailed(f"{place} points elsewhere ({status}), which is not followed. {instead}")
    words = words_of(data, secret)
    said = f": {words}" if words else ""
    if status >= 500:
        return InferenceFailed(f"{place} broke down over the prompt ({status}{said}). Look at the server's log")
    return InferenceFailed(f"{place} refused the prompt ({status}{said})")


def words_of(data: bytes, secret: str | None) -> str:
    """What a server says about an error, fit to be shown: one short line, without the key. Empty if it says nothing."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    for key in ("error", "message", "detail", "msg"):
        if isinstance(said, list) and said:
            said = said[0]
        if isinstance(said, Mapping) and key in said:
            said = said[key]
    return scrubbed(said, secret) if isinstance(said, str) else ""


def scrubbed(text: str, secret: str | None) -> str:
    """A server's words as one short line without control characters and without the key."""
    if secret:
        text = text.replace(secret, "…")
    line = " ".join("".join(c if c.isprintable() else " " for c in text[:10_000]).split()).rstrip(".")
    return line if len(line) <= MOST_WORDS else line[: MOST_WORDS - 1] + "…"


def context_exceeded(model: str, data: bytes) -> InferenceFailed | None:
    """The error for a prompt that does not fit, if that is what a server says; with both numbers if it says them."""
    text = data.decode(errors="replace").replace("\\", "")
    if not re.search(r"exceed_context_size|context_length_exceeded|context (length|size|window)", text):
        return None
    fixed = re.search(r'n_prompt_tokens"?\D{1,3}(\d+)', text), re.search(r'n_ctx"?\D{1,3}(\d+)', text)
    told = (
        re.search(r"(?:resulted in|requested|request has|has|contains)\D{0,20}(\d+) (?:input )?tokens", text),
        re.search(r"context (?:length|size|window)\D{0,20}(\d+)", text),
    )
    for needed, room in (fixed, told):
        if needed and room:
            return InferenceFailed(
                f'the prompt has {needed[1]} tokens; the context of model "{model}" is {room[1]}, '
                "for prompt and reply together. Give it less text at a time"
            )
    return InferenceFailed(
        f'the prompt is longer than the context of model "{model}"; by how much is not said. Give it less text at a time'
    )


def unreachable(place: str, error: httpx2.ConnectError) -> InferenceFailed:
    """The error for a connection that was not made."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return InferenceFailed(
                f"{place} does not prove who it is: its certificate does not hold for that name here. Correct the address"
            )
        if isinstance(cause, ssl.SSLError):
            return InferenceFailed(
                f"{place} does not speak TLS as it should. See whether its address begins with http:// or https://"
            )
        if isinstance(cause, trio.socket.gaierror):
            return InferenceFailed(no_such_machine(urlsplit(place).hostname or "", place))
        cause = cause.__cause__ or cause.__context__
    return InferenceFailed(f"no server answers at {place}. Start it, or correct the address")


def lost_connection(place: str, error: httpx2.TransportError) -> InferenceFailed:
    """The error for a connection that was lost before the answer began."""
    if isinstance(error, httpx2.ProxyError):
        return InferenceFailed(
            f"the proxy on the way to {place} refused the connection. See the variables HTTP_PROXY and HTTPS_PROXY"
        )
    if isinstance(error, httpx2.LocalProtocolError | httpx2.UnsupportedProtocol):
        return InferenceFailed(
            f"{place} cannot be asked: a part of its address or of the key has characters that HTTP does not allow"
        )
    return InferenceFailed(f"{place} broke the connection off. Look at the server's log, and ask again")


def no_such_machine(host: str, place: str) -> str:
    """The message for a name without an address."""
    return f'there is no machine named "{host}" ({place}). Correct the address, or see whether this machine has a network'
