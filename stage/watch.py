"""A stage as Prometheus sees it: its samples, read off its parts by another thread than the loop's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from stagewire.monitoring import metrics as m
from stagewire.monitoring.endpoint import MetricsEndpoint, Page, identity
from stagewire.monitoring.exposition import CONTENT_TYPE, Exposition
from stagewire.monitoring.metric import Sample
from stagewire.sockets.connection import cannot_bind
from stagewire.stage.core import StageCore
from stagewire.stage.files.disk_cache import DiskCache
from stagewire.stage.kv.store import KvStore
from stagewire.stage.timing.step_times import LinkTraffic, StageMeasures
from stagewire.wire.cache_reports import DiskCounts
from stagewire.wire.control import StageInfo

_NO_FILES = DiskCounts(0, 0, 0, 0, 0)
_SEQUENCE_STATES = ("waiting", "running", "paused", "ending")


def bind_endpoint(port: int | None) -> MetricsEndpoint | None:
    """Bound, so that its address can be told, and not answering yet; None where there shall be none.

    Raises:
        SettingsError: the port cannot be bound (PORT_IN_USE: another process has it).
    """
    if port is None:
        return None
    try:
        return MetricsEndpoint(port)
    except OSError as error:
        raise cannot_bind(f"metrics_port={port}", error) from error


@dataclass(frozen=True, slots=True)
class StageWatch:
    """Everything is counted somewhere already; nothing here changes anything.

    Series are there from the start, whatever the stage does, so that the first event is an increase.
    """

    info: StageInfo
    core: StageCore
    store: KvStore
    disk: DiskCache | None = None
    disk_budget_bytes: int = 0

    def serve(self, endpoint: MetricsEndpoint) -> None:
        """Answer there from now on."""
        metrics = Page(CONTENT_TYPE, Exposition(self.samples).page)
        endpoint.serve({"/metrics": metrics, "/": identity("stage", stage_id=self.info.stage_id)})

    def samples(self) -> Iterator[Sample]:
        """All metrics of this stage now."""
        yield from self._info()
        yield from self._steps(self.core.measures)
        yield from self._cache()
        yield from self._memory()
        if self.info.layer_start == 0:
            yield from self._head()

    def _info(self) -> Iterator[Sample]:
        info = self.info
        layers = f"{info.layer_start}:{info.layer_end}"
        yield Sample(m.STAGE_INFO, (info.model_name, layers, info.precision, info.kernel, info.device), 1)
        yield Sample(m.WEIGHT_BYTES, (), info.weight_bytes)

    def _steps(self, measures: StageMeasures) -> Iterator[Sample]:
        for phase, seconds in measures.forward_s.items():
            yield Sample(m.FORWARD_TIME, (phase,), seconds)
        if self.info.layer_end == self.info.num_layers:
            yield Sample(m.SAMPLE_TIME, (), measures.sample_s)
        yield Sample(m.IDLE_TIME, (), measures.idle_s)
        yield Sample(m.STEP_QUEUE_TIME, (), measures.step_queue_s)
        yield Sample(m.STEP_TOKENS, (), measures.step_tokens)
        yield Sample(m.STEP_SEQUENCES, (), measures.step_sequences)
        yield from _traffic(measures.sent, "encode", "sent")
        yield from _traffic(measures.received, "decode", "received")
        stage_epoch = self.core.stage_epoch
        yield Sample(m.HOP_QUEUE_DEPTH, (), stage_epoch.num_queued_steps if stage_epoch else 0)
        for outcome, count in measures.restores.items():
            yield Sample(m.RESTORES, (outcome,), count)

    def _cache(self) -> Iterator[Sample]:
        cache, counts = self.store.cache, self.store.statistics
        held, fetched, missed = cache.num_held_tokens, cache.num_fetched_tokens, cache.num_missed_tokens
        yield Sample(m.CACHE_QUERIES, (), held + fetched + missed)
        yield Sample(m.CACHE_HITS, ("ram",), held)
        yield Sample(m.CACHE_HITS, ("disk",), fetched)
        yield Sample(m.CACHE_MISSES, (), missed)
        yield Sample(m.RESTORED_TOKENS, (), counts.restored_tokens)
        yield Sample(m.RESTORED_BYTES, (), counts.restored_bytes)
        yield Sample(m.RECORDED_TOKENS, (), counts.recorded_tokens)
        yield Sample(m.RECORDED_BYTES, (), counts.recorded_bytes)
        num_blocks, num_tokens = self.store.num_evicted
        yield Sample(m.EVICTIONS, (), num_blocks)
        yield Sample(m.EVICTED_TOKENS, (), num_tokens)
        yield Sample(m.EVICTED_BYTES, (), num_tokens * self.store.block_bytes // self.info.block_size)
        yield Sample(m.KEY_COLLISIONS, (), counts.errors)

    def _memory(self) -> Iterator[Sample]:
        store, block_bytes = self.store, self.store.block_bytes
        capacity, num_used, num_cached = store.capacity, store.num_used, store.num_cached
        yield Sample(m.KV_USAGE, (), num_used / capacity)
        yield Sample(m.KV_BLOCKS, ("used",), num_used)
        yield Sample(m.KV_BLOCKS, ("cached",), num_cached)
        yield Sample(m.KV_BLOCKS, ("free",), max(0, capacity - num_used - num_cached))
        yield Sample(m.KV_BYTES, ("ram",), (num_used + num_cached) * block_bytes)
        yield Sample(m.KV_BYTES, ("disk",), self.disk.tier.num_bytes if self.disk else 0)
        yield Sample(m.KV_BUDGET_BYTES, ("ram",), capacity * block_bytes)
        yield Sample(m.KV_BUDGET_BYTES, ("disk",), self.disk_budget_bytes if self.disk else 0)
        files = self.disk.counts() if self.disk else _NO_FILES
        yield Sample(m.DISK_BLOCKS, ("written",), files.num_written)
        yield Sample(m.DISK_BLOCKS, ("dropped",), files.num_dropped)
        yield Sample(m.DISK_BLOCKS, ("failed",), files.num_failed)
        yield Sample(m.DISK_BLOCKS, ("read",), files.num_read)
        yield Sample(m.DISK_BLOCKS, ("set_aside",), files.num_set_aside)

    def _head(self) -> Iterator[Sample]:
        measures, stage_epoch = self.core.measures.head, self.core.stage_epoch
        head = stage_epoch.head if stage_epoch else None
        yield Sample(m.TIME_TO_FIRST_TOKEN, (), measures.first_token_s)
        yield Sample(m.INTER_TOKEN_LATENCY, (), measures.inter_token_s)
        yield Sample(m.TIME_PER_OUTPUT_TOKEN, (), measures.per_output_token_s)
        yield Sample(m.REQUEST_QUEUE_TIME, (), measures.queue_s)
        yield Sample(m.REQUEST_PREFILL_TIME, (), measures.prefill_s)
        yield Sample(m.REQUEST_DECODE_TIME, (), measures.decode_s)
        yield Sample(m.REQUEST_PROMPT_TOKENS, (), measures.prompt_lengths)
        yield Sample(m.REQUEST_GENERATION_TOKENS, (), measures.generation_lengths)
        yield Sample(m.PROMPT_TOKENS, (), measures.num_prompt_tokens)
        yield Sample(m.PROMPT_TOKENS_CACHED, (), measures.num_cached_tokens)
        yield Sample(m.GENERATION_TOKENS, (), measures.num_generated_tokens)
        yield Sample(m.PREEMPTIONS, (), measures.num_preemptions)
        by_state = head.num_sequences() if head else Counter[str]()
        for state in _SEQUENCE_STATES:
            yield Sample(m.NUM_SEQUENCES, (state,), by_state[state])
        yield Sample(m.STEPS_IN_FLIGHT, (), measures.num_in_flight if head else 0)
        yield Sample(m.STEP_TRAVERSAL, (), measures.traversal_s)
        yield Sample(m.HOP_TIME, (), measures.hop_s)
        for outcome, seconds in measures.restore_s.items():
            yield Sample(m.RESTORE_TIME, (outcome.value,), seconds)
        yield Sample(m.FETCH_TIME, (), measures.fetch_s)
        yield Sample(m.EXPORT_TIME, (), measures.export_s)
        yield Sample(m.SNAPSHOT_SAVES, (), measures.num_saves)
        snapshots = head.scheduler.snapshots if head else None
        yield Sample(m.SNAPSHOTS, (), len(snapshots) if snapshots is not None else 0)
        yield Sample(m.SNAPSHOT_BLOCKS, (), snapshots.num_blocks if snapshots is not None else 0)


def _traffic(traffic: LinkTraffic, codec: str, direction: str) -> Iterator[Sample]:
    yield Sample(m.CODEC_TIME, (codec,), traffic.codec_s)
    yield Sample(m.HOP_BYTES, (direction,), traffic.num_bytes)
    yield Sample(m.HOP_MESSAGES, (direction,), traffic.num_messages)
