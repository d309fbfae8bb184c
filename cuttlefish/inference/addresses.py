"""Whether a server is on this machine, judged by the addresses that its name has, not by the name."""

import ipaddress
import socket

import trio

__all__ = ["local_addresses", "loopback_of", "needs_no_lookup"]


async def local_addresses(host: str, port: int) -> tuple[str, ...]:
    """The addresses of `host` if all of them are this machine's own; none if one is not.

    Sends no packet but those of a name's resolution. What stands behind an address of this machine (a tunnel, a container) is
    not seen.

    Raises:
        OSError: the name cannot be resolved.
    """
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
    return addresses if all(_is_ours(address) for address in addresses) else ()


def loopback_of(host: str) -> str:
    """Where to call a server that listens on `host`: "all addresses" is no address that one can call."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # nothing is bound to it


def needs_no_lookup(host: str) -> bool:
    """Whether a host is written as an address, or is `localhost`: no name service need be asked for it."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def _is_ours(text: str) -> bool:
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        return True
    if address.is_unspecified or address.is_multicast:
        return False
    # For an address of its own the system answers from that same address; for any other, from the one that leads there.
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((text, 9))  # UDP: nothing is sent
        except OSError:
            return False
        return str(probe.getsockname()[0]) == str(address)
