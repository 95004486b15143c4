"""Where a process listens or is dialled: what people write for it, read once; it opens nothing and looks nothing up."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from stagewire.wire.errors import SettingsError

FRONTEND_PORT, CONTROL_PORT = 7070, 7071
LOOPBACK = "127.0.0.1"
DEFAULT_FRONTEND = f"tcp://{LOOPBACK}:{FRONTEND_PORT}"
DEFAULT_CONTROL = f"tcp://{LOOPBACK}:{CONTROL_PORT}"
ENDPOINT_VARIABLE = "STAGEWIRE_ENDPOINT"
"""The environment variable that names the broker for clients and commands that are told nothing else."""

_MAX_CHARS = 300
_MAX_PORT = 65_535
_FORMS = "PORT, HOST:PORT or tcp://HOST:PORT, as in 7070 or 127.0.0.1:7070"
_HOST = re.compile(r"[^\s:/*\[\]@?#;]+")


@dataclass(frozen=True, slots=True)
class Address:
    """A host, without brackets, and a TCP port; None is any free one, for who listens."""

    host: str
    port: int | None

    @property
    def shown_host(self) -> str:
        """With brackets where it is an IPv6 address, and so ready to stand before a port."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def endpoint(self) -> str:
        """As ZeroMQ takes it: `tcp://127.0.0.1:7070`, `tcp://[::1]:*`."""
        return f"tcp://{self}"

    @property
    def is_name(self) -> bool:
        """Whether it takes a look-up to find the machine."""
        return _ip(self.host) is None

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine's own, whatever other machines exist."""
        ip = _ip(self.host)
        return self.host == "localhost" if ip is None else ip.is_loopback

    def __str__(self) -> str:
        return f"{self.shown_host}:{'*' if self.port is None else self.port}"


def dialled(text: str, setting: str) -> Address:
    """What `text` says of a process to be dialled: `7070`, `host:7070`, `[::1]:7070`, or any of them after `tcp://`.

    Raises:
        SettingsError: naming `setting`, and what is wrong with its value.
    """
    address = _read(text, setting)
    if address.port is None:
        raise _wrong(text, setting, "the port must be a number; * is for who listens")
    return address


def bound(text: str, setting: str) -> Address:
    """The same of a process that listens: port `*` or 0 takes a free one, and `localhost` is 127.0.0.1.

    Raises:
        SettingsError: as `dialled`; also where the host is a name, which could mean several addresses.
    """
    address = _read(text, setting)
    if address.host == "localhost":
        return Address(LOOPBACK, address.port)
    if address.is_name:
        raise _wrong(text, setting, f"a process listens at an IP address, and {address.host} is a name")
    return address


def _read(text: str, setting: str) -> Address:
    if not text.isprintable() or len(text) > _MAX_CHARS:
        raise _wrong(text, setting, f"expected {_FORMS}")
    scheme, colons, rest = text.strip().rpartition("://")
    if colons and scheme.lower() != "tcp":
        raise _wrong(text, setting, f"only tcp:// can be had; expected {_FORMS}")
    host, colon, port = rest.removesuffix("/").rpartition(":")
    if host.count(":") and not host.startswith("["):
        raise _wrong(text, setting, "an IPv6 address stands in brackets, as in [::1]:7070")
    if not colon and port != "*" and not _is_number(port):
        raise _wrong(text, setting, f"the port is missing; expected {_FORMS}")
    return Address(_host(host or LOOPBACK, text, setting), _port(port, text, setting))


def _host(host: str, text: str, setting: str) -> str:
    if host.startswith("["):
        ip = _ip(host[1:-1])
        if not host.endswith("]") or ip is None or ip.version != 6:
            raise _wrong(text, setting, f"{host} is no IPv6 address; expected one as in [::1]:7070")
        return host[1:-1]
    if not _HOST.fullmatch(host):
        raise _wrong(text, setting, f"expected {_FORMS}")
    if re.fullmatch(r"[\d.]+", host) and _ip(host) is None:
        raise _wrong(text, setting, f"{host} is no IPv4 address")
    return host


def _port(port: str, text: str, setting: str) -> int | None:
    if port in ("*", "0"):
        return None
    if not _is_number(port) or not 1 <= int(port) <= _MAX_PORT:
        raise _wrong(text, setting, f"the port must be a number from 1 to {_MAX_PORT}")
    return int(port)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _wrong(text: str, setting: str, what: str) -> SettingsError:
    shown = text if text.isprintable() else repr(text)
    return SettingsError(f"{setting}={shown:.80}: {what}")
