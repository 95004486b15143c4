"""Whole layers on the native kernels: the same bits however rows are cut, mixed, shared out or vectorized."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from support.made_up_model import SHAPES, even_chunks, logits_of, made_up_model, num_blocks_for
from support.native_operators import FAST_VARIANTS, Floats, kernel_or_skip, same_bits

from stagewire.stage.compute.operators import BLOCK_SIZE, Batch, SequenceRows
from stagewire.stage.native.decoder import NativeDecoder
from stagewire.stage.native.kernel import best_kernel, load_kernel
from stagewire.wire.errors import SettingsError

NUM_ROWS = 530
shapes = pytest.mark.parametrize("shape", SHAPES)
kv_dtypes = pytest.mark.parametrize("kv_dtype", ["f16", "f32"])


@pytest.fixture(autouse=True, scope="module")
def built() -> None:
    kernel_or_skip("portable")


def table_of(num_tokens: int, seed: int = 0, first_block: int = 0) -> NDArray[np.int32]:
    """Blocks in any order."""
    order = np.random.default_rng(seed).permutation(num_blocks_for(num_tokens))
    return (order + first_block).astype(np.int32)


def fastest(shape: str, kv_dtype: str, num_blocks: int, threads: int = 1) -> NativeDecoder:
    chosen = best_kernel()
    assert chosen is not None
    return made_up_model(shape).decoder(chosen[1], kv_dtype, num_blocks, threads)


@cache
def whole(shape: str, kv_dtype: str, num_rows: int, seed: int = 0) -> Floats:
    """Logits of the model's `hidden_states(num_rows, seed)`, one sequence alone, in a single step."""
    decoder = fastest(shape, kv_dtype, num_blocks_for(num_rows))
    table = np.arange(num_blocks_for(num_rows), dtype=np.int32)
    return logits_of(decoder, made_up_model(shape).hidden_states(num_rows, seed), [num_rows], table)


# ---- Instruction sets


CHUNKS = (130, 1, 2, 3, 4, 5, 7, 13)


def logits_and_pool(variant: str, shape: str, kv_dtype: str) -> tuple[Floats, NDArray[np.generic]]:
    model, kernel, num_rows = made_up_model(shape), kernel_or_skip(variant), sum(CHUNKS)
    decoder = model.decoder(kernel, kv_dtype, num_blocks_for(num_rows))
    logits = logits_of(decoder, model.hidden_states(num_rows), CHUNKS, table_of(num_rows))
    return logits, decoder.pool.blocks


@cache
def specified(shape: str, kv_dtype: str) -> tuple[Floats, NDArray[np.generic]]:
    return logits_and_pool("portable", shape, kv_dtype)


@pytest.mark.parametrize("variant", FAST_VARIANTS)
@kv_dtypes
@shapes
def test_every_instruction_set_gives_the_bits_of_the_portable_kernels(shape: str, kv_dtype: str, variant: str) -> None:
    """Logits, and all that is in the KV pool afterwards."""
    logits, pool = logits_and_pool(variant, shape, kv_dtype)
    expected_logits, expected_pool = specified(shape, kv_dtype)
    assert same_bits(logits, expected_logits)
    assert np.array_equal(pool.view(np.uint8), expected_pool.view(np.uint8))


# ---- Chunks, batches and threads


@pytest.mark.parametrize("size", [1, 2, 3, 5, 12, 16, 17, 31, 64, 127, 128, 129, 255, 512])
@shapes
def test_chunks_of_any_size_give_the_same_bits(shape: str, size: int) -> None:
    """Token by token, prefill, and all between."""
    hidden = made_up_model(shape).hidden_states(NUM_ROWS)
    decoder = fastest(shape, "f16", num_blocks_for(NUM_ROWS))
    logits = logits_of(decoder, hidden, even_chunks(NUM_ROWS, size), table_of(NUM_ROWS))
    assert np.isfinite(logits).all()
    assert same_bits(logits, whole(shape, "f16", NUM_ROWS))


