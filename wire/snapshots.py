"""Messages about snapshots: which a client has, and what to do with one. On the frontend and on control."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stagewire.wire.codec import Message, message
from stagewire.wire.errors import ErrorCode


class SnapshotAction(str, Enum):
    """What is wanted before the owner's snapshots are told.

    LIST: nothing. FREE: give up the one named `name`, if there is one. RENAME: call it `target` from now on, instead
    of what had that name. EXPORT: write it into the stages' snapshot directories, as the file `target`. LIST_ALL:
    nothing, and those of all clients are told. FREE_ALL: give up all of the owner's.
    """

    LIST = "list"
    FREE = "free"
    RENAME = "rename"
    EXPORT = "export"
    LIST_ALL = "list_all"
    FREE_ALL = "free_all"


@dataclass(frozen=True, slots=True)
class SnapshotOrder:
    """One action; `name` and `target` are empty where it needs none.

    `owner` is the client whose snapshots are meant; empty: those of the client that asks.
    """

    action: SnapshotAction = SnapshotAction.LIST
    name: str = ""
    target: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """The first `num_tokens` of a prompt that every stage of `pipeline` keeps, in `num_blocks` of its KV blocks.

    Of these `num_own_blocks` come free with it; the others belong to other snapshots as well. `has_logits`: a prompt
    that is equal gets its first token without any computing. `expires_s`: its client has gone, and in so many seconds
    it will be freed; None while nothing of that kind is due.
    """

    name: str
    num_tokens: int
    num_blocks: int
    has_logits: bool
    pipeline: str
    client_id: str
    num_own_blocks: int
    expires_s: float | None = None


@message(11)
@dataclass(frozen=True, slots=True)
class AskSnapshots(Message):
    """Client to broker."""

    order: SnapshotOrder


@message(42)
@dataclass(frozen=True, slots=True)
class Snapshots(Message):
    """Answer to `AskSnapshots` of the same `order`: what there is now, and how many it has freed.

    `code` says why the order was not carried out. `silent` are the heads that have not answered in time.
    """

    order: SnapshotOrder
    items: tuple[SnapshotInfo, ...]
    silent: tuple[str, ...]
    code: ErrorCode | None = None
    detail: str = ""
    num_freed: int = 0


@message(86)
@dataclass(frozen=True, slots=True)
class AskHeadSnapshots(Message):
    """Broker to head; `ticket` comes back with the answer. `client_id` is the owner that is meant."""

    ticket: int
    client_id: str
    order: SnapshotOrder


@message(69)
@dataclass(frozen=True, slots=True)
class SnapshotReport(Message):
    """Head to broker: the answer to `AskHeadSnapshots`."""

    ticket: int
    items: tuple[SnapshotInfo, ...]
    code: ErrorCode | None = None
    detail: str = ""
    num_freed: int = 0


def report_of_none(asked: AskHeadSnapshots) -> SnapshotReport:
    """Of a stage that heads no pipeline (any more): it has no snapshots, and cannot do anything with one."""
    if asked.order.action in (SnapshotAction.RENAME, SnapshotAction.EXPORT):
        return SnapshotReport(
            asked.ticket, (), ErrorCode.STAGE_LOST, "the pipeline has ended, and its snapshots with it"
        )
    return SnapshotReport(asked.ticket, ())
