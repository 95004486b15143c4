"""The head's answers to whoever wants snapshots made, renamed, freed, exported or imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from stagewire.stage.files.jobs import JobDone, ReadManifest, WriteManifest
from stagewire.stage.files.snapshot_file import MAX_FILE_NAME_CHARS, Manifest, is_file_name
from stagewire.stage.head.file_waits import FileWait, HeadFiles
from stagewire.stage.head.limits import HeadLimits
from stagewire.stage.instructions import StartJob
from stagewire.stage.schedule.scheduler import Scheduler
from stagewire.stage.schedule.sequence import Sequence
from stagewire.stage.schedule.snapshots import MAX_SNAPSHOTS, Snapshot
from stagewire.stage.timing.head_times import HeadMeasures
from stagewire.stage.timing.timing_line import one_word
from stagewire.wire.counted import counted
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.file_orders import FileAction, FileOrder
from stagewire.wire.limits import MAX_NAME_CHARS
from stagewire.wire.note import Note
from stagewire.wire.request import SnapshotRequest
from stagewire.wire.ring import StartRequest, StepResult
from stagewire.wire.snapshots import AskHeadSnapshots, SnapshotAction, SnapshotInfo, SnapshotOrder, SnapshotReport
from stagewire.wire.tensor import TokenIds

Refusal = tuple[ErrorCode, str]
DeskOutput = SnapshotReport | StartJob | Note
_MAX_TICKETS = 64
_SEE_ALL = "`stagewire snapshot list --all` shows all"
_MOST_PINNED = 0.5
"""Snapshots may hold so much of the pool together: who has gone must not lock out those who come."""


@dataclass(slots=True)
class _Export:
    """A snapshot on its way into files; `asked` are the questions to answer at the end."""

    snapshot: Snapshot
    client_id: str
    file: str
    begun_at: float
    asked: list[AskHeadSnapshots] = field(default_factory=list)
    replaces: Manifest | None = None


class SnapshotDesk:
    """All snapshot business of one pipeline epoch; `new_seq_id` gives ids that no sequence has."""

    def __init__(
        self,
        epoch: Epoch,
        model: str,
        limits: HeadLimits,
        scheduler: Scheduler,
        files: HeadFiles,
        new_seq_id: Callable[[], int],
        measures: HeadMeasures,
    ) -> None:
        self._epoch, self._model, self._limits, self._scheduler, self._files = epoch, model, limits, scheduler, files
        self._new_seq_id, self._measures = new_seq_id, measures
        self._exports: dict[int, _Export] = {}

    # --- making ---

    def reserve(self, sequence: Sequence) -> None:
        """From now on the blocks that the sequence's request wants kept are spoken for."""
        request = sequence.request
        if request.snapshot is not None:
            num_tokens = request.snapshot.num_tokens or sequence.num_prompt_tokens
            token_ids = sequence.token_ids[:num_tokens]
            snapshot = Snapshot(self._new_seq_id(), request.client_id, request.snapshot.name, token_ids)
            self._scheduler.snapshots.reserve(snapshot, sequence)

    def num_pinned(self, request: StartRequest) -> int:
        """Blocks that snapshots hold once this request's is among them."""
        pinned, wanted = self._scheduler.snapshots.pinned, request.snapshot
        return (
            pinned.num_blocks
            if wanted is None
            else pinned.num_with(request.prompt_token_ids.to_list()[: wanted.num_tokens])
        )

    def refusal(self, request: StartRequest, running: Iterable[Sequence]) -> Refusal | None:
        """Why a request's snapshot cannot be made, or the one it restores is not there.

        Whatever is pinned, the longest request that is here must still fit beside it.
        """
        wanted, num_prompt = request.snapshot, len(request.prompt_token_ids)
        if request.restore is not None and self._find(request.client_id, request.restore) is None:
            return _not_found(request.restore)
        if wanted is None:
            return None
        num_tokens = num_prompt if wanted.num_tokens is None else wanted.num_tokens
        if not 0 < len(wanted.name) <= MAX_NAME_CHARS or not 0 < num_tokens <= num_prompt:
            size = counted(num_tokens, "token")
            detail = f"snapshot {wanted.name!r:.80} of {size}: a name, and 1 to {counted(num_prompt, 'prompt token')}"
            return ErrorCode.INVALID_REQUEST, detail
        needs = [s.num_prompt_tokens + s.max_tokens for s in running]
        needs.append(num_prompt + (1 if request.max_tokens is None else request.max_tokens))
        num_pinned = self.num_pinned(request)
        no_room = max(needs) > self._limits.max_total_tokens(num_pinned)
        no_room = no_room or num_pinned > _MOST_PINNED * self._limits.scheduler.num_blocks
        if len(self._scheduler.snapshots) >= MAX_SNAPSHOTS:
            return ErrorCode.SNAPSHOT_LIMIT, f"{MAX_SNAPSHOTS} snapshots are kept; free one ({_SEE_ALL})"
        if no_room:
            detail = (
                f"no KV blocks left to keep {counted(num_tokens, 'token')}; {self._pinned()}: free one ({_SEE_ALL}), "
            )
            return ErrorCode.SNAPSHOT_LIMIT, f"{detail}or give the stages more kv_tokens"
        return None

    def _pinned(self) -> str:
        snapshots, num_blocks = self._scheduler.snapshots, self._limits.scheduler.num_blocks
        return f"{len(snapshots)} snapshots hold {snapshots.num_blocks} of {num_blocks}"

    def saved(self, result: StepResult) -> list[Note]:
        """The snapshots that are complete with this step, for the log."""
        complete = [one for one in self._scheduler.snapshots.of_all() if one.seq_id in result.kept]
        return [Note("snapshot_saved", f"{self._words(one)} pinned_blocks={self._num_pinned}") for one in complete]

    @property
    def _num_pinned(self) -> int:
        return self._scheduler.snapshots.num_blocks

    def _words(self, snapshot: Snapshot) -> str:
        client, name = one_word(snapshot.client_id), one_word(snapshot.name)
        return f"client={client} name={name} epoch={self._epoch} tokens={snapshot.num_tokens}"

    # --- what the client asks for ---

    def of_client(self, client_id: str) -> list[Snapshot]:
        """The complete ones of this client, by name."""
        return self._scheduler.snapshots.of_client(client_id)

    def free(self, client_id: str, name: str | None = None) -> int:
        """Give up one, or (None) all of a client, on all stages, with the next step; returns how many that were."""
        freed = [one for one in self.of_client(client_id) if name in (None, one.name)]
        for snapshot in freed:
            self._scheduler.release(self._scheduler.snapshots.retire(snapshot))
        return len(freed)

    def answer(self, asked: AskHeadSnapshots, now: float) -> list[DeskOutput]:
        """Carry out an order and report, now or when its files are written."""
        match asked.order.action:
            case SnapshotAction.FREE:
                return [self._report(asked, num_freed=self.free(asked.client_id, asked.order.name))]
            case SnapshotAction.FREE_ALL:
                return [self._report(asked, num_freed=self.free(asked.client_id))]
            case SnapshotAction.RENAME:
                return [self._report(asked, self._rename(asked.client_id, asked.order))]
            case SnapshotAction.EXPORT:
                return self._export(asked, now)
        return [self._report(asked)]

    def _find(self, client_id: str, name: str) -> Snapshot | None:
        return self._scheduler.snapshots.find(client_id, name)

    def _report(self, asked: AskHeadSnapshots, refusal: Refusal | None = None, num_freed: int = 0) -> SnapshotReport:
        is_all, snapshots = asked.order.action is SnapshotAction.LIST_ALL, self._scheduler.snapshots
        told = snapshots.of_all() if is_all else snapshots.of_client(asked.client_id)
        items = tuple(self._info(one) for one in told)
        code, detail = refusal or (None, "")
        return SnapshotReport(asked.ticket, items, code, detail, num_freed)

    def _info(self, snapshot: Snapshot) -> SnapshotInfo:
        pinned, num_tokens = self._scheduler.snapshots.pinned, snapshot.num_tokens
        num_own = pinned.num_freed(snapshot.seq_id)
        words = (snapshot.name, num_tokens, pinned.blocks_for(num_tokens), snapshot.has_logits)
        return SnapshotInfo(*words, str(self._epoch), snapshot.client_id, num_own)

    def _rename(self, client_id: str, order: SnapshotOrder) -> Refusal | None:
        snapshot = self._find(client_id, order.name)
        if snapshot is None:
            return _not_found(order.name)
        if not 0 < len(order.target) <= MAX_NAME_CHARS:
            return ErrorCode.INVALID_REQUEST, f"a name has 1 to {MAX_NAME_CHARS} characters"
        if order.target != order.name:
            self.free(client_id, order.target)
            snapshot.name = order.target
        return None

    # --- into files ---

    def _export(self, asked: AskHeadSnapshots, now: float) -> list[DeskOutput]:
        snapshot, file = self._find(asked.client_id, asked.order.name), asked.order.target
        if snapshot is None:
            return [self._report(asked, _not_found(asked.order.name))]
        if not is_file_name(file):
            detail = (
                f"{file!r:.80} is no file name: {MAX_FILE_NAME_CHARS} letters, digits, '.', '_', '-' within, at most"
            )
            return [self._report(asked, (ErrorCode.INVALID_REQUEST, detail))]
        running = self._exports.get(snapshot.seq_id)
        if running and running.file == file and len(running.asked) < _MAX_TICKETS:
            running.asked.append(asked)
            return []
        if running or not self._files.has_room or any(one.file == file for one in self._exports.values()):
            return [self._report(asked, (ErrorCode.QUEUE_FULL, "another export is running; try again"))]
        snapshot.is_busy = True
        self._exports[snapshot.seq_id] = _Export(snapshot, asked.client_id, file, now, [asked])
        self._files.await_manifest(FileOrder(snapshot.seq_id, FileAction.EXPORT, file), now)
        return [StartJob(ReadManifest(self._epoch, snapshot.seq_id, file))]

    def finish_export(self, done: JobDone, now: float) -> list[DeskOutput]:
        """The manifest that was there has been read, or the new one is written."""
        export = self._exports.get(done.job.seq_id)
        if export is not None and not done.code and isinstance(done.job, WriteManifest):
            return [self._exported(export, now), *self._end_export(done.job.seq_id, None)]
        if export is None or done.code or isinstance(done.job, WriteManifest):
            return [*self._end_export(done.job.seq_id, (done.code, done.detail) if done.code else None)]
        if done.manifest and done.manifest.client_id != export.client_id:
            detail = f"the file {export.file!r} belongs to another client; choose another name"
            return [*self._end_export(done.job.seq_id, (ErrorCode.SNAPSHOT_FILE, detail))]
        export.replaces = done.manifest
        digests = done.manifest.digests if done.manifest else ()
        self._files.order(FileOrder(export.snapshot.seq_id, FileAction.EXPORT, export.file, digests), now)
        return []

    def _exported(self, export: _Export, now: float) -> Note:
        elapsed_s = now - export.begun_at
        self._measures.export_s.observe(elapsed_s)
        words = f"{self._words(export.snapshot)} file={export.file} elapsed_ms={1000 * elapsed_s:.2f}"
        return Note("snapshot_exported", words)

    def finish_parts(self, wait: FileWait, now: float) -> list[DeskOutput]:
        """All stages have written their parts, or one could not, or it took too long."""
        seq_id = wait.order.seq_id
        export = self._exports.get(seq_id)
        if export is None or wait.code:
            return [*self._end_export(seq_id, (wait.code, wait.detail) if wait.code else None)]
        digests = tuple(digest for _, digest in sorted(wait.digests.items()))
        size, token_ids = self._limits.scheduler.block_size, tuple(export.snapshot.token_ids)
        manifest = Manifest(export.client_id, self._model, size, token_ids, digests)
        self._files.await_manifest(wait.order, now)
        return [StartJob(WriteManifest(self._epoch, seq_id, export.file, manifest, export.replaces))]

    def close(self) -> list[SnapshotReport]:
        """The epoch has ended, and with it all exports."""
        refusal = (ErrorCode.STAGE_LOST, "the pipeline ended before the export was done")
        return [out for seq_id in [*self._exports] for out in self._end_export(seq_id, refusal)]

    def _end_export(self, seq_id: int, refusal: Refusal | None) -> list[SnapshotReport]:
        export = self._exports.pop(seq_id, None)
        if export is None:
            return []
        export.snapshot.is_busy = False
        if export.snapshot.is_retired:
            self._scheduler.release(self._scheduler.snapshots.retire(export.snapshot))
        return [self._report(asked, refusal) for asked in export.asked]

    # --- out of files ---

    def start_import(self, sequence: Sequence, file: str, now: float) -> list[DeskOutput]:
        """A request without a prompt waits for the tokens that the manifest names."""
        sequence.is_fetching = sequence.has_files = True
        self._files.await_manifest(FileOrder(sequence.seq_id, FileAction.IMPORT, file), now)
        return [StartJob(ReadManifest(self._epoch, sequence.seq_id, file))]

    def imported(self, sequence: Sequence, done: JobDone) -> StartRequest | Refusal:
        """What the request is, now that its prompt is known; or why it cannot be."""
        request, manifest, wanted = sequence.request, done.manifest, sequence.request.snapshot
        assert wanted is not None
        if done.code or manifest is None:
            detail = done.detail or f"the first stage has no exported snapshot {wanted.file!r:.80}"
            return done.code or ErrorCode.SNAPSHOT_FILE, detail
        if manifest.num_stages != self._limits.scheduler.num_stages:
            exporters = counted(manifest.num_stages, "stage")
            detail = f"it was exported by {exporters}; give the prompt to a pipeline of another cut"
            return ErrorCode.SNAPSHOT_FILE, detail
        return replace(request, prompt_token_ids=TokenIds.of(manifest.token_ids), snapshot=SnapshotRequest(wanted.name))

    def order_import(self, sequence: Sequence, file: str, manifest: Manifest, now: float) -> None:
        """Have all stages read their parts."""
        self._files.order(FileOrder(sequence.seq_id, FileAction.IMPORT, file, manifest.digests), now)


def _not_found(name: str) -> Refusal:
    return ErrorCode.SNAPSHOT_NOT_FOUND, f"there is no snapshot {name!r:.80} of this client here"