@pytest.mark.parametrize("num_sequences", [1, 3, 8, 17])
@kv_dtypes
@shapes
def test_a_sequence_in_company_has_the_bits_that_it_has_alone(shape: str, kv_dtype: str, num_sequences: int) -> None:
    """Steps of random sequences in random order, chunks and single tokens mixed, more rows than one tile has."""
    model, rng = made_up_model(shape), np.random.default_rng(num_sequences)
    lengths = [int(length) for length in rng.integers(20, 120, num_sequences)]
    hidden = [model.hidden_states(length, seed) for seed, length in enumerate(lengths)]
    starts = np.cumsum([0, *map(num_blocks_for, lengths)])
    tables = [table_of(length, seed, int(starts[seed])) for seed, length in enumerate(lengths)]
    decoder = fastest(shape, kv_dtype, int(starts[-1]))
    logits: list[list[Floats]] = [[] for _ in lengths]
    done = [0] * num_sequences
    while open_ones := [i for i in range(num_sequences) if done[i] < lengths[i]]:
        chosen = rng.permutation(open_ones)[: rng.integers(1, len(open_ones) + 1)]
        sizes = [int(min(rng.choice([1, 1, 7, 40]), lengths[i] - done[i])) for i in chosen]
        slices, rows, start = [], [], 0
        for i, size in zip(chosen, sizes, strict=True):
            slices.append(SequenceRows(start, size, done[i], tables[i]))
            rows.append(hidden[i][done[i] : done[i] + size])
            done[i], start = done[i] + size, start + size
        out = decoder.forward(Batch.of([0] * start, slices, range(start)), np.concatenate(rows))
        for i, part in zip(chosen, slices, strict=True):
            logits[i].append(out[part.row_start : part.row_start + part.num_rows])
    for i in range(num_sequences):
        assert same_bits(np.concatenate(logits[i]), whole(shape, kv_dtype, lengths[i], seed=i)), i


@pytest.mark.parametrize("threads", [2, 3])
@shapes
def test_threads_share_outputs_and_change_no_bit(shape: str, threads: int) -> None:
    hidden, table = made_up_model(shape).hidden_states(150), table_of(150)
    decoder = fastest(shape, "f16", len(table), threads)
    logits = logits_of(decoder, hidden, [140, 1, 1, 3, 5], table)
    assert same_bits(logits, whole(shape, "f16", 150))


@shapes
def test_only_rows_that_are_asked_for_have_logits_in_the_order_asked(shape: str) -> None:
    hidden, table = made_up_model(shape).hidden_states(140), table_of(140)
    decoder = fastest(shape, "f16", len(table))
    wanted = [139, 0, 77, 77, 5]
    logits = decoder.forward(Batch.of([0] * 140, [SequenceRows(0, 140, 0, table)], wanted), hidden.copy())
    assert same_bits(logits, whole(shape, "f16", 140)[wanted])


# ---- Against float64


@pytest.mark.parametrize(("kv_dtype", "bound"), [("f32", 1e-5), ("f16", 1e-4)])
def test_layers_of_floats_are_near_plain_float64(kv_dtype: str, bound: float) -> None:
    """To the rounding of float32, over a long sequence; a key on the border of two halves may become the other one."""
    model = made_up_model("groups of 13")
    hidden = model.hidden_states(300)
    expected = model.reference(hidden, kv_dtype)
    assert np.abs(whole("groups of 13", kv_dtype, 300) - expected).max() <= bound * expected.std()


@kv_dtypes
@shapes
def test_layers_of_codes_are_near_plain_float64(shape: str, kv_dtype: str) -> None:
    """With rows rounded to codes alike, most short sequences agree to the rounding of float32.

    In the others some number lies on the border of two codes and took the other one, 1/127 of the largest in its
    block away; then nothing that comes after is wrong by more than a few of such steps.
    """
    model, errors = made_up_model(shape), []
    for seed in range(40):
        hidden = model.hidden_states(3, seed)
        expected = model.reference(hidden, kv_dtype)
        errors.append(np.abs(whole(shape, kv_dtype, 3, seed) - expected).max() / expected.std())
    assert np.median(errors) <= 1e-5
    assert np.max(errors) <= 0.1


