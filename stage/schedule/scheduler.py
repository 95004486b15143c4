"""The head's policy: which sequences form the next step. No sockets, no clocks; the ring calls it.

A step takes, in this order: decodes that are ready (a `num_stages`-th of all, so that every stage has a step to
work on), then prefill chunks, for as long as the decodes may wait. When blocks run out, the youngest running sequence
is preempted: rewound and put back in line, never failed.
"""

from __future__ import annotations

from bisect import insort

from stagewire.stage.schedule.block_account import BlockAccount
from stagewire.stage.schedule.chunking import ChunkBudget
from stagewire.stage.schedule.limits import SchedulerLimits
from stagewire.stage.schedule.restoring import Restoring
from stagewire.stage.schedule.sequence import Sequence, SequenceState
from stagewire.stage.schedule.snapshots import Snapshots
from stagewire.stage.schedule.step_builder import Lookup, StepBuilder, no_lookup
from stagewire.wire.file_orders import FileOrder
from stagewire.wire.request import FinishReason
from stagewire.wire.ring import Miss, Phase, SequenceFinish, SequenceResult, Slice, Step, StepResult


class Scheduler:
    """Sequences of one pipeline epoch; a lower `seq_id` has arrived earlier."""

    def __init__(self, limits: SchedulerLimits, lookup: Lookup = no_lookup) -> None:
        self._limits = limits
        self.snapshots = Snapshots(limits.block_size)
        self._restoring = Restoring(self.snapshots, lookup)
        self._chunks = ChunkBudget(limits.chunk_tokens, limits.chunk_target_s, limits.num_stages)
        self._sequences: dict[int, Sequence] = {}
        self._running: dict[int, Sequence] = {}
        self.blocks = BlockAccount(limits, self._running, self.snapshots)
        self._waiting: list[int] = []
        self.releases: list[int] = []
        """What the next step will release, besides what it preempts."""
        self._finishes: list[SequenceFinish] = []
        self._orders: list[FileOrder] = []
        self._in_flight: dict[int, tuple[float, tuple[Slice, ...]]] = {}
        self.next_step_id = 1
        self.num_preemptions = 0

    # --- sequences ---

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the line."""
        self._sequences[sequence.seq_id] = sequence
        insort(self._waiting, sequence.seq_id)

    def finish(self, sequence: Sequence, finish: SequenceFinish) -> None:
        """Have the tail end a sequence; it stays known until the tail's result says so."""
        if sequence.state is SequenceState.ENDING:
            return
        if self._leave(sequence):
            self.releases.append(sequence.seq_id)
        sequence.move(SequenceState.ENDING)
        self._finishes.append(finish)

    def complete(self, result: StepResult) -> list[tuple[Sequence, SequenceResult]]:
        """Take a step's result; returns the sequences that have ended with it."""
        launched = self._in_flight.pop(result.step_id, None)
        if launched is None:
            return []
        self._chunks.observe(launched[1], result.timings)
        if self.snapshots.in_flight:
            self.releases += self.snapshots.complete(result)
        for found in result.restored:
            self._limit_restore(found.seq_id, found.num_tokens)
        return [ended for item in result.results if (ended := self._take_result(result.step_id, item))]

    def _take_result(self, step_id: int, item: SequenceResult) -> tuple[Sequence, SequenceResult] | None:
        sequence = self._sequences.get(item.seq_id)
        if sequence is None:
            return None
        if sequence.awaited_step == step_id:
            sequence.awaited_step = None
            sequence.token_ids.extend(item.token_ids)
        if item.finish_reason is None:
            return None
        if self._leave(sequence):
            self.releases.append(sequence.seq_id)
        # A cancel that has not left yet came too late.
        self._finishes = [finish for finish in self._finishes if finish.seq_id != sequence.seq_id]
        sequence.move(SequenceState.ENDED)
        del self._sequences[sequence.seq_id]
        return sequence, item

    def release(self, seq_ids: list[int]) -> None:
        """Have all stages give up what they hold under these ids."""
        self.releases += seq_ids

    def order(self, order: FileOrder) -> None:
        """Send an order with the next step."""
        self._orders.append(order)

    def fetched(self, seq_id: int, num_tokens: int) -> Sequence | None:
        """A sequence has waited for files; now all stages hold so many tokens, or it goes on without."""
        sequence = self._sequences.get(seq_id)
        if sequence is not None:
            sequence.is_fetching, sequence.num_fetched = False, num_tokens
        return sequence

    def miss(self, miss: Miss) -> None:
        """A stage lacked what a step built on: begin the sequence again with what that stage holds."""
        sequence = self._sequences.get(miss.seq_id)
        if sequence is None:
            return
        if sequence.awaited_step == miss.step_id:
            sequence.awaited_step = None  # of what was missed nothing is drawn, also if it was preempted meanwhile
        if sequence.state is not SequenceState.RUNNING or miss.step_id < sequence.first_step:
            return
        sequence.awaited_step = None
        self.releases += [miss.seq_id, *self.snapshots.miss(sequence)]
        self._rewind(sequence, restore_limit=miss.length)

    def _limit_restore(self, seq_id: int, num_tokens: int) -> None:
        """Stages behind the one that missed hold still less than it: no need to try that out."""
        sequence = self._sequences.get(seq_id)
        if sequence is not None and sequence.restore_limit is not None:
            sequence.restore_limit = min(sequence.restore_limit, num_tokens)

    def overdue_step(self, now: float, deadline_s: float) -> int | None:
        """The id of the oldest step in flight if it was launched more than `deadline_s` ago."""
        step_id, (launched_at, _) = next(iter(self._in_flight.items()), (None, (now, ())))
        return step_id if now - launched_at > deadline_s else None

    # --- the next step ---

    def next_step(self, now: float) -> Step | None:
        """The next step, or None when enough are in flight or nothing is to be done."""
        if len(self._in_flight) >= self._limits.num_stages:
            return None
        ready = [s for s in self._running.values() if s.is_schedulable]
        if not (ready or self._waiting or self.releases or self._finishes or self._orders):
            return None
        builder = StepBuilder(self.releases)
        self.releases = []
        self._add_decodes(builder, [s for s in ready if s.is_decoding])
        if self._waiting:
            self._admit(builder)
        if len(self._running) > len(builder.slices):
            self._add_chunks(builder)
        self._finish_computed(builder)
        is_empty = not (builder.slices or builder.releases or self._finishes or self._orders)
        return None if is_empty else self._launch(builder, now)

    def _launch(self, builder: StepBuilder, now: float) -> Step:
        step = builder.step(self.next_step_id, self._finishes, self._orders)
        self._in_flight[step.step_id] = (now, step.slices)
        self.next_step_id += 1
        self._finishes, self._orders = [], []
        return step

    def _decodes_per_step(self) -> int:
        num_decoding = len([s for s in self._running.values() if s.is_decoding and not s.is_paused])
        return -(-num_decoding // self._limits.num_stages)

    def _add_decodes(self, builder: StepBuilder, ready: list[Sequence]) -> None:
        share = self._decodes_per_step() if len(ready) > 1 else 1
        for sequence in sorted(ready, key=lambda s: (s.last_step, s.seq_id)):
            if len(builder.slices) == share:
                return
            # An older one of this very step may have preempted it.
            if sequence.state is SequenceState.RUNNING and self._make_room(builder, sequence, 1):
                self._add_slice(builder, sequence, 1)

    def _admit(self, builder: StepBuilder) -> None:
        """Let those run that have waited longest, as far as there is place; they need not all get a chunk at once."""
        for seq_id in [*self._waiting]:
            sequence = self._sequences[seq_id]
            if not sequence.is_schedulable:
                continue
            if not self._has_place(builder, sequence):
                return
            self._waiting.remove(seq_id)
            sequence.move(SequenceState.RUNNING)
            self._running[seq_id] = sequence
            self._restore(builder, sequence, only_whole=True)

    def _add_chunks(self, builder: StepBuilder) -> None:
        prompts = [s for s in self._running.values() if s.is_schedulable and not s.is_decoding]
        shares = self._chunks.share_out(prompts, self._decodes_per_step()) if prompts else []
        for sequence, share in shares:
            # An older one of this very step may have preempted it.
            if sequence.state is SequenceState.RUNNING:
                self._add_chunk(builder, sequence, share)

    def _add_chunk(self, builder: StepBuilder, sequence: Sequence, share: int) -> None:
        if not self._make_room(builder, sequence, min(share, sequence.num_prefill)):
            return
        if not sequence.num_scheduled:
            self._restore(builder, sequence)
            share = self._chunks.moved(share, sequence.num_scheduled)
        num_tokens = min(share, sequence.num_prefill)
        if sequence.is_schedulable and self._make_room(builder, sequence, num_tokens):
            self._add_slice(builder, sequence, num_tokens)

    def _restore(self, builder: StepBuilder, sequence: Sequence, only_whole: bool = False) -> None:
        """Take what is held already, if anything is, and room for one more token."""
        restore = self._restoring.choose(sequence, only_whole)
        if restore and self._make_room(builder, sequence, restore.num_restored + 1):
            self._add(builder, sequence, restore.phase, restore.num_tokens, restore.num_restored, restore.source)

    def _add_slice(self, builder: StepBuilder, sequence: Sequence, num_tokens: int) -> None:
        is_generated = sequence.num_scheduled >= sequence.num_prompt_tokens
        self._add(builder, sequence, Phase.DECODE if is_generated and num_tokens == 1 else Phase.PREFILL, num_tokens)

    def _add(
        self,
        builder: StepBuilder,
        sequence: Sequence,
        phase: Phase,
        num_tokens: int,
        num_restored: int = 0,
        source: int | None = None,
    ) -> None:
        builder.announce(sequence)
        start = sequence.num_scheduled
        is_last = num_tokens == sequence.num_unscheduled
        samples = is_last and sequence.max_tokens > 0
        keep = None
        if sequence.keep is not None:
            keep = self.snapshots.due(sequence, start + num_tokens, self.next_step_id, phase, source)
        span = Slice(sequence.seq_id, phase, start, num_tokens, samples, False, num_restored, keep, source)
        builder.add(span, sequence.token_ids[start : start + num_tokens])
        sequence.num_scheduled += num_tokens
        sequence.last_step = self.next_step_id
        if samples:
            sequence.awaited_step = self.next_step_id
        elif is_last:
            builder.computed_only.append(sequence)

    def _finish_computed(self, builder: StepBuilder) -> None:
        """End what wants no tokens, and announce what was cancelled before its first slice.

        This comes last: releases of finished sequences belong to the next step, since a step's releases are
        applied before its slices.
        """
        for sequence in builder.computed_only:
            self.finish(sequence, SequenceFinish(sequence.seq_id, FinishReason.LENGTH))
        for finish in self._finishes:
            builder.announce(self._sequences[finish.seq_id])

    def _has_place(self, builder: StepBuilder, sequence: Sequence) -> bool:
        """Whether it may run beside those that do. One alone always may.

        Paused sequences make way: a client that does not read holds up nobody but itself.
        """
        while self._running and not self.blocks.has_place(sequence):
            paused = [s for s in self._running.values() if s.is_paused and s.seq_id not in builder.taken]
            if not paused:
                return False
            self._preempt(builder, paused[-1])
        return True

    def _make_room(self, builder: StepBuilder, sequence: Sequence, num_tokens: int) -> bool:
        """Preempt paused sequences, then the youngest, until `num_tokens` fit.

        False when `sequence` itself would be next, or when all younger ones are in this step already.
        """
        num_new = self.blocks.num_new(sequence, num_tokens)
        while num_new and num_new > self.blocks.num_free:
            candidates = [s for s in self._running.values() if s.num_scheduled and s.seq_id not in builder.taken]
            candidates.append(sequence)
            victim = max(candidates, key=lambda s: (s.is_paused, s.seq_id))
            if victim is sequence:
                return False
            self._preempt(builder, victim)
        return True

    def _preempt(self, builder: StepBuilder, sequence: Sequence) -> None:
        self.num_preemptions += 1
        builder.releases.append(sequence.seq_id)
        self._rewind(sequence)

    def _rewind(self, sequence: Sequence, restore_limit: int | None = None) -> None:
        del self._running[sequence.seq_id]
        sequence.rewind(self.next_step_id, restore_limit)
        insort(self._waiting, sequence.seq_id)

    def _leave(self, sequence: Sequence) -> bool:
        """Take it out of line or off the running ones; True if it held blocks, or files were read for it."""
        if sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence.seq_id)
        return self._running.pop(sequence.seq_id, None) is not None or sequence.has_files

    def check_invariants(self) -> None:
        """Raise AssertionError if the books do not add up."""
        assert len(self._in_flight) <= self._limits.num_stages
        # A new snapshot may overdraw the account until the next slice makes room, also for what it will keep.
        assert -self.snapshots.num_blocks <= self.blocks.num_free <= self._limits.num_blocks
        assert len(self._running) <= self._limits.max_sequences
        assert self._waiting == sorted(self._waiting)
        for seq_id, sequence in self._sequences.items():
            assert sequence.num_scheduled <= len(sequence.token_ids)
            assert (seq_id in self._running) == (sequence.state is SequenceState.RUNNING)
            assert (seq_id in self._waiting) == (sequence.state is SequenceState.WAITING)
            assert sequence.num_scheduled == 0 or sequence.state is not SequenceState.WAITING
        self.snapshots.check_invariants()
