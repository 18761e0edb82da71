"""Host names that requests may use for a server that listens on this machine only.

Any web page can make its host name resolve to 127.0.0.1 after it is loaded (DNS rebinding). The
browser then treats the server as the page's own origin, and only the Host header reveals it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from paceline.errors import UsageError

__all__ = ["KnownHosts", "is_loopback", "known_hosts"]

_ANY = "*"
_LOCAL = "localhost"
_NAME = re.compile(r"[^\s:/@\[\]]+")
_HEADER = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::[0-9]*)?")


@dataclass(frozen=True)
class KnownHosts:
    """Allowed names and addresses, in addition to loopback, which is always allowed."""

    names: frozenset[str] = frozenset()

    def stranger(self, given: Iterable[str]) -> str | None:
        """The first unknown name in a request's Host headers, without its port.

        A request without the header does not come from a browser, and so from no page.
        """
        names = filter(None, map(_name, given))
        return next((name for name in names if not self._knows(name)), None)

    def _knows(self, name: str) -> bool:
        return name in self.names or is_loopback(name)


def known_hosts(address: str, host: str, allowed: Sequence[str]) -> KnownHosts | None:
    """The names to check requests against; None for no check.

    address: that the server's socket is bound to. host: the same as given by the user. allowed:
    further names; "*" for any. Requests are checked if the address is loopback or names are given.

    Raises UsageError for a name with a scheme or a port.
    """
    for each in allowed:
        if each != _ANY and not (_NAME.fullmatch(each) or _address(_bare(each))):
            raise UsageError(
                f"an allowed host must be a name or address without scheme or port, got {each!r}"
            )
    if _ANY in allowed or not (allowed or is_loopback(address)):
        return None
    return KnownHosts(frozenset(map(_bare, [host, *allowed])))


def is_loopback(name: str) -> bool:
    """Whether a name without a port, or an address, always means the machine itself."""
    if name == _LOCAL or name.endswith(f".{_LOCAL}"):
        return True
    address = _address(name)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address is not None and (mapped or address).is_loopback


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def _name(host: str) -> str:
    """A Host header without its port, if any."""
    found = _HEADER.fullmatch(host.strip())
    return _bare(found[1] if found else host)


def _bare(name: str) -> str:
    """A name in the form in which names are compared."""
    return name.strip().removeprefix("[").removesuffix("]").rstrip(".").lower()
