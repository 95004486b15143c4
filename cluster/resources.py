"""What a cluster takes from its machine, packages, ports, descriptors: whether it is there, before anything starts."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from importlib.util import find_spec

from stagewire.cluster.spec import BrokerSpec, ClusterSpec
from stagewire.sockets.descriptor_needs import FEW_CLIENTS, check_limit, cluster_needs, starter_need
from stagewire.sockets.open_files import highest_open_file_limit, open_file_limit
from stagewire.sockets.probe import PROBE_S, probe_within
from stagewire.wire.address import LOOPBACK, Address, bound
from stagewire.wire.answering import occupant
from stagewire.wire.errors import ClusterError, ErrorCode, SettingsError
from stagewire.wire.extras import EXTRAS, install_command


def check_packages() -> None:
    """Returns where stages find what they import; they run with this very Python.

    Raises:
        ClusterError: they do not; the message says what to install.
    """
    missing = [package for package in EXTRAS["native"] if find_spec(package) is None]
    if missing:
        detail = f"stages need the Python packages {' and '.join(missing)}: {install_command('native')}"
        raise ClusterError(detail)


def check_resources(spec: ClusterSpec) -> None:
    """Returns where a cluster can be started.

    Raises:
        SettingsError: as `check_ports` and `check_open_files`.
    """
    check_ports(spec.broker)
    check_open_files(spec)


def check_open_files(spec: ClusterSpec) -> None:
    """Returns where all processes may open what they need.

    Children raise their own limits as far as they may; this process is its caller's, and is left as it is.

    Raises:
        SettingsError: one of them needs more; the message says how many.
    """
    num_stages_each = tuple(len(pipeline) for pipeline in spec.pipelines)
    for need in sorted(cluster_needs(num_stages_each), key=lambda need: -need.of(FEW_CLIENTS)):
        check_limit(need, FEW_CLIENTS, highest_open_file_limit())
    check_limit(starter_need(1 + sum(num_stages_each)), FEW_CLIENTS, open_file_limit())


@dataclass(frozen=True, slots=True)
class PortUse:
    """A port that is fixed beforehand, and what for."""

    address: Address
    purpose: str


def fixed_ports(broker: BrokerSpec) -> tuple[PortUse, ...]:
    """Those that the broker cannot choose by itself.

    Raises:
        SettingsError: an endpoint is none.
    """
    uses = [
        PortUse(bound(broker.frontend_endpoint, "frontend_endpoint"), "where clients connect"),
        PortUse(bound(broker.control_endpoint, "control_endpoint"), "where stages connect"),
    ]
    if broker.metrics_port not in (None, "off"):
        uses.append(PortUse(bound(f"{LOOPBACK}:{broker.metrics_port}", "metrics_port"), "for its metrics"))
    return tuple(use for use in uses if use.address.port is not None)


def check_ports(broker: BrokerSpec) -> None:
    """Returns where all of them can be had now.

    Raises:
        SettingsError: PORT_IN_USE, naming each that is taken, what for, and who answers there; INVALID_SETTING, the
            system does not give one.
    """
    taken = []
    for use in fixed_ports(broker):
        error = why_not_free(use.address)
        if error is not None and error.errno == errno.EADDRINUSE:
            holder = occupant(probe_within(use.address, PROBE_S + 0.5))
            taken.append(f"port {use.address.port}, {use.purpose}, is taken by {holder}")
        elif error is not None:
            detail = f"port {use.address.port}, {use.purpose}, cannot be had: {error.strerror}"
            raise SettingsError(detail, ErrorCode.INVALID_SETTING)
    if taken:
        raise SettingsError("; ".join(taken), ErrorCode.PORT_IN_USE)


def why_not_free(address: Address) -> OSError | None:
    """The system's word against listening there now; None where it can be had."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.create_server((address.host, address.port), family=family):
            return None
    except OSError as error:
        return error
