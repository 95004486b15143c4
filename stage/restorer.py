"""How a stage takes what restores ask for: references to blocks, blocks read from files, and what it tells of both.

Only steps that begin or restore something come here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stagewire.stage.files.jobs import Staged
from stagewire.stage.files.stage_files import StageFiles
from stagewire.stage.kv.blocks import OutOfBlocks
from stagewire.stage.kv.prefix_index import TOKEN_BYTES
from stagewire.stage.kv.store import KvStore
from stagewire.wire.errors import ErrorCode, StagewireError
from stagewire.wire.request import Restored
from stagewire.wire.ring import Phase, Slice, Step

TokenArray = npt.NDArray[np.int32]


class StepFailed(StagewireError):
    """A step could not be computed; the epoch ends with `code`."""

    default_code = ErrorCode.DECODE_FAILED


@dataclass(frozen=True, slots=True)
class Write:
    """Block `block` gets this content, which was read from a file."""

    block: int
    content: bytes


@dataclass(frozen=True, slots=True)
class _Found:
    """What this stage has of a restore's tokens; `num_fetched` of them were read from files."""

    num_asked: int
    num_found: int
    num_fetched: int = 0


_NOTHING = _Found(0, 0)


class Restorer:
    """The restores of one step at one stage; `writes` have to be done before its rows are computed."""

    def __init__(self, store: KvStore, files: StageFiles, stage_index: int) -> None:
        self._store, self._files, self._stage_index = store, files, stage_index
        self._found: dict[int, _Found] = {}
        self.writes: list[Write] = []

    def restore(self, span: Slice, token_ids: TokenArray) -> Slice:
        """Take what the cache holds of a restore's prefix; all of it, or else less is asked of who comes next.

        A restore-and-decode that has shrunk lacks tokens before its row, which is then missed like any other.
        """
        num_asked = span.num_restored
        if not num_asked:
            return span
        if span.phase is Phase.RESUME:
            is_held = span.source is not None and self._store.resume(span.source, span.seq_id, token_ids)
            self._saw(span, _Found(num_asked, num_asked * is_held))
            return span if is_held else replace(span, num_restored=0, missed=True)
        fetched, held = 0, self._store.restore(span.seq_id, token_ids, num_asked)
        if held < num_asked and (staged := self._files.take(span.seq_id)):
            fetched = self._unstage(span, token_ids, held, staged) - held
        self._saw(span, _Found(num_asked, held + fetched, fetched))
        return replace(span, num_restored=held + fetched)

    def _saw(self, span: Slice, found: _Found) -> None:
        self._found[span.seq_id] = found
        self._store.cache.count_lookup(found.num_found, found.num_asked)

    def _unstage(self, span: Slice, token_ids: TokenArray, held: int, staged: Staged) -> int:
        """Put what was read behind the `held` tokens into blocks of the sequence; returns how many it holds then."""
        size = self._store.block_size
        first = held // size
        skipped = (first - staged.depth) * size * TOKEN_BYTES
        end = min(span.num_restored, staged.depth * size + len(staged.token_bytes) // TOKEN_BYTES)
        wanted = token_ids[first * size : end]
        if skipped < 0 or end <= held or staged.token_bytes[skipped : skipped + wanted.nbytes] != wanted.tobytes():
            return held
        if isinstance(self._store.append(span.seq_id, first * size, wanted, is_prompt=False), OutOfBlocks):
            raise no_block_left(span)
        blocks = self._store.block_table(span.seq_id)[first:].tolist()
        contents = staged.contents[first - staged.depth :]
        self.writes += [Write(block, content) for block, content in zip(blocks, contents, strict=False)]
        self._store.cache.count_restored(end - held, num_fetched=end - held)
        return end

    def count_asked(self, step: Step) -> None:
        """The tokens of requests that begin with this step count as held or missing: once, however often they enter.

        A head is asked for a prompt's tokens but its last, or more where it has a snapshot; others for what the
        stages before them hold.
        """
        present, cache = {span.seq_id for span in step.slices}, self._store.cache
        for start in step.starts:
            here = self._found.get(start.seq_id, _NOTHING)
            is_head = self._stage_index == 0
            num_asked = max(here.num_asked, start.num_prompt_tokens - 1) if is_head else here.num_asked
            if start.seq_id in present and num_asked:
                cache.count_tokens(here.num_found - here.num_fetched, here.num_fetched, num_asked - here.num_found)
                if here is _NOTHING:
                    cache.count_lookup(0, num_asked)

    def restored(self, before: tuple[Restored, ...]) -> tuple[Restored, ...]:
        """What became of the step's restores, with this stage's part."""
        earlier = {one.seq_id: one for one in before}
        told: list[Restored] = []
        for seq_id, here in self._found.items():
            last = earlier.pop(seq_id, None) or Restored(seq_id, here.num_asked, here.num_asked)
            is_short = last.missed_at is None and here.num_found < here.num_asked
            told.append(
                Restored(
                    seq_id,
                    here.num_found,
                    last.num_asked,
                    last.num_bytes + self._store.num_bytes(here.num_found),
                    max(last.num_fetched, here.num_fetched),
                    self._stage_index if is_short else last.missed_at,
                )
            )
        return (*earlier.values(), *told)


def no_block_left(span: Slice) -> StepFailed:
    """The head accounts for every block: a missing one is a bug of ours, or a lost message. Never guess."""
    return StepFailed(f"no KV block left for sequence {span.seq_id}")


def check_restore(span: Slice) -> None:
    """A restore begins at position 0; with a decode it names both a prefix and the token to continue from."""
    num_prefix = span.num_tokens - (span.phase is Phase.TRY_RESTORE_DECODE)
    if span.pos_start or num_prefix < 1 or span.num_restored > num_prefix:
        detail = f"{span.phase.value} of sequence {span.seq_id}: needs a prefix from position 0"
        if span.phase is Phase.TRY_RESTORE_DECODE:
            detail += " and behind it the token to continue from"
        raise StepFailed(detail, ErrorCode.RESTORE_INCOMPLETE)
