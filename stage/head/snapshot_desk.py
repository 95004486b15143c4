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
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.file_orders import FileAction, FileOrder
from stagewire.wire.limits import MAX_NAME_CHARS
from stagewire.wire.request import SnapshotWish
from stagewire.wire.ring import StartRequest
from stagewire.wire.snapshots import AskHeadSnapshots, SnapshotAction, SnapshotInfo, SnapshotOrder, SnapshotReport
from stagewire.wire.tensor import TokenIds

Refusal = tuple[ErrorCode, str]
DeskOutput = SnapshotReport | StartJob
_MAX_TICKETS = 64
_MOST_PINNED = 0.5
"""Snapshots may hold so much of the pool together: who has gone must not lock out those who come."""


@dataclass(slots=True)
class _Export:
    """A snapshot on its way into files; `asked` are the questions to answer at the end."""

    snapshot: Snapshot
    client_id: str
    file: str
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
    ) -> None:
        self._epoch, self._model, self._limits, self._scheduler, self._files = epoch, model, limits, scheduler, files
        self._new_seq_id = new_seq_id
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
        snapshots, wish = self._scheduler.snapshots, request.snapshot
        if wish is None:
            return snapshots.num_blocks
        num_tokens = len(request.prompt_token_ids) if wish.num_tokens is None else wish.num_tokens
        return snapshots.num_blocks + snapshots.blocks_for(num_tokens)

    def refusal(self, request: StartRequest, running: Iterable[Sequence]) -> Refusal | None:
        """Why a request's snapshot cannot be made, or the one it restores is not there.

        Whatever is pinned, the longest request that is here must still fit beside it.
        """
        wish, num_prompt = request.snapshot, len(request.prompt_token_ids)
        if request.restore is not None and self._find(request.client_id, request.restore) is None:
            return _not_found(request.restore)
        if wish is None:
            return None
        num_tokens = num_prompt if wish.num_tokens is None else wish.num_tokens
        if not 0 < len(wish.name) <= MAX_NAME_CHARS or not 0 < num_tokens <= num_prompt:
            detail = f"snapshot {wish.name!r:.80} of {num_tokens} tokens: a name, and 1 to {num_prompt} prompt tokens"
            return ErrorCode.INVALID_REQUEST, detail
        needs = [s.num_prompt_tokens + s.max_tokens for s in running]
        needs.append(num_prompt + (1 if request.max_tokens is None else request.max_tokens))
        num_pinned = self.num_pinned(request)
        no_room = max(needs) > self._limits.max_total_tokens(num_pinned)
        no_room = no_room or num_pinned > _MOST_PINNED * self._limits.scheduler.num_blocks
        if len(self._scheduler.snapshots) >= MAX_SNAPSHOTS:
            return ErrorCode.SNAPSHOT_LIMIT, f"{MAX_SNAPSHOTS} snapshots are kept; free one"
        if no_room:
            detail = (
                f"no KV blocks left to keep {num_tokens} tokens; free a snapshot, or give the stages more kv_tokens"
            )
            return ErrorCode.SNAPSHOT_LIMIT, detail
        return None

    # --- what the client asks for ---

    def of_client(self, client_id: str) -> list[Snapshot]:
        """The complete ones of this client, by name."""
        return self._scheduler.snapshots.of_client(client_id)

    def free(self, client_id: str, name: str) -> None:
        """Give it up on all stages, with the next step; an unknown name changes nothing."""
        snapshot = self._find(client_id, name)
        if snapshot is not None:
            self._scheduler.release(self._scheduler.snapshots.retire(snapshot))

    def answer(self, asked: AskHeadSnapshots, now: float) -> list[DeskOutput]:
        """Carry out an order and report, now or when its files are written."""
        order, refusal = asked.order, None
        if order.action is SnapshotAction.FREE:
            self.free(asked.client_id, order.name)
        elif order.action is SnapshotAction.RENAME:
            refusal = self._rename(asked.client_id, order)
        elif order.action is SnapshotAction.EXPORT:
            return self._export(asked, now)
        return [self._report(asked, refusal)]

    def _find(self, client_id: str, name: str) -> Snapshot | None:
        return self._scheduler.snapshots.find(client_id, name)

    def _report(self, asked: AskHeadSnapshots, refusal: Refusal | None = None) -> SnapshotReport:
        size, pipeline = self._limits.scheduler.block_size, str(self._epoch)
        items = tuple(
            SnapshotInfo(one.name, one.num_tokens, -(-one.num_tokens // size), one.has_logits, pipeline)
            for one in self.of_client(asked.client_id)
        )
        return SnapshotReport(asked.ticket, items, *(refusal or (None, "")))

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
        self._exports[snapshot.seq_id] = _Export(snapshot, asked.client_id, file, [asked])
        self._files.await_manifest(FileOrder(snapshot.seq_id, FileAction.EXPORT, file), now)
        return [StartJob(ReadManifest(self._epoch, snapshot.seq_id, file))]

    def finish_export(self, done: JobDone, now: float) -> list[DeskOutput]:
        """The manifest that was there has been read, or the new one is written."""
        export = self._exports.get(done.job.seq_id)
        if export is None or done.code or isinstance(done.job, WriteManifest):
            return [*self._end_export(done.job.seq_id, (done.code, done.detail) if done.code else None)]
        if done.manifest and done.manifest.client_id != export.client_id:
            detail = f"the file {export.file!r} belongs to another client; choose another name"
            return [*self._end_export(done.job.seq_id, (ErrorCode.SNAPSHOT_FILE, detail))]
        export.replaces = done.manifest
        digests = done.manifest.digests if done.manifest else ()
        self._files.order(FileOrder(export.snapshot.seq_id, FileAction.EXPORT, export.file, digests), now)
        return []

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
        request, manifest, wish = sequence.request, done.manifest, sequence.request.snapshot
        assert wish is not None
        if done.code or manifest is None:
            detail = done.detail or f"the first stage has no exported snapshot {wish.file!r:.80}"
            return done.code or ErrorCode.SNAPSHOT_FILE, detail
        if manifest.num_stages != self._limits.scheduler.num_stages:
            detail = f"it was exported by {manifest.num_stages} stages; give the prompt to a pipeline of another cut"
            return ErrorCode.SNAPSHOT_FILE, detail
        return replace(request, prompt_token_ids=TokenIds.of(manifest.token_ids), snapshot=SnapshotWish(wish.name))

    def order_import(self, sequence: Sequence, file: str, manifest: Manifest, now: float) -> None:
        """Have all stages read their parts."""
        self._files.order(FileOrder(sequence.seq_id, FileAction.IMPORT, file, manifest.digests), now)


def _not_found(name: str) -> Refusal:
    return ErrorCode.SNAPSHOT_NOT_FOUND, f"there is no snapshot {name!r:.80} of this client here"
