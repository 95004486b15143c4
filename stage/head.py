"""The head's ring duties: admits what the broker sends, once; reports endings until they are noted.

It owns the scheduler. Messages in, control messages out; the worker asks `next_step` when it can compute.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from stagewire.stage.draft import Lookup, no_lookup
from stagewire.stage.head_measures import HeadMeasures
from stagewire.stage.scheduler import Scheduler
from stagewire.stage.scheduler_limits import SchedulerLimits
from stagewire.stage.sequence import Sequence, SequenceState
from stagewire.stage.snapshots import MAX_SNAPSHOTS, Snapshot
from stagewire.wire.control import Fault, GenerateAck, RequestEnded, RequestEndedAck, RunningRequest
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.limits import MAX_NAME_CHARS, MAX_STOP_TOKENS
from stagewire.wire.request import FinishReason, Usage
from stagewire.wire.ring import CancelRequest, Flow, Miss, SequenceFinish, StartRequest, Step, StepResult

TOMBSTONE_S = 60.0
"""How long the ids of cancelled and ended requests are remembered."""
_MAX_TOMBSTONES = 100_000
_REPORT_AGAIN_S = 1.0

HeadInput = StartRequest | CancelRequest | StepResult | Miss | Flow | RequestEndedAck
HeadOutput = GenerateAck | RequestEnded | Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLimits:
    """What requests are checked against, and when a step is overdue."""

    scheduler: SchedulerLimits
    context_length: int
    vocab_size: int
    end_token_ids: tuple[int, ...]
    step_deadline_s: float

    def max_total_tokens(self, num_pinned_blocks: int) -> int:
        """Tokens that one sequence may ever hold: the context, or what snapshots leave of the smallest KV pool."""
        num_blocks = self.scheduler.num_blocks - num_pinned_blocks
        return min(self.context_length - 1, num_blocks * self.scheduler.block_size)


class HeadCore:
    """All requests of one pipeline epoch, from the feed to their reported ending."""

    def __init__(
        self, epoch: Epoch, limits: HeadLimits, lookup: Lookup = no_lookup, measures: HeadMeasures | None = None
    ) -> None:
        self._epoch, self._limits = epoch, limits
        self._measures = measures or HeadMeasures()
        self._measures.begin_epoch()
        self.scheduler = Scheduler(limits.scheduler, lookup)
        self._by_request: dict[str, Sequence] = {}
        self._cancelled: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._reports: dict[str, tuple[float, RequestEnded]] = {}
        self._next_seq_id = 1

    @property
    def requests(self) -> tuple[RunningRequest, ...]:
        """What this head holds, for the broker's adoption."""
        held = [sequence.request for sequence in self._by_request.values()]
        return tuple(RunningRequest(r.request_id, r.client_id, r.session_id) for r in held)

    def num_sequences(self) -> Counter[str]:
        """By state; a running one whose client does not read is paused."""
        held = list(self._by_request.values())
        return Counter("paused" if one.is_paused else one.state.value for one in held)

    def next_step(self, now: float) -> Step | None:
        step = self.scheduler.next_step(now)
        if step:
            self._measures.launched(step, self.scheduler.num_preemptions, now)
        return step

    def handle(self, message: HeadInput, now: float) -> list[HeadOutput]:
        """Apply one message; returns what the broker must be told."""
        if isinstance(message, StartRequest):
            return self._start(message, now)
        if isinstance(message, StepResult):
            return self._complete(message, now)
        if isinstance(message, CancelRequest):
            self._cancel(message.request_id, now)
        elif isinstance(message, Miss):
            self.scheduler.miss(message)
        elif isinstance(message, Flow):
            self._set_paused(message)
        else:
            self._reports.pop(message.request_id, None)
        return []

    def tick(self, now: float) -> list[HeadOutput]:
        """Time has passed: overdue steps, reports to repeat, tombstones to forget."""
        self._forget_tombstones(now)
        overdue = self.scheduler.overdue_step(now, self._limits.step_deadline_s)
        if overdue is not None:
            detail = f"step {overdue} took longer than {self._limits.step_deadline_s} s"
            return [Fault(self._epoch, ErrorCode.STAGE_LOST, detail)]
        due = [report for at, report in self._reports.values() if now - at >= _REPORT_AGAIN_S]
        self._reports.update({report.request_id: (now, report) for report in due})
        return [*due]

    def _forget_tombstones(self, now: float) -> None:
        """Both tables are in order of time, so the old ones come first."""
        for table in (self._cancelled, self._ended):
            while table and (len(table) > _MAX_TOMBSTONES or now - next(iter(table.values())) >= TOMBSTONE_S):
                del table[next(iter(table))]

    # --- starting ---

    def _start(self, request: StartRequest, now: float) -> list[HeadOutput]:
        if request.request_id in self._by_request or request.request_id in self._ended:
            return [self._acknowledge(request)]
        refusal = self._refusal(request)
        if refusal is not None:
            return [self._acknowledge(request, *refusal)]
        was_cancelled = self._cancelled.pop(request.request_id, None) is not None
        sequence = self._add(request)
        self._measures.arrived(sequence.seq_id, now)
        if was_cancelled:
            self._finish(sequence, FinishReason.CANCELLED)
        elif not sequence.token_ids:
            self._finish(sequence, FinishReason.LENGTH)
        return [self._acknowledge(request)]

    def _add(self, request: StartRequest) -> Sequence:
        if not request.ignore_eos:
            stops = (*request.stop_token_ids, *self._limits.end_token_ids)
            request = replace(request, stop_token_ids=tuple(dict.fromkeys(stops)))
        token_ids = request.prompt_token_ids.to_list()
        budget = request.max_tokens
        if budget is None:
            budget = self._limits.max_total_tokens(self._num_pinned(request)) - len(token_ids)
        sequence = Sequence(self._new_seq_id(), request, token_ids, len(token_ids), budget)
        self._by_request[request.request_id] = sequence
        self._wish(sequence)
        self.scheduler.add(sequence)
        return sequence

    def _new_seq_id(self) -> int:
        self._next_seq_id += 1
        return self._next_seq_id - 1

    def _acknowledge(self, request: StartRequest, code: ErrorCode | None = None, detail: str = "") -> GenerateAck:
        return GenerateAck(request.request_id, self._epoch, code, detail)

    def _refusal(self, request: StartRequest) -> tuple[ErrorCode, str] | None:
        """Why it cannot run: the context-overflow rule, the KV pool, the vocabulary, nothing to decode from."""
        if len(request.stop_token_ids) > MAX_STOP_TOKENS:
            detail = f"{len(request.stop_token_ids)} stop tokens; at most {MAX_STOP_TOKENS}"
            return ErrorCode.INVALID_REQUEST, detail
        num_prompt = len(request.prompt_token_ids)
        limit = self._limits.max_total_tokens(self.scheduler.snapshots.num_blocks)
        budget = 1 if request.max_tokens is None else request.max_tokens
        if num_prompt + budget > limit:
            detail = f"prompt {num_prompt} + max_tokens {budget} + 1 exceeds {limit + 1} tokens (context or KV pool)"
            return ErrorCode.CONTEXT_OVERFLOW, detail
        if num_prompt == 0:
            needs_token = budget > 0
            return (ErrorCode.DECODE_SEED_MISSING, "no token to start decoding from") if needs_token else None
        token_ids = request.prompt_token_ids.to_numpy()
        low, high = int(token_ids.min()), int(token_ids.max())
        if low < 0 or high >= self._limits.vocab_size:
            detail = f"token id {low if low < 0 else high} is outside 0..{self._limits.vocab_size - 1}"
            return ErrorCode.TOKEN_OUT_OF_VOCABULARY, detail
        return self._bias_refusal(request) or self._snapshot_refusal(request)

    def _bias_refusal(self, request: StartRequest) -> tuple[ErrorCode, str] | None:
        for token_id, _ in request.sampling.logit_bias:
            if token_id >= self._limits.vocab_size:
                detail = f"logit_bias token id {token_id} is outside 0..{self._limits.vocab_size - 1}"
                return ErrorCode.TOKEN_OUT_OF_VOCABULARY, detail
        return None

    # --- snapshots ---

    def snapshots_of(self, client_id: str) -> list[Snapshot]:
        """The complete ones of this client, by name."""
        return self.scheduler.snapshots.of_client(client_id)

    def free_snapshot(self, client_id: str, name: str) -> None:
        """Give it up on all stages, with the next step; an unknown name changes nothing."""
        snapshot = self.scheduler.snapshots.find(client_id, name)
        if snapshot is not None:
            self.scheduler.free(snapshot.seq_id)

    def _wish(self, sequence: Sequence) -> None:
        request = sequence.request
        if request.snapshot is not None:
            num_tokens = request.snapshot.num_tokens or sequence.num_prompt_tokens
            snapshot = Snapshot(self._new_seq_id(), request.client_id, request.snapshot.name, num_tokens)
            self.scheduler.snapshots.wish(snapshot, sequence)

    def _num_pinned(self, request: StartRequest) -> int:
        """Blocks that snapshots hold once this request's is among them."""
        snapshots, wish = self.scheduler.snapshots, request.snapshot
        if wish is None:
            return snapshots.num_blocks
        num_tokens = len(request.prompt_token_ids) if wish.num_tokens is None else wish.num_tokens
        return snapshots.num_blocks + snapshots.blocks_for(num_tokens)

    def _snapshot_refusal(self, request: StartRequest) -> tuple[ErrorCode, str] | None:
        """Whatever is pinned, the longest request that is here must still fit beside it."""
        wish, num_prompt = request.snapshot, len(request.prompt_token_ids)
        if wish is None:
            return None
        num_tokens = num_prompt if wish.num_tokens is None else wish.num_tokens
        if not 0 < len(wish.name) <= MAX_NAME_CHARS or not 0 < num_tokens <= num_prompt:
            detail = f"snapshot {wish.name!r:.80} of {num_tokens} tokens: a name, and 1 to {num_prompt} prompt tokens"
            return ErrorCode.INVALID_REQUEST, detail
        needs = [s.num_prompt_tokens + s.max_tokens for s in self._by_request.values()]
        needs.append(num_prompt + (1 if request.max_tokens is None else request.max_tokens))
        no_room = max(needs) > self._limits.max_total_tokens(self._num_pinned(request))
        if no_room or len(self.scheduler.snapshots) >= MAX_SNAPSHOTS:
            detail = (
                f"no KV blocks left to keep {num_tokens} tokens; free a snapshot, or give the stages more kv_tokens"
            )
            return ErrorCode.SNAPSHOT_LIMIT, detail
        return None

    # --- ending ---

    def _cancel(self, request_id: str, now: float) -> None:
        sequence = self._by_request.get(request_id)
        if sequence is not None:
            self._finish(sequence, FinishReason.CANCELLED)
        elif request_id not in self._ended:
            # The table stays in order of time: the first cancel counts.
            self._cancelled.setdefault(request_id, now)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self.scheduler.finish(sequence, SequenceFinish(sequence.seq_id, reason))

    def _complete(self, result: StepResult, now: float) -> list[HeadOutput]:
        self._measures.completed(result, now)
        reports: list[HeadOutput] = []
        for sequence, item in self.scheduler.complete(result):
            request_id = sequence.request.request_id
            del self._by_request[request_id]
            if sequence.keep is not None:
                self.scheduler.free(sequence.keep.seq_id)  # it ended before it got there
            usage = item.usage or Usage(sequence.num_prompt_tokens, 0)
            reason = item.finish_reason or FinishReason.FAILED
            report = RequestEnded(request_id, self._epoch, reason, item.code, usage)
            self._reports[request_id] = (now, report)
            self._ended[request_id] = now
            reports.append(report)
        return reports

    def _set_paused(self, flow: Flow) -> None:
        sequence = self._by_request.get(flow.request_id)
        if sequence is not None and sequence.state is not SequenceState.ENDING:
            sequence.is_paused = flow.paused

    def check_invariants(self) -> None:
        """Raise AssertionError if the books do not add up."""
        self.scheduler.check_invariants()
        assert not set(self._by_request) & set(self._ended)
