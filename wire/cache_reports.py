"""Messages about KV caches: what each stage holds, and the order to forget it. On the frontend and on control."""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.wire.codec import Message, message
from stagewire.wire.request import CacheStatistics


@dataclass(frozen=True, slots=True)
class DiskCounts:
    """Files of KV blocks since the stage's start: written, not written for want of time or after an error, errors,
    read for requests, and set aside because they were damaged.
    """

    num_written: int
    num_dropped: int
    num_failed: int
    num_read: int
    num_set_aside: int


@dataclass(frozen=True, slots=True)
class StageCache:
    """The KV cache of one stage: blocks that requests use, blocks that rest, and what has happened since its start.

    `max_cached_blocks` may rest. `num_cleared` blocks were forgotten just now. `disk` is None without a directory.
    """

    stage_id: str
    num_blocks: int
    num_used_blocks: int
    num_cached_blocks: int
    max_cached_blocks: int
    block_size: int
    block_bytes: int
    num_cleared: int
    statistics: CacheStatistics
    disk: DiskCounts | None = None


@message(10)
@dataclass(frozen=True, slots=True)
class AskCaches(Message):
    """Client to broker: tell what the stages' caches hold; `clear` makes them forget what no request uses."""

    clear: bool


@message(41)
@dataclass(frozen=True, slots=True)
class Caches(Message):
    """Answer to `AskCaches` of the same `clear`. `silent` are the stages that have not answered within 2 s."""

    clear: bool
    stages: tuple[StageCache, ...]
    silent: tuple[str, ...]


@message(85)
@dataclass(frozen=True, slots=True)
class AskCache(Message):
    """Broker to stage; `ticket` comes back with the answer."""

    ticket: int
    clear: bool


@message(68)
@dataclass(frozen=True, slots=True)
class CacheReport(Message):
    """Stage to broker: the answer to `AskCache`."""

    ticket: int
    cache: StageCache
