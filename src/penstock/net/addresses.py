"""Which network addresses the HTTP client may connect to.

The client resolves a host name itself, checks every address of the answer and connects to a checked address, not to the
name. So a name cannot resolve to a public address for the check and to a private one for the connection.
"""

import asyncio
import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

import httpcore2
import httpx2

from penstock.errors import Permanent
from penstock.runtime import Runtime

NAT64 = IPv6Network("64:ff9b::/96")


class AddressRefused(Permanent):
    """The host resolves to an address in a private network, and the caller does not allow these."""

    def __init__(self) -> None:
        super().__init__("the host resolves to a private address, which is not allowed here", reason="private_address")


def is_public(text: str) -> bool:
    """Whether an address is reachable from the whole Internet. Addresses that carry an IPv4 address inside count as
    that address."""
    address: IPv4Address | IPv6Address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        address = inner or address
    return address.is_global and not address.is_multicast


async def refuse_private(runtime: Runtime, url: str) -> None:
    """Raise AddressRefused if the host of a URL is, or resolves to, a private address. Connections are checked again:
    a name may lead elsewhere by then. A name that cannot be resolved now is accepted."""
    parts = urlsplit(url)
    try:
        found = await runtime.run_blocking("net", look_up, parts.hostname or "", parts.port or 443)
    except (OSError, UnicodeError):
        return
    if not all(map(is_public, found)):
        raise AddressRefused


def look_up(host: str, port: int) -> list[str]:
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in answers))


class GuardedNetwork(httpcore2.AsyncNetworkBackend):
    """Opens the TCP connections of the client, to checked addresses only."""

    def __init__(self, runtime: Runtime, *, allow_private: bool) -> None:
        self._runtime = runtime
        self._allow_private = allow_private
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await self._resolve(host, port, timeout)
        if not self._allow_private and not all(map(is_public, addresses)):
            raise AddressRefused
        for address in addresses[:-1]:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._network.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await self._runtime.sleep(seconds)

    async def _resolve(self, host: str, port: int, timeout: float | None) -> Sequence[str]:
        try:
            async with asyncio.timeout(timeout):
                found = await self._runtime.run_blocking("net", look_up, host, port)
        except TimeoutError:
            raise httpcore2.ConnectTimeout("the host name was not resolved in time") from None
        except (OSError, UnicodeError):
            found = []
        if not found:
            raise httpcore2.ConnectError("the host name cannot be resolved")
        return found


class GuardedTransport(httpx2.AsyncHTTPTransport):
    """The transport of httpx2 over connections that `GuardedNetwork` opens."""

    def __init__(self, pool: httpcore2.AsyncConnectionPool) -> None:
        # super().__init__ is not called: it would create a pool that connects to unchecked addresses.
        self._pool = pool
