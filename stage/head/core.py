"""The head's ring duties: admits what the broker sends, once; reports endings until they are noted.

It owns the scheduler. Messages in, control messages out; `StageEpoch.take` asks for `next_step` when the stage is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

from stagewire.stage.files.jobs import JobDone, ReadManifest, WriteManifest
from stagewire.stage.head.file_waits import FileLookup, FileWait, HeadFiles, no_files
from stagewire.stage.head.limits import HeadLimits
from stagewire.stage.head.request_check import RequestCheck
from stagewire.stage.head.snapshot_desk import SnapshotDesk
from stagewire.stage.instructions import StartJob
from stagewire.stage.schedule.scheduler import Scheduler
from stagewire.stage.schedule.sequence import Sequence, SequenceState
from stagewire.stage.schedule.step_builder import Lookup, no_lookup
from stagewire.stage.timing.head_times import NO_TIME, HeadMeasures, ReadTime, RingClock
from stagewire.stage.timing.restore_note import restore_notes
from stagewire.wire.control import Fault, GenerateAck, RequestEnded, RequestEndedAck, RunningRequest
from stagewire.wire.counters import HeadCounters
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.file_orders import FileAction, FileDone
from stagewire.wire.note import Note
from stagewire.wire.request import FinishReason, Usage
from stagewire.wire.ring import CancelRequest, Flow, Miss, SequenceFinish, StartRequest, Step, StepResult
from stagewire.wire.snapshots import SnapshotReport

TOMBSTONE_S = 60.0
"""How long the ids of cancelled and ended requests are remembered."""
_MAX_TOMBSTONES = 100_000
_REPORT_AGAIN_S = 1.0

HeadInput = StartRequest | CancelRequest | StepResult | Miss | Flow | FileDone | RequestEndedAck
HeadOutput = GenerateAck | RequestEnded | Fault | SnapshotReport | StartJob | Note


@dataclass(frozen=True, slots=True)
class Sources:
    """What the head's own stage knows: the model's name, its cache, and what files hold behind that."""

    model: str = ""
    lookup: Lookup = no_lookup
    file_lookup: FileLookup = no_files


class HeadCore:
    """All requests of one pipeline epoch, from the feed to their reported ending."""

    def __init__(
        self,
        epoch: Epoch,
        limits: HeadLimits,
        sources: Sources | None = None,
        measures: HeadMeasures | None = None,
    ) -> None:
        sources = sources or Sources()
        self._epoch, self._limits = epoch, limits
        self._measures = measures or HeadMeasures()
        self._measures.begin_epoch()
        self.scheduler = Scheduler(limits.scheduler, sources.lookup)
        self._clock = RingClock()
        self._files = HeadFiles(self.scheduler, limits.scheduler.num_stages, sources.file_lookup)
        desk = (epoch, sources.model, limits, self.scheduler, self._files, self._new_seq_id, self._measures)
        self.snapshots = SnapshotDesk(*desk)
        self._check = RequestCheck(limits, self.scheduler.snapshots, self.snapshots, self._files)
        self._importing: dict[int, Sequence] = {}
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

    def counters(self) -> HeadCounters:
        """What it holds and has timed so far."""
        num_running = sum([s.state is SequenceState.RUNNING for s in self._by_request.values()])
        traversal_s, hop_s = self._measures.traversal_s, self._measures.hop_s
        num_waiting = len(self._by_request) - num_running
        return HeadCounters(num_waiting, num_running, traversal_s.count, traversal_s.total, hop_s.total)

    def num_sequences(self) -> Counter[str]:
        """By state; a running one whose client does not read is paused."""
        held = list(self._by_request.values())
        return Counter("paused" if one.is_paused else one.state.value for one in held)

    @property
    def next_step_id(self) -> int:
        """Of the step that `next_step` may give."""
        return self.scheduler.next_step_id

    @property
    def releases(self) -> Items[int]:
        """What that step will release first, as far as it is known before it is made."""
        return self.scheduler.releases

    def next_step(self, now: float) -> Step | None:
        """The step to compute now, or None; `releases` are done already, so what they gave back can be found."""
        step = self.scheduler.next_step(now)
        if step is None:
            return None
        self._measures.launched(step, self.scheduler.num_preemptions, now)
        return self._clock.launched(step, now)

    def handle(self, message: HeadInput, now: float, read_time: ReadTime = NO_TIME) -> list[HeadOutput]:
        """Apply one message; returns what the broker must be told."""
        if isinstance(message, StartRequest):
            return self._start(message, now)
        if isinstance(message, StepResult):
            round_trip = self._clock.returned(message.step_id, message.timings, now, read_time)
            self._measures.completed(message, round_trip, now)
            notes = self._notes(message, round_trip.total_s) if message.restored and round_trip else ()
            return [*notes, *self._complete(message, now)]
        if isinstance(message, CancelRequest):
            self._cancel(message, now)
        elif isinstance(message, Miss):
            self.scheduler.miss(message)
        elif isinstance(message, Flow):
            self._set_paused(message, now)
        elif isinstance(message, FileDone):
            wait = self._files.take(message)
            return self._end_wait(wait, now) if wait else []
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
        late = [output for wait in self._files.overdue(now) for output in self._end_wait(wait, now)]
        due = [report for at, report in self._reports.values() if now - at >= _REPORT_AGAIN_S]
        self._reports.update({report.request_id: (now, report) for report in due})
        return [*late, *due]

    def _forget_tombstones(self, now: float) -> None:
        """Both tables are in order of time, so the old ones come first."""
        for table in (self._cancelled, self._ended):
            while table and (len(table) > _MAX_TOMBSTONES or now - next(iter(table.values())) >= TOMBSTONE_S):
                del table[next(iter(table))]

    # --- starting ---

    def _start(self, request: StartRequest, now: float) -> list[HeadOutput]:
        if request.request_id in self._by_request or request.request_id in self._ended:
            return [self._acknowledge(request)]
        refusal = self._check.refusal(request, self._by_request.values())
        if refusal is not None:
            return [self._acknowledge(request, *refusal)]
        was_cancelled = self._cancelled.pop(request.request_id, None) is not None
        sequence = self._add(request, now)
        self._clock.arrived(sequence.seq_id, now)
        self._clock.fetching(sequence.seq_id, sequence.is_fetching, now)
        self._measures.arrived(sequence.seq_id, now)
        if was_cancelled:
            self._finish(sequence, FinishReason.CANCELLED)
        elif request.snapshot and request.snapshot.file is not None:
            self._importing[sequence.seq_id] = sequence
            self._clock.fetching(sequence.seq_id, True, now)
            return [self._acknowledge(request), *self.snapshots.start_import(sequence, request.snapshot.file, now)]
        elif not sequence.token_ids:
            self._finish(sequence, FinishReason.LENGTH)
        return [self._acknowledge(request)]

    def _add(self, request: StartRequest, now: float) -> Sequence:
        if not request.ignore_eos:
            stops = (*request.stop_token_ids, *self._limits.end_token_ids)
            request = replace(request, stop_token_ids=tuple(dict.fromkeys(stops)))
        token_ids = request.prompt_token_ids.to_list()
        budget = request.max_tokens
        if budget is None:
            budget = self._limits.max_total_tokens(self.snapshots.num_pinned(request)) - len(token_ids)
        sequence = Sequence(self._new_seq_id(), request, token_ids, len(token_ids), budget)
        self._by_request[request.request_id] = sequence
        self.scheduler.add(sequence)
        if sequence.token_ids:
            self.snapshots.reserve(sequence)
            self._files.fetch(sequence, now)
        return sequence

    def _new_seq_id(self) -> int:
        self._next_seq_id += 1
        return self._next_seq_id - 1

    def _acknowledge(self, request: StartRequest, code: ErrorCode | None = None, detail: str = "") -> GenerateAck:
        return GenerateAck(request.request_id, self._epoch, code, detail)

    # --- files ---

    def finish_manifest(self, done: JobDone, now: float) -> list[HeadOutput]:
        """The manifest of an exported snapshot was read or written, for an export or an import."""
        assert isinstance(done.job, ReadManifest | WriteManifest), done
        if not self._files.take_manifest(done.job.seq_id, done.job.name):
            return []
        sequence = self._importing.pop(done.job.seq_id, None)
        if sequence is None:
            return [*self.snapshots.finish_export(done, now)]
        if sequence.state is SequenceState.WAITING:
            self._import(sequence, done, now)
        return []

    def _import(self, sequence: Sequence, done: JobDone, now: float) -> None:
        request = self.snapshots.imported(sequence, done)
        is_read = isinstance(request, StartRequest) and done.manifest is not None
        refusal = (
            self._check.refusal(request, self._by_request.values()) if isinstance(request, StartRequest) else request
        )
        if refusal or not is_read:
            self._finish(sequence, FinishReason.FAILED, *(refusal or ()))
            return
        assert isinstance(request, StartRequest) and isinstance(done.job, ReadManifest) and done.manifest
        sequence.request, sequence.token_ids = request, request.prompt_token_ids.to_list()
        sequence.num_prompt_tokens = len(sequence.token_ids)
        self.snapshots.reserve(sequence)
        self.snapshots.order_import(sequence, done.job.name, done.manifest, now)

    def _end_wait(self, wait: FileWait, now: float) -> list[HeadOutput]:
        """All stages are through with an order, or it took too long."""
        if wait.order.action is FileAction.FETCH:
            self._measures.fetch_s.observe(now - wait.begun_at)
        if wait.order.action is FileAction.EXPORT:
            return [*self.snapshots.finish_parts(wait, now)]
        self._clock.fetching(wait.order.seq_id, False, now)
        self._importing.pop(wait.order.seq_id, None)
        sequence = self.scheduler.fetched(wait.order.seq_id, 0 if wait.code else min(wait.num_tokens))
        if sequence and wait.code and wait.order.action is FileAction.IMPORT:
            self._finish(sequence, FinishReason.FAILED, wait.code, wait.detail)
        return []

    # --- ending ---

    def _cancel(self, cancel: CancelRequest, now: float) -> None:
        sequence = self._by_request.get(cancel.request_id)
        if sequence is not None:
            reason = FinishReason.CANCELLED if cancel.stop_after is None else FinishReason.STOP
            self.scheduler.finish(sequence, SequenceFinish(sequence.seq_id, reason, stop_after=cancel.stop_after))
        elif cancel.request_id not in self._ended:
            # The table stays in order of time: the first cancel counts.
            self._cancelled.setdefault(cancel.request_id, now)

    def _finish(
        self, sequence: Sequence, reason: FinishReason, code: ErrorCode | None = None, detail: str = ""
    ) -> None:
        self.scheduler.finish(sequence, SequenceFinish(sequence.seq_id, reason, code, detail))

    def _complete(self, result: StepResult, now: float) -> list[HeadOutput]:
        ended = self.scheduler.complete(result)
        reports: list[HeadOutput] = [*self.snapshots.saved(result)] if result.kept else []
        for sequence, item in ended:
            request_id = sequence.request.request_id
            del self._by_request[request_id]
            self._clock.gone(sequence.seq_id)
            if sequence.keep is not None:
                # It ended before it got there.
                self.scheduler.release(self.scheduler.snapshots.abandon(sequence.keep))
            usage = item.usage or Usage(sequence.num_prompt_tokens, 0)
            reason = item.finish_reason or FinishReason.FAILED
            report = RequestEnded(request_id, self._epoch, reason, item.code, usage)
            self._reports[request_id] = (now, report)
            self._ended[request_id] = now
            reports.append(report)
        return reports

    def _notes(self, result: StepResult, total_s: float) -> Iterator[Note]:
        return restore_notes({s.seq_id: s.request for s in self._by_request.values()}, result, total_s, self._epoch)

    def _set_paused(self, flow: Flow, now: float) -> None:
        sequence = self._by_request.get(flow.request_id)
        if sequence is not None and sequence.state is not SequenceState.ENDING:
            sequence.is_paused = flow.paused
            self._clock.paused(sequence.seq_id, flow.paused, now)

    def check_invariants(self) -> None:
        """Raise AssertionError if the books do not add up."""
        self.scheduler.check_invariants()
        assert not set(self._by_request) & set(self._ended)
