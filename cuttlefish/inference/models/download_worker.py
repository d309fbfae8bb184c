"""The process that asks for a file over HTTP: `download_worker.py URL OFFSET`. It knows nothing of what the file is for.

A process, because looking a name up, connecting and shaking hands cannot be stopped in a thread. It ends when its standard input
does: the parent holds the other end, however it dies. It writes to a pipe and to no file, so a later pull is alone with its part.

Writes one line of JSON to standard output, and after a status of 200 or 206 the bytes as they come:

    {"status": 206, "length": 100, "range": "bytes 50-149/150"}      what the server answered; null for what it did not say
    {"error": "certificate"}                                         no answer: its certificate is not trusted
    {"error": "unreachable"}                                         no answer for any other reason

Run by its path with `python -I`: importing `cuttlefish` would take longer than the rest of its start.
"""

import http.client
import json
import os
import ssl
import sys
import threading
import urllib.error
import urllib.request
from email.message import Message

TIMEOUT_S = 60.0
CHUNK_BYTES = 256 << 10
CERTIFICATES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # pip heeds them; SSL_CERT_FILE is heeded by Python itself


def main(url: str, offset: int) -> None:
    """Ask for `url` from byte `offset` on."""
    headers = {"User-Agent": "cuttlefish", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    try:
        answer = _opener().open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S)  # noqa: S310 — the opener knows only HTTP
    except urllib.error.HTTPError as refusal:
        _say(_head(refusal.code, refusal.headers))
        return
    except (OSError, http.client.HTTPException, ValueError) as e:
        reason = e.reason if isinstance(e, urllib.error.URLError) else e
        _say({"error": "certificate" if isinstance(reason, ssl.SSLCertVerificationError) else "unreachable"})
        return
    with answer:
        _say(_head(answer.status, answer.headers))
        while chunk := answer.read1(CHUNK_BYTES):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()


def _opener() -> urllib.request.OpenerDirector:
    """HTTP and HTTPS, directly or by the proxies of the environment; no files, whatever a redirect says."""
    trusted = ssl.create_default_context()
    for name in CERTIFICATES:
        if place := os.environ.get(name):
            trusted.load_verify_locations(**{"capath" if os.path.isdir(place) else "cafile": place})  # noqa: PTH112 — pathlib loads slowly
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=trusted),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _head(status: int, headers: Message) -> dict[str, object]:
    length = headers.get("Content-Length", "")
    return {"status": status, "length": int(length) if length.isdecimal() else None, "range": headers.get("Content-Range")}


def _say(head: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(head) + "\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except (OSError, http.client.HTTPException):  # the server broke off, or the parent is gone: it sees how much came
        os._exit(1)  # without a flush, which would fail too
