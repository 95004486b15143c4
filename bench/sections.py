"""The parts of a run besides the works: a single stage, our own figures, and accuracy, each as rows and figures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bench.accuracy import Accuracy, compare, load, logits_of, text_token_ids
from bench.compare import SideBySide
from bench.llama_setting import Buffers, LlamaSetting
from bench.llama_side import LlamaFailedError, LlamaSide
from bench.measurements import AccuracyLine
from bench.mixed_load import MIXED_PROMPT_TOKENS, mixed_load
from bench.own import cost_figures, hop_bytes, latency_figures, memory_figures
from bench.peers import KINDS, TOTAL_THREADS, name_of
from bench.record import Record
from bench.results import MILLISECONDS, NATS, SHARE, Figure, row
from bench.samples import median
from bench.stagewire_side import StagewireSide
from bench.targets import MIXED_LOAD_LIMIT, OVERHEAD_LIMIT_MS
from bench.token_cost import measure_token_cost
from stagewire.model.catalogue import resolve
from stagewire.model.config import read_config
from stagewire.model.gguf import GgufFile
from stagewire.wire.errors import SettingsError

LIMIT = "limit"
MIXED_WORK = f"inter_token_p99_while_{MIXED_PROMPT_TOKENS}_prefill"
PRECISIONS = ("stored", "int8", "int4", "bf16")
REFERENCE = "f32"
_TEXT_TOKENS = 768


def own_figures(bench: SideBySide, side: StagewireSide, model: str, runs: int, progress: Callable[[str], None]) -> None:
    """Time to first token, gaps, overhead, bytes per hop, memory, and the gaps while a long prompt is prefilled."""
    progress("our own figures: time to first token, overhead, memory")
    bench.record.step("overhead_per_token", lambda: _parts(bench.record, side, model, runs))
    progress(f"our own figures: gaps of running sequences while {MIXED_PROMPT_TOKENS} tokens are prefilled")
    bench.record.step(MIXED_WORK, lambda: _gaps_under_load(bench.record, side, runs))


def _parts(record: Record, side: StagewireSide, model: str, runs: int) -> None:
    num_stages = len(side.cluster.status().stages)
    cost = measure_token_cost(side, runs)
    with GgufFile.open(resolve(model)) as gguf:
        hidden_size = read_config(gguf).hidden_size
    hops = [
        Figure(f"bytes on each hop, a decode step of {count} sequences", hop_bytes(count, hidden_size), "B")
        for count in (1, 8)
    ]
    record.measured.figures += latency_figures(side, runs) + cost_figures(cost, num_stages) + hops
    record.measured.figures += memory_figures(side)
    record.rows.append(row("overhead_per_token", LIMIT, MILLISECONDS, 1000 * cost.overhead_s, OVERHEAD_LIMIT_MS, runs))


def _gaps_under_load(record: Record, side: StagewireSide, runs: int) -> None:
    loads = [mixed_load(side) for _ in range(runs)]
    calm_ms = 1000 * median([load.calm_p50_s for load in loads])
    loaded_ms = 1000 * median([load.loaded_p99_s for load in loads])
    record.measured.figures += [
        Figure("4 sequences: inter-token p50, nothing else running", calm_ms, "ms"),
        Figure(f"the same 4: inter-token p99 while {MIXED_PROMPT_TOKENS} tokens are prefilled", loaded_ms, "ms"),
        Figure("how long that prefill takes", median([load.prefill_s for load in loads]), "s"),
    ]
    record.rows.append(row(MIXED_WORK, LIMIT, MILLISECONDS, loaded_ms, MIXED_LOAD_LIMIT * calm_ms, runs))


def accuracy(bench: SideBySide, model: str, served: str, progress: Callable[[str], None]) -> None:
    """KL divergence from float32 and agreement on the likeliest token, of every precision and every peer's file."""
    token_ids = text_token_ids(model, _TEXT_TOKENS)
    progress(f"accuracy over {len(token_ids)} positions: float32")
    reference = logits_of(load(model, REFERENCE, len(token_ids)), token_ids)
    found: dict[str, Accuracy] = {}
    for precision in PRECISIONS:
        try:
            progress(f"accuracy: {precision}")
            found[precision] = compare(reference, logits_of(load(model, precision, len(token_ids)), token_ids))
        except SettingsError as error:
            progress(f"accuracy: {precision} is left out: {error.detail}")
    with LlamaSide(TOTAL_THREADS) as llama:
        for kind in KINDS:
            progress(f"accuracy: {name_of(kind)}")
            try:
                found[name_of(kind)] = compare(reference, _peer_logits(llama, bench.files[kind], token_ids))
            except LlamaFailedError as error:
                bench.record.left_out(f"{name_of(kind)} at accuracy", error)
    bench.record.measured.accuracy = [
        AccuracyLine(f"stagewire {who}" if who in PRECISIONS else who, one.kl, one.top1, len(token_ids))
        for who, one in found.items()
    ]
    if served in found:
        for peer in [name_of(kind) for kind in KINDS if name_of(kind) in found]:
            ours, theirs = found[served], found[peer]
            bench.record.rows.append(row("kl_to_float32", peer, NATS, ours.kl, theirs.kl, 1))
            bench.record.rows.append(row("top1_of_float32", peer, SHARE, ours.top1, theirs.top1, 1))


def _peer_logits(llama: LlamaSide, file: str, token_ids: list[int]) -> NDArray[np.float32]:
    """With the library's own layout of weights, or else, where that crashes, as they are in the file."""
    try:
        return llama.logits(LlamaSetting(file=file, threads=TOTAL_THREADS), token_ids)
    except LlamaFailedError:
        plain = LlamaSetting(file=file, threads=TOTAL_THREADS, buffers=Buffers.PLAIN)
        return llama.logits(plain, token_ids)
