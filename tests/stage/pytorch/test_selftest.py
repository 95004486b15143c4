"""The self-test finds out whether rows are exact: no false claim, no needless caution, the same name every time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from stagewire.stage.compute.operators import Batch, SequenceRows
from stagewire.stage.pytorch import attention as torch_attention
from stagewire.stage.pytorch.decoder import StageWeights, TorchDecoder
from stagewire.stage.pytorch.selftest import run_selftest
from stagewire.stage.pytorch.weights import WeightLoader, dtype_of
from stagewire.wire.card import ModelConfig

CPU = torch.device("cpu")
NUM_TOKENS = 270


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Two threads that spin for each other on a busy machine take ten times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def config(num_heads: int, num_kv_heads: int, head_dim: int) -> ModelConfig:
    """A narrow model with heads like these."""
    return ModelConfig(
        "llama", 2, 128, num_heads, num_kv_heads, head_dim, 192, 300, 512, 1e-5, 10000.0, head_dim, False
    )


class RandomTensors:
    """Gaussian weights: other numbers than the self-test's own."""

    def __init__(self, config: ModelConfig) -> None:
        self._config, self._rng = config, np.random.default_rng(5)

    def dequantize(self, name: str, row_start: int = 0, row_end: int | None = None) -> NDArray[np.float32]:
        columns = {
            "attn_output": self._config.num_heads * self._config.head_dim,
            "ffn_down": self._config.intermediate_size,
        }.get(name.split(".")[-2], self._config.hidden_size)
        if "norm" in name:
            return np.ones(columns, np.float32)
        assert row_end is not None
        values: NDArray[np.float32] = self._rng.standard_normal((row_end - row_start, columns), np.float32)
        values *= np.float32(columns**-0.5)
        return values

    def release(self, name: str) -> None:
        """Nothing to give back."""


# Heads as in common models; with 1 and 4 query heads in a group, products of so few rows are not exact everywhere.
@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 64), (8, 2, 128), (6, 3, 80), (4, 1, 256)])
@pytest.mark.parametrize("precision", ["bf16", "f32"])
def test_what_it_calls_exact_is_exact_with_other_weights(heads: tuple[int, int, int], precision: str) -> None:
    """Prefill against token by token across two key tiles, with the group sizes that the self-test chose."""
    shape = config(*heads)
    found = run_selftest(shape, precision, CPU)
    if not found.is_row_exact:
        pytest.skip("this machine's rows are not exact, and the self-test says so")
    loader = WeightLoader(RandomTensors(shape), shape, precision, "cpu")
    weights = StageWeights(None, (loader.layer(0),), loader.output(), dtype_of(precision))
    decoder = TorchDecoder(shape, weights, 40, CPU, found.group_sizes)
    rows = np.random.default_rng(6).standard_normal((NUM_TOKENS, 128)).astype(np.float32)

    def run(chunks: list[int], table: NDArray[np.int32]) -> NDArray[np.float32]:
        logits, position = [], 0
        for num in chunks:
            batch = Batch.of([0] * num, [SequenceRows(0, num, position, table)], range(num))
            logits.append(decoder.forward(batch, rows[position : position + num]))
            position += num
        return np.concatenate(logits)

    whole = run([NUM_TOKENS], np.arange(17, dtype=np.int32))
    spans = run([30, *[1] * 20, 5, 2, 190, *[1] * 23], np.arange(39, 22, -1, dtype=np.int32))
    assert np.array_equal(whole, spans)


def test_it_notices_products_that_depend_on_their_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One unit in the last place is enough, in bfloat16 as well, where rounding hides most of it."""
    exact = torch_attention._product

    def inexact(left: Tensor, right: Tensor) -> Tensor:
        return exact(left, right) * (1 + 2.0**-23 if left.shape[2] % 32 else 1)

    monkeypatch.setattr(torch_attention, "_product", inexact)
    found = run_selftest(config(6, 3, 64), "bf16", CPU)
    # Groups of 8 tokens and 2 heads are 16 rows in decode and in prefill: exact again, and slower.
    assert (found.group_sizes.few, found.group_sizes.many) == (8, 8)


def test_it_notices_when_nothing_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that depends on how many groups it is given: the flag says no, and a stage may still run."""
    exact = torch_attention._product

    def inexact(left: Tensor, right: Tensor) -> Tensor:
        return exact(left, right) * (1 + 2.0**-23 * left.shape[1])

    monkeypatch.setattr(torch_attention, "_product", inexact)
    assert not run_selftest(config(6, 3, 64), "bf16", CPU).is_row_exact


def test_a_fingerprint_is_repeatable_and_belongs_to_its_arithmetic() -> None:
    """The same in every process that computes the same; another for another precision or rotation."""
    shape = config(6, 3, 64)
    first = run_selftest(shape, "bf16", CPU).fingerprint
    assert run_selftest(shape, "bf16", CPU).fingerprint == first
    assert run_selftest(shape, "f32", CPU).fingerprint != first
    other = ModelConfig("llama", 2, 128, 6, 3, 64, 192, 300, 512, 1e-5, 500000.0, 64, False)
    assert run_selftest(other, "bf16", CPU).fingerprint != first
