"""What the head has the stages' file threads do, and what they answer; an ordinary decode needs none of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from stagewire.wire.codec import Message, message
from stagewire.wire.errors import ErrorCode
from stagewire.wire.tensor import TokenIds


class FileAction(str, Enum):
    """What is done with files, in a thread of each stage, while steps go on.

    EXPORT: write the blocks of a snapshot into this stage's part of `file`. IMPORT: read that part. FETCH: read from
    the disk tier what follows behind the tokens that the cache holds. What was read waits for the restore of `seq_id`.
    """

    EXPORT = "export"
    IMPORT = "import"
    FETCH = "fetch"


@dataclass(frozen=True, slots=True)
class FileOrder:
    """Each stage starts on it when it has computed the step, and tells the head with `FileDone`.

    `digests` are those of the parts to import, by stage; `token_ids` are those to fetch.
    """

    seq_id: int
    action: FileAction
    file: str = ""
    digests: tuple[str, ...] = ()
    token_ids: TokenIds = field(default_factory=TokenIds)


@message(113)
@dataclass(frozen=True, slots=True)
class FileDone(Message):
    """A stage is through with a `FileOrder`, or could not do it (`code`).

    `num_tokens` is what it holds now of the sequence, in memory or read from files; `digest` is of a part that it has
    written.
    """

    seq_id: int
    stage_index: int
    num_tokens: int
    digest: str = ""
    code: ErrorCode | None = None
    detail: str = ""
