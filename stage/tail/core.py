"""The tail's duties: draw tokens, decide when a request ends, write its one ending, return all of it.

Per step, in this order: `begin` (who is new), `draw` (the sampling, which takes time) and `record` (the bookkeeping).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from stagewire.stage.tail.link_instructions import LinkEnd, LinkInstruction
from stagewire.stage.tail.philox import Place
from stagewire.stage.tail.return_link import DIAL_S, ReturnLink
from stagewire.stage.tail.sampler import InvalidLogits, PenaltyCounts, Sampled, sample
from stagewire.stage.timing.time_account import StepCost, TimeAccount
from stagewire.stage.timing.timing_line import timing_line
from stagewire.wire.codec import Message
from stagewire.wire.counters import TailCounters
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.limits import MAX_DETAIL_CHARS
from stagewire.wire.note import Note
from stagewire.wire.request import NO_STATISTICS, CacheStatistics, Ending, FinishReason, StageTiming, Unrecorded, Usage
from stagewire.wire.returns import ReturnItem, TokenLogprobs
from stagewire.wire.ring import RESTORES, Phase, SequenceFinish, SequenceResult, SequenceStart, Slice, Step, StepResult

_Items = dict[str, list[ReturnItem]]


@dataclass(slots=True)
class _Request:
    """A running request: its tokens so far, and what it has used. `num_cached` is what its first slice restored."""

    start: SequenceStart
    counts: PenaltyCounts
    time: TimeAccount
    num_tokens: int = 0
    num_generated: int = 0
    num_cached: int | None = None
    num_kept: int = 0
    cache: CacheStatistics = NO_STATISTICS
    unrecorded: Unrecorded | None = None

    def all_cache(self) -> CacheStatistics:
        """With what its release will insert."""
        rest = self.unrecorded
        if rest is None:
            return self.cache
        return self.cache.plus(CacheStatistics(recorded_tokens=rest.num_tokens, recorded_bytes=rest.num_bytes))


@dataclass(frozen=True, slots=True)
class Draw:
    """What sampling gave one slice: a token, or why there is none."""

    seq_id: int
    sampled: Sampled | None
    failure: str = ""


class TailCore:
    """All requests of one pipeline epoch at its tail, and the links to their clients."""

    def __init__(
        self, epoch: Epoch, vocab_size: int, draw_nonce: Callable[[], bytes], dial_timeout_s: float = DIAL_S
    ) -> None:
        self._epoch, self._vocab_size, self._draw_nonce = epoch, vocab_size, draw_nonce
        self._dial_timeout_s = dial_timeout_s
        self._requests: dict[int, _Request] = {}
        self._kept_logits: dict[int, npt.NDArray[np.float32]] = {}
        self._links: dict[str, ReturnLink] = {}
        self._link_numbers = count(1)
        self._lines: list[Note] = []
        self._last_booked: list[TimeAccount] = []
        self._num_prompt = self._num_cached = self._num_drawn = 0

    # --- steps ---

    def begin(self, step: Step, now: float) -> list[LinkInstruction]:
        """Take note of the requests that start with `step`, and of the tokens it carries."""
        out: list[LinkInstruction] = []
        for seq_id in step.releases:
            self._kept_logits.pop(seq_id, None)
        for start in step.starts:
            counts = PenaltyCounts(self._vocab_size, start.sampling)
            self._requests[start.seq_id] = _Request(start, counts, TimeAccount(start.admission_s))
            out += self._link(start.client_id).open(start.request_id, start.offer, now)
        self._take_tokens(step)
        return out

    def _take_tokens(self, step: Step) -> None:
        """Add tokens not seen before to each history; a replayed one is counted already.

        A restore's tokens are its prompt's, whether the stages hold them or not.
        """
        end = 0
        for span in step.slices:
            end += span.num_tokens
            request = self._requests.get(span.seq_id)
            if request is not None and (span.phase in RESTORES or not span.missed):
                num_new = min(span.num_tokens, span.pos_start + span.num_tokens - request.num_tokens)
                if num_new > 0:
                    request.num_tokens += num_new
                    if request.counts.is_counting:
                        request.counts.add_prompt(step.token_ids.to_numpy()[end - num_new : end])

    def draw(self, step: Step, logits: npt.NDArray[np.float32] | None) -> list[Draw]:
        """Sample for each slice that asks for it, and keep the logits that belong to snapshots.

        `logits` float32 [R, V] has a row for each slice with logits; None if there are none.
        """
        rows = iter(() if logits is None else logits)
        draws: list[Draw] = []
        for span in step.slices:
            row = self._kept_logits.get(span.source or 0) if span.phase is Phase.RESUME else None
            if span.has_logits:
                row = next(rows)
            if span.keep and span.keeps_end and row is not None:
                self._kept_logits[span.keep.seq_id] = row.copy()
            if span.sample and not span.missed:
                draws.append(self._draw_one(span, row))
        return draws

    def _draw_one(self, span: Slice, row: npt.NDArray[np.float32] | None) -> Draw:
        request = self._requests.get(span.seq_id)
        if request is None:
            return Draw(span.seq_id, None)
        if row is None:
            return Draw(span.seq_id, None, "the snapshot has no logits")
        start = request.start
        place = Place(start.prompt_digest, start.choice_index, span.pos_start + span.num_tokens)
        try:
            return Draw(span.seq_id, sample(row, start.sampling, request.counts, place))
        except InvalidLogits as error:
            return Draw(span.seq_id, None, error.detail)
        except Exception as error:  # noqa: BLE001  one sequence's parameters must not end the others' epoch
            return Draw(span.seq_id, None, f"sampling failed: {type(error).__name__}: {error}"[:MAX_DETAIL_CHARS])

    def record(
        self, step: Step, draws: Sequence[Draw], timings: tuple[StageTiming, ...], now: float
    ) -> tuple[StepResult, list[LinkInstruction | Note]]:
        """Book what `draw` gave: tokens and endings to the clients, the result to the head."""
        self._add_up(step, StepCost.of(timings), now)
        for span in step.slices:
            if span.keep and span.seq_id in self._requests:
                self._requests[span.seq_id].num_kept = span.keep.num_tokens
        items: dict[str, list[ReturnItem]] = {}
        results = [self._book_draw(draw, items) for draw in draws if draw.seq_id in self._requests]
        results += [self._book_finish(finish, items) for finish in step.finishes if finish.seq_id in self._requests]
        sends = [i for client_id, batch in items.items() for i in self._links[client_id].deliver(batch, now)]
        lines, self._lines = self._lines, []
        kept = [span.keep.seq_id for span in step.slices if span.keep]
        result = StepResult(step.step_id, tuple(results), timings, step.restored, tuple(kept), step.cache)
        return result, [*sends, *lines]

    def _add_up(self, step: Step, cost: StepCost, now: float) -> None:
        """What a step cost and found, for each request that it held."""
        for account in self._last_booked:
            account.wrote(cost)
        self._last_booked = []
        waits = {wait.seq_id: wait for wait in step.waits}
        last = {span.seq_id: span for span in step.slices}
        for seq_id, span in {span.seq_id: span for span in reversed(step.slices)}.items():
            request = self._requests.get(seq_id)
            if request is None:
                continue
            if request.num_cached is None:
                request.num_cached = min(span.num_restored, request.start.num_prompt_tokens)
                self._num_prompt += request.start.num_prompt_tokens
                self._num_cached += request.num_cached
            request.unrecorded = None
            if step.cache != NO_STATISTICS:
                request.cache = request.cache.plus(step.cache)
            request.time.step(span, last[seq_id], waits.get(seq_id), cost, now)
            self._last_booked.append(request.time)
        self._add_up_endings(step, set(last))

    def _add_up_endings(self, step: Step, present: set[int]) -> None:
        """What a release gives to the caches: it was in this step, or, should the request end here, comes after it."""
        for finish in step.finishes:
            request = self._requests.get(finish.seq_id)
            if request is not None and finish.seq_id not in present:
                request.cache, request.unrecorded = request.cache.plus(step.cache), None
        for one in step.unrecorded:
            request = self._requests.get(one.seq_id)
            if request is not None:
                request.unrecorded = one

    def _book_draw(self, draw: Draw, items: dict[str, list[ReturnItem]]) -> SequenceResult:
        request = self._requests[draw.seq_id]
        if draw.sampled is None:
            return self._end(request, (), FinishReason.FAILED, items, ErrorCode.DECODE_FAILED, draw.failure)
        token_id = draw.sampled.token_id
        request.counts.add_generated(token_id)
        request.num_tokens += 1
        request.num_generated += 1
        self._num_drawn += 1
        reason = self._finish_reason(request, token_id)
        if reason is not None:
            return self._end(request, (draw.sampled,), reason, items)
        self._return(request, (draw.sampled,), None, items)
        return SequenceResult(draw.seq_id, (token_id,), None)

    @staticmethod
    def _finish_reason(request: _Request, token_id: int) -> FinishReason | None:
        if token_id in request.start.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if request.num_generated >= request.start.max_tokens else None

    def _book_finish(self, finish: SequenceFinish, items: dict[str, list[ReturnItem]]) -> SequenceResult:
        request = self._requests[finish.seq_id]
        return self._end(request, (), finish.finish_reason, items, finish.code, finish.detail, finish.stop_after)

    def _end(
        self,
        request: _Request,
        sampled: tuple[Sampled, ...],
        reason: FinishReason,
        items: _Items,
        code: ErrorCode | None = None,
        detail: str = "",
        stop_after: int | None = None,
    ) -> SequenceResult:
        """Write the ending: the only place in the system where a started request gets one."""
        num_wanted = request.num_generated if stop_after is None else min(stop_after, request.num_generated)
        usage = Usage(request.start.num_prompt_tokens, num_wanted, request.num_cached or 0)
        ending = Ending(
            reason, request.num_generated, usage, request.time.stages(), code, detail, request.all_cache(),
            request.num_kept, request.time.parts(), request.start.restore_note,
        )  # fmt: skip
        self._lines.append(timing_line(request.start, ending, self._epoch))
        self._return(request, sampled, ending, items)
        del self._requests[request.start.seq_id]
        token_ids = tuple(s.token_id for s in sampled)
        return SequenceResult(request.start.seq_id, token_ids, reason, code, usage)

    @staticmethod
    def _return(request: _Request, sampled: tuple[Sampled, ...], ending: Ending | None, items: _Items) -> None:
        first = request.num_generated - len(sampled)
        logprobs = tuple(TokenLogprobs(s.logprob, s.top_logprobs) for s in sampled if s.logprob is not None)
        token_ids = tuple(s.token_id for s in sampled)
        item = ReturnItem(request.start.request_id, first, token_ids, logprobs, ending)
        # A step brings one item for each request: a finish for one that has just ended was dropped before.
        items.setdefault(request.start.client_id, []).append(item)

    # --- links ---

    def _link(self, client_id: str) -> ReturnLink:
        if client_id not in self._links:
            self._links[client_id] = ReturnLink(
                self._epoch, client_id, self._draw_nonce, self._link_numbers, self._dial_timeout_s
            )
        return self._links[client_id]

    def receive(self, client_id: str, link: int | None, message: Message, now: float) -> list[LinkInstruction]:
        """A message from a client, on a direct link or (None) relayed by the broker."""
        target = self._links.get(client_id)
        return target.receive(link, message, now) if target else []

    def lose(self, client_id: str, link: int, now: float, end: LinkEnd = LinkEnd.BROKEN) -> list[LinkInstruction]:
        """A direct link is over."""
        target = self._links.get(client_id)
        return target.lose(link, now, end) if target else []

    def reset_relays(self, now: float) -> list[LinkInstruction]:
        """The broker is another one: what was under way through the old one may be lost."""
        return [i for link in self._links.values() for i in link.reset_relay(now)]

    def tick(self, now: float) -> list[LinkInstruction]:
        """Time has passed."""
        out = [i for link in self._links.values() for i in link.tick(now)]
        for client_id in [key for key, link in self._links.items() if link.is_idle]:
            del self._links[client_id]
        return out

    def close(self) -> list[LinkInstruction]:
        """The epoch has ended."""
        self._requests.clear()
        self._kept_logits.clear()
        return [i for link in self._links.values() for i in link.close()]

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    def counters(self) -> TailCounters:
        """Prompts and tokens so far."""
        return TailCounters(self._num_prompt, self._num_cached, self._num_drawn)