@shapes
def test_long_sequences_stay_near_plain_float64(shape: str) -> None:
    model = made_up_model(shape)
    hidden = model.hidden_states(120)
    expected = model.reference(hidden, "f16")
    errors = np.abs(whole(shape, "f16", 120) - expected) / expected.std()
    assert errors.max() <= 0.15
    assert errors.mean() <= 0.01


# ---- Trouble


@pytest.mark.parametrize("trouble", [np.nan, np.inf, -np.inf, 3e38])
@kv_dtypes
@shapes
def test_a_broken_sequence_spoils_no_other(shape: str, kv_dtype: str, trouble: float) -> None:
    """Its NaNs lie in its own rows and blocks only, also where those were another's before."""
    model = made_up_model(shape)
    hidden, broken = model.hidden_states(40), model.hidden_states(40, seed=1)
    broken[3] = trouble
    broken[20, ::7] = trouble
    table, other = table_of(40), table_of(40, first_block=num_blocks_for(40))
    decoder = fastest(shape, kv_dtype, 2 * num_blocks_for(40))
    slices = [SequenceRows(0, 40, 0, other), SequenceRows(40, 40, 0, table)]
    logits = decoder.forward(Batch.of([0] * 80, slices, range(80)), np.concatenate([broken, hidden]))
    expected = whole(shape, kv_dtype, 40)
    assert not np.isfinite(logits[20]).all() or trouble == 3e38
    assert same_bits(logits[40:], expected)
    assert same_bits(logits_of(decoder, hidden, [39, 1], other), expected), "in the blocks that it has left"


