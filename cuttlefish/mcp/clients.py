"""Who calls: as a line of the audit log says it, and as jobs take turns by it."""

from ipaddress import IPv6Address, ip_address
from typing import Any

from mcp.server import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cuttlefish.jobs.turns import Client

__all__ = ["Context", "client_name", "client_of", "machine_of"]

Context = ServerRequestContext[Any, Any]
"""What the SDK tells of a request. `Any`: its own default for what a server keeps and what a transport brings."""

MOST_NAME_CHARS = 100
SESSION = "mcp-session-id"


def client_name(ctx: Context) -> str:
    """What a client calls itself: name and version. Nothing that may be relied on."""
    params = ctx.session.client_params
    if params is None:
        return "unknown"
    name = f"{params.client_info.name} {params.client_info.version}"
    return "".join(c for c in name[: 2 * MOST_NAME_CHARS] if c.isprintable())[:MOST_NAME_CHARS]


def client_of(ctx: Context) -> Client:
    """For whom a call is made: the machine that it comes from and the program there; over standard input and output there is one.

    The machine is told by the connection and cannot be invented; of IPv6 the network of 64 bits counts, within which a machine may
    take any address. The program is the session, where the revision has sessions, and else what it calls itself: who holds the
    token can call itself many things, but gains by it only over other programs of the same machine.
    """
    if ctx.request is None:
        return ()
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:  # where the header of sessions means nothing, and nobody has checked it
        return machine_of(ctx.request.client), client_name(ctx)
    return machine_of(ctx.request.client), ctx.request.headers.get(SESSION)


def machine_of(peer: tuple[str, int] | None) -> str:
    """The machine at the other end of a connection: one name for all addresses that one machine may take."""
    if peer is None:  # not a socket of the network
        return "local"
    address = ip_address(peer[0].partition("%")[0])
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return "local" if address.is_loopback else address.exploded[:19]
        address = address.ipv4_mapped
    return "local" if address.is_loopback else str(address)
