"""How many file descriptors each process needs for whom it serves, computed beforehand; it asks no system.

Counted on running processes (tests/cluster/test_descriptors.py holds them to it). A socket of libzmq takes one for its
mailbox and one for each connection; interpreter, context, monitors, log and endpoint make up the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.wire.counted import counted
from stagewire.wire.errors import ErrorCode, SettingsError

FEW_CLIENTS = 8
"""A cluster that could not hold so many is refused before it starts."""
_SPARE = 8
"""For what comes and goes: a scrape, a file, a connection that is refused."""


@dataclass(frozen=True, slots=True)
class Need:
    """Descriptors of one process: `own`, whoever comes, and `each` on top for every client."""

    process: str
    own: int
    each: int

    def of(self, num_clients: int) -> int:
        """For so many clients."""
        return self.own + self.each * num_clients

    def clients_within(self, limit: int) -> int:
        """How many clients it can hold with `limit` descriptors."""
        return max(0, limit - self.own) // self.each


def broker_need(num_stages: int, num_pipelines: int) -> Need:
    """Two connections of each stage, a feed to each pipeline, one connection of each client."""
    return Need("the broker", 17 + _SPARE + 2 * num_stages + 2 * num_pipelines, each=1)


def stage_need() -> Need:
    """Of any stage, as the tail of its pipeline: a link to each client, with its monitor."""
    return Need("a stage", 28 + _SPARE, each=4)


def client_need() -> Need:
    """Of a process with one client; it serves nobody else."""
    return Need("a client", 32, each=0)


def starter_need(num_children: int) -> Need:
    """Of the process that starts a cluster and asks it whether it serves."""
    return Need("the process that starts the cluster", client_need().own + _SPARE + num_children, each=0)


def cluster_needs(num_stages_each: tuple[int, ...]) -> tuple[Need, ...]:
    """Of all processes that a cluster starts; a number of stages for each pipeline."""
    return broker_need(sum(num_stages_each), len(num_stages_each)), stage_need()


def check_limit(need: Need, num_clients: int, limit: int) -> None:
    """Returns where a process that may open `limit` descriptors can hold so many clients.

    Raises:
        SettingsError: it cannot; the message says how many it needs.
    """
    needed = need.of(num_clients)
    if limit >= needed:
        return
    clients = f" for {counted(num_clients, 'client')}" if need.each else ""
    detail = f"{need.process} needs {needed} file descriptors{clients}, and may open {limit}: raise it, as with"
    raise SettingsError(f"{detail} `ulimit -n {_round(needed)}`", ErrorCode.DESCRIPTOR_LIMIT)


def _round(needed: int) -> int:
    """The next power of two that leaves room."""
    return int(1 << (2 * needed - 1).bit_length())
