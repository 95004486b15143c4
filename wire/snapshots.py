"""Messages about snapshots: which a client has, and the order to free one. On the frontend and on control."""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.wire.codec import Message, message


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """The first `num_tokens` of a prompt that every stage of `pipeline` keeps, in `num_blocks` of its KV blocks."""

    name: str
    num_tokens: int
    num_blocks: int
    pipeline: str


@message(11)
@dataclass(frozen=True, slots=True)
class AskSnapshots(Message):
    """Client to broker: tell which snapshots this client has, after freeing the one named `free`, if any."""

    free: str | None


@message(42)
@dataclass(frozen=True, slots=True)
class Snapshots(Message):
    """Answer to `AskSnapshots` of the same `free`. `silent` are the heads that have not answered within 2 s."""

    free: str | None
    items: tuple[SnapshotInfo, ...]
    silent: tuple[str, ...]


@message(86)
@dataclass(frozen=True, slots=True)
class AskHeadSnapshots(Message):
    """Broker to head; `ticket` comes back with the answer."""

    ticket: int
    client_id: str
    free: str | None


@message(69)
@dataclass(frozen=True, slots=True)
class SnapshotReport(Message):
    """Head to broker: the answer to `AskHeadSnapshots`."""

    ticket: int
    items: tuple[SnapshotInfo, ...]
