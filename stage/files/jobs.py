"""What a stage does with files, as data: jobs for its file thread, and what became of them. It touches no file."""

from __future__ import annotations

from dataclasses import dataclass, field

from stagewire.stage.files.snapshot_file import Manifest
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class WritePart:
    """Write what `blocks` hold of these tokens into a part of this prefix; nobody writes to them meanwhile.

    Old parts of the prefix go, except the one with the digest `kept`, which a manifest names.
    """

    epoch: Epoch
    seq_id: int
    prefix: str
    kept: str
    numerics: bytes
    token_bytes: bytes
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadPart:
    """Read the part of this prefix and digest, which must be of this arithmetic, and `max_bytes` long at most."""

    epoch: Epoch
    seq_id: int
    prefix: str
    digest: str
    numerics: bytes
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FetchBlocks:
    """Read from the disk tier the blocks of `token_bytes`, from block `depth` of a sequence on, as far as there are.

    `before` is the chain hash through the block before; `block_bytes` are the token bytes of a whole block.
    """

    epoch: Epoch
    seq_id: int
    numerics: bytes
    before: bytes
    depth: int
    token_bytes: bytes
    block_bytes: int


@dataclass(frozen=True, slots=True)
class ReadManifest:
    """Read which parts make the exported snapshot `name`."""

    epoch: Epoch
    seq_id: int
    name: str


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """All parts of the exported snapshot `name` are there: say so, last of all, if nobody else has meanwhile."""

    epoch: Epoch
    seq_id: int
    name: str
    manifest: Manifest
    replaces: Manifest | None


FileJob = WritePart | ReadPart | FetchBlocks | ReadManifest | WriteManifest


@dataclass(frozen=True, slots=True)
class Staged:
    """Blocks that were read for a sequence, from its block `depth` on, and the tokens they hold."""

    depth: int = 0
    token_bytes: bytes = b""
    contents: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class JobDone:
    """A job's end; `code` says why it failed. `manifest` is what was read, None if there is no such file."""

    job: FileJob
    staged: Staged = field(default_factory=Staged)
    digest: str = ""
    manifest: Manifest | None = None
    code: ErrorCode | None = None
    detail: str = ""
