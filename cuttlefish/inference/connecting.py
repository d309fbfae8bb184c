"""Reaching a model server: which addresses it has, whether they are this machine's, and a client that calls no others."""

from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx2
import trio

from cuttlefish.errors import ModelLoadFailed
from cuttlefish.inference.addresses import local_addresses, needs_no_lookup
from cuttlefish.inference.backend import Missing
from cuttlefish.inference.remote import ModelServer, Timeouts
from cuttlefish.inference.server_errors import no_such_machine

__all__ = ["missing_server", "open_server"]

LOOK_S = 1.0  # for a server on this machine to take a connection


async def open_server(
    url: str, *, model: str, headers: Mapping[str, str], secret: str | None, local_only: bool, timeouts: Timeouts
) -> ModelServer:
    """A way to a server at `url`, which is not asked anything yet.

    A server on this machine is reached without a proxy and at the addresses that were checked here. With `local_only` any other
    is refused.

    Raises:
        ModelLoadFailed: not on this machine, though it has to be.
    """
    host, port, place = _parts(url)
    try:
        addresses = await local_addresses(host, port)
    except (OSError, UnicodeError):
        if local_only:
            raise ModelLoadFailed(no_such_machine(host, place)) from None
        addresses = ()  # a proxy may know the name
    if local_only and not addresses:
        raise ModelLoadFailed(
            f'"{host}" is not on this machine, and the pipeline is local_only. Use a model on this machine, or allow others'
        )

    def make() -> httpx2.AsyncClient:  # reads certificates, and takes a while
        # A new connection for each prompt: one that was kept may be closed by the server just as it is used again.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        transport = _Pinned(httpx2.AsyncHTTPTransport(limits=limits), addresses) if addresses else None
        return httpx2.AsyncClient(
            headers={"accept-encoding": "identity", "user-agent": "cuttlefish", **headers},
            timeout=httpx2.Timeout(None, connect=timeouts.connect_s),
            follow_redirects=False,
            limits=limits,
            transport=transport,
            trust_env=not addresses,
        )

    return ModelServer(await trio.to_thread.run_sync(make), url.rstrip("/"), place, model, secret, timeouts)


async def missing_server(url: str, *, local_only: bool, start: str) -> Missing | None:
    """Whether a server at `url` is there, if it is on this machine; nothing is said of others, and no name service is asked.

    `start` is the hint for one that is not running.
    """
    host, port, place = _parts(url)
    if not needs_no_lookup(host):
        return None
    try:
        addresses = await local_addresses(host, port)
    except (OSError, UnicodeError):
        return None
    if not addresses:
        reason = f'"{host}" is not on this machine, and the pipeline is local_only'
        return Missing(reason, "Use a model on this machine, or allow others") if local_only else None
    for address in addresses:
        with trio.move_on_after(LOOK_S):
            try:
                stream = await trio.open_tcp_stream(address, port)
            except OSError:
                continue
            await trio.aclose_forcefully(stream)
            return None
    return Missing(f"no server answers at {place}", start)


class _Pinned(httpx2.AsyncBaseTransport):
    """Connects to addresses that were checked, in turn, and nowhere else. The server is still asked by its name."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, addresses: tuple[str, ...]) -> None:
        self._inner = inner
        self._addresses = addresses

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request. Its `host` header and the name for TLS are those of the address that was asked for."""
        request.extensions = {**request.extensions, "sni_hostname": request.url.host}
        asked_for = request.url
        for address in self._addresses[:-1]:
            request.url = asked_for.copy_with(host=address)
            try:
                return await self._inner.handle_async_request(request)
            except httpx2.ConnectError:
                continue
        request.url = asked_for.copy_with(host=self._addresses[-1])
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Close what is below."""
        await self._inner.aclose()


def _parts(url: str) -> tuple[str, int, str]:
    """Host, port, and the server in words for a message."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), f"{parts.scheme}://{parts.netloc}"
