"""Whether the head can take a request: its length, its tokens, what it wants kept. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from stagewire.stage.files.snapshot_file import is_file_name
from stagewire.stage.head.file_waits import HeadFiles
from stagewire.stage.head.limits import HeadLimits
from stagewire.stage.head.snapshot_desk import Refusal, SnapshotDesk
from stagewire.stage.schedule.sequence import Sequence
from stagewire.stage.schedule.snapshots import Snapshots
from stagewire.wire.errors import ErrorCode
from stagewire.wire.limits import MAX_NAME_CHARS, MAX_STOP_TOKENS
from stagewire.wire.ring import StartRequest


class RequestCheck:
    """The rules of one pipeline epoch."""

    def __init__(self, limits: HeadLimits, snapshots: Snapshots, desk: SnapshotDesk, files: HeadFiles) -> None:
        self._limits, self._snapshots, self._desk, self._files = limits, snapshots, desk, files

    def refusal(self, request: StartRequest, running: Iterable[Sequence]) -> Refusal | None:
        """Why it cannot run: the context-overflow rule, the KV pool, the vocabulary, nothing to decode from."""
        if len(request.stop_token_ids) > MAX_STOP_TOKENS:
            detail = f"{len(request.stop_token_ids)} stop tokens; at most {MAX_STOP_TOKENS}"
            return ErrorCode.INVALID_REQUEST, detail
        num_prompt = len(request.prompt_token_ids)
        if num_prompt and request.snapshot and request.snapshot.file is not None:
            return ErrorCode.INVALID_REQUEST, "a snapshot from a file has its own prompt; give none beside it"
        limit = self._limits.max_total_tokens(self._snapshots.num_blocks)
        budget = 1 if request.max_tokens is None else request.max_tokens
        if num_prompt + budget > limit:
            kept = self._snapshots.num_blocks * self._limits.scheduler.block_size
            beside = f", of which snapshots keep {kept}" if kept else ""
            detail = (
                f"prompt {num_prompt} + max_tokens {budget} + 1 exceeds {limit + 1} tokens (context or KV pool{beside})"
            )
            return ErrorCode.CONTEXT_OVERFLOW, detail
        if num_prompt == 0:
            return self._of_empty(request, budget)
        return self._of_tokens(request) or self._desk.refusal(request, running)

    def _of_empty(self, request: StartRequest, budget: int) -> Refusal | None:
        """Without a prompt there is nothing to decode from, but an exported snapshot may be read."""
        if budget > 0:
            return ErrorCode.DECODE_SEED_MISSING, "no token to start decoding from"
        asked = request.snapshot
        if asked and (asked.file is None or not is_file_name(asked.file) or not 0 < len(asked.name) <= MAX_NAME_CHARS):
            return (
                ErrorCode.INVALID_REQUEST,
                f"snapshot {asked.name!r:.80}: needs a name, and a prompt or a file's name",
            )
        if asked and not self._files.has_room:
            return ErrorCode.QUEUE_FULL, "too many snapshots are being imported and exported; try again"
        return None

    def _of_tokens(self, request: StartRequest) -> Refusal | None:
        token_ids, vocab_size = request.prompt_token_ids.to_numpy(), self._limits.vocab_size
        low, high = int(token_ids.min()), int(token_ids.max())
        if low < 0 or high >= vocab_size:
            detail = f"token id {low if low < 0 else high} is outside 0..{vocab_size - 1}"
            return ErrorCode.TOKEN_OUT_OF_VOCABULARY, detail
        for token_id, _ in request.sampling.logit_bias:
            if token_id >= vocab_size:
                return (
                    ErrorCode.TOKEN_OUT_OF_VOCABULARY,
                    f"logit_bias token id {token_id} is outside 0..{vocab_size - 1}",
                )
        return None