def test_a_block_outside_the_pool_and_a_position_beyond_the_context_are_noticed() -> None:
    """The kernels would read memory at random."""
    shape = "groups of 1"
    decoder, rows = fastest(shape, "f16", 2), made_up_model(shape).hidden_states(1)
    for block in (-1, 2):
        table = np.array([block], np.int32)
        with pytest.raises(ValueError, match="outside the pool"):
            decoder.forward(Batch.of([0], [SequenceRows(0, 1, 0, table)], [0]), rows)
    context = SHAPES[shape].config.context_length
    table = np.zeros(context // BLOCK_SIZE + 1, np.int32)
    with pytest.raises(ValueError, match="beyond the context"):
        decoder.forward(Batch.of([0], [SequenceRows(0, 1, context, table)], [0]), rows)


def test_rows_tables_and_logits_that_do_not_fit_are_refused_by_the_kernel_itself() -> None:
    """Whatever a caller passes: slices that overlap or leave rows out, a short table, logits of no row."""
    decoder, rows = fastest("groups of 1", "f16", 2), made_up_model("groups of 1").hidden_states(2)
    kernel, handle, table = decoder._kernel, decoder._handle, np.array([0, 1], np.int32).tobytes()

    def forward(slices: list[int], tables: bytes = table, logit_rows: tuple[int, ...] = ()) -> None:
        packed = (np.array(numbers, np.int32).tobytes() for numbers in (slices, logit_rows))
        slice_bytes, logit_bytes = packed
        kernel.forward(handle, 2, rows.ctypes.data, slice_bytes, tables, logit_bytes, 0)

    forward([0, 2, 0, 0])
    for slices in ([0, 2, -1, 0], [1, 2, 0, 0], [0, 1, 0, 0, 0, 1, 0, 1], [0, 0, 0, 0, 0, 2, 0, 1]):
        with pytest.raises(ValueError, match="do not follow each other"):
            forward(slices)
    for slices in ([], [0, 1, 0, 0], [0, 3, 0, 0]):
        with pytest.raises(ValueError, match="without a sequence"):
            forward(slices)
    for slices, tables in (([0, 2, 15, 0], table[:4]), ([0, 2, 0, 2], table), ([0, 2, 0, -1], table)):
        with pytest.raises(ValueError, match="ends early"):
            forward(slices, tables)
    for row in (-1, 2):
        with pytest.raises(ValueError, match="outside the batch"):
            forward([0, 2, 0, 0], logit_rows=(row,))


# ---- What both sides take for granted


def test_kernels_of_another_layout_are_refused_with_both_sides_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that an older tree has left: with another version, another block, or before there were any."""
    kernel = kernel_or_skip("portable")
    for name in ("LAYOUT_VERSION", "KV_BLOCK", "PANEL", "BLOCK"):
        with monkeypatch.context() as patch:
            patch.setattr(kernel, name, 7)
            with pytest.raises(SettingsError, match=rf"portable kernels.*'{name}': 7.*build or install again"):
                load_kernel("portable")
            patch.delattr(kernel, name)
            with pytest.raises(SettingsError, match=rf"'{name}': None"):
                load_kernel("portable")


def test_a_description_of_another_version_length_or_size_is_refused() -> None:
    """Instead of reading on past its end, or matrices past theirs."""
    model, kernel = made_up_model("groups of 1"), kernel_or_skip("portable")
    decoder = model.decoder(kernel, "f16", 2)
    layers, output = [layer.native for layer in model.layers], model.output
    words = decoder._describe(layers, output)
    for length in range(0, len(words), 8):
        with pytest.raises(ValueError, match="too short"):
            kernel.create(words[:length], 1)
    with pytest.raises(ValueError, match="too long"):
        kernel.create(words + bytes(8), 1)
    with pytest.raises(ValueError, match="another layout"):
        kernel.create(bytes(8) + words[8:], 1)
    swapped = replace(layers[0], matrices=(*layers[0].matrices[:-1], layers[0].matrices[0]))
    with pytest.raises(ValueError, match="another size"):
        kernel.create(decoder._describe([swapped, *layers[1:]], output), 1)


# ---- What another library has set


class FloatControl:
    """The control bits of this thread's MXCSR register, by way of the C library's fenv_t."""

    FLUSH = 0x8040  # flush to zero, denormals are zero
    ROUND_DOWN = 0x2000

    def __init__(self) -> None:
        self._library, self._environment = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()

    def get(self) -> int:
        self._library.fegetenv(self._environment)
        return self._environment[7] & 0xFFC0

    @contextmanager
    def set(self, bits: int) -> Iterator[None]:
        before = self.get()
        self._environment[7] = before | bits
        self._library.fesetenv(self._environment)
        try:
            yield
        finally:
            self._library.fegetenv(self._environment)
            self._environment[7] = before
            self._library.fesetenv(self._environment)


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="the layout of glibc's fenv_t on x86-64"
)
@pytest.mark.parametrize("variant", ["portable", *FAST_VARIANTS])
@pytest.mark.parametrize("bits", [FloatControl.FLUSH, FloatControl.ROUND_DOWN, FloatControl.FLUSH | 0x6000])
@pytest.mark.parametrize("threads", [1, 3])
def test_float_modes_that_others_have_set_change_no_bit_and_stay_set(variant: str, bits: int, threads: int) -> None:
    """Subnormal rows, which flushing would make zero, and rounding in another direction."""
    model, kernel, control = made_up_model("groups of 13"), kernel_or_skip(variant), FloatControl()
    hidden, table = model.hidden_states(20), table_of(20)
    hidden[::2] *= np.float32(1e-39)
    expected = logits_of(model.decoder(kernel, "f32", len(table)), hidden, [20], table)
    assert (expected != 0).all()

    def run() -> tuple[Floats, list[int]]:
        with control.set(bits):
            modes = [control.get()]
            decoder = model.decoder(kernel, "f32", len(table), threads)
            modes.append(control.get())
            logits = logits_of(decoder, hidden, [20], table)
            modes.append(control.get())
        return logits, modes

    with ThreadPoolExecutor(1) as fresh_thread:
        logits, modes = fresh_thread.submit(run).result(timeout=60)
    assert modes[0] & bits == bits
    assert modes == modes[:1] * 3
    assert same_bits(logits, expected)
