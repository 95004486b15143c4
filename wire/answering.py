"""What was found at an address where a broker was expected, and what is to be said of it. It looks nothing up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stagewire.wire.address import CONTROL_PORT, FRONTEND_PORT, Address


class Wanted(str, Enum):
    """Which of the broker's ports somebody looks for; the value says who connects there."""

    FRONTEND = "clients"
    CONTROL = "stages"


class Kind(str, Enum):
    """What answers at an address.

    BROKER is a ROUTER socket, of whichever port; MACHINE_AWAY: neither a connection nor a refusal came back.
    SILENT: something accepts connections and says nothing.
    """

    NO_SUCH_NAME = "no_such_name"
    ONLY_IPV6 = "only_ipv6"
    NO_LISTENER = "no_listener"
    MACHINE_AWAY = "machine_away"
    SILENT = "silent"
    BROKER = "broker"
    BROKER_METRICS = "broker_metrics"
    STAGE_METRICS = "stage_metrics"
    STAGE_DATA = "stage_data"
    CLIENT_RETURN = "client_return"
    WEB_SERVER = "web_server"
    STRANGER = "stranger"


@dataclass(frozen=True, slots=True)
class Found:
    """`detail`: the system's word, an IPv6 address, or a stage's name. The endpoints: what a metrics port tells."""

    kind: Kind
    detail: str = ""
    frontend: str = ""
    control: str = ""


_CIRCUMSTANCES = {
    Kind.NO_LISTENER: "nothing listens there",
    Kind.MACHINE_AWAY: "no machine answers there",
    Kind.SILENT: "something accepts connections there and says nothing",
    Kind.BROKER: "something accepts connections there as a broker does, and does not answer",
}
"""Which may change by itself, and so only explain why nobody has answered."""


def mistake(found: Found, address: Address, wanted: Wanted) -> str | None:
    """What is wrong with the address itself, and what to write instead; None where waiting may help."""
    if found.kind in _CIRCUMSTANCES:
        return None
    if found.kind is Kind.NO_SUCH_NAME:
        return f"the name {address.host} does not resolve ({found.detail}); check it, or write an IP address"
    if found.kind is Kind.ONLY_IPV6:
        return f"{address.host} has no IPv4 address; write tcp://[{found.detail}]:{address.port}"
    return f"{address} is {_described(found)}; {_right_port(found, wanted)}"


def circumstance(found: Found) -> str:
    """Why nobody has answered, in words; empty where the address itself is wrong."""
    return _CIRCUMSTANCES.get(found.kind, "")


def occupant(found: Found) -> str:
    """Who holds a port that somebody else wants."""
    if found.kind is Kind.BROKER:
        return "a Stagewire broker"
    is_unknown = found.kind in _CIRCUMSTANCES or found.kind in (Kind.STRANGER, Kind.WEB_SERVER)
    return "another program" if is_unknown else f"a Stagewire process ({_described(found)})"


def _described(found: Found) -> str:
    match found.kind:
        case Kind.BROKER_METRICS:
            return "the broker's metrics port"
        case Kind.STAGE_METRICS:
            return f"the metrics port of {found.detail or 'a stage'}"
        case Kind.STAGE_DATA:
            return "a stage's data port, for its neighbours"
        case Kind.CLIENT_RETURN:
            return "where a client waits for its tokens"
        case Kind.WEB_SERVER:
            return "a web server, and no broker"
    return "no broker: something else answers there"


def _right_port(found: Found, wanted: Wanted) -> str:
    told = found.frontend if wanted is Wanted.FRONTEND else found.control
    if told:
        return f"{wanted.value} use {told.removeprefix('tcp://')}"
    usual = FRONTEND_PORT if wanted is Wanted.FRONTEND else CONTROL_PORT
    return f"{wanted.value} use the broker's {wanted.name.lower()} port, {usual} unless it was told another"
