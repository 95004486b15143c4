"""The default model loaded once per test run and precision, and stages cut out of it without loading again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from support.in_process import InProcessPipeline

from stagewire.model.catalogue import DEFAULT_MODEL, resolve
from stagewire.model.config import read_config
from stagewire.model.gguf import GgufFile
from stagewire.model.layout import EMBEDDING
from stagewire.stage.compute.embedding import EmbeddingTable
from stagewire.stage.compute.operators import Operators
from stagewire.stage.compute.rotary import rotary_table
from stagewire.stage.native.decoder import KvPool, NativeDecoder
from stagewire.stage.native.kernel import best_kernel
from stagewire.stage.native.selftest import run_native_selftest
from stagewire.stage.native.weights import NativeLayer, NativeOutput, NativeWeightLoader
from stagewire.stage.pytorch.decoder import StageWeights, TorchDecoder
from stagewire.stage.pytorch.selftest import SelfTest, run_selftest
from stagewire.stage.pytorch.weights import WeightLoader, dtype_of
from stagewire.wire.card import ModelConfig

DEFAULT_PRECISION = "stored" if best_kernel() else "bf16"
"""What `auto` gives here."""


class Weights(Protocol):
    """All weights of the default model in one precision."""

    def stage(self, start: int, end: int, num_blocks: int) -> Operators:
        """These layers over a new KV pool."""


@dataclass(frozen=True)
class WholeModel:
    """`gguf` stays open for the embedding."""

    gguf: GgufFile
    config: ModelConfig
    weights: Weights

    def stage(self, start: int, end: int, num_blocks: int = 256) -> Operators:
        return self.weights.stage(start, end, num_blocks)

    def pipeline(self, *cuts: int, num_blocks: int = 256, **options: Any) -> InProcessPipeline:
        """Stages between these cuts, as `pipeline(12, 20)` for 0:12, 12:20, 20:30."""
        bounds = pairwise([0, *cuts, self.config.num_layers])
        stages = [self.stage(start, end, num_blocks) for start, end in bounds]
        return InProcessPipeline(stages, self.config.hidden_size, self.config.vocab_size, **options)


@dataclass(frozen=True)
class NativeWeights:
    """On the fastest native kernels of this machine."""

    kernel: ModuleType
    gguf: GgufFile
    config: ModelConfig
    precision: str
    embedding: EmbeddingTable
    layers: tuple[NativeLayer, ...]
    output: NativeOutput
    rotary: NDArray[np.float32]

    def stage(self, start: int, end: int, num_blocks: int) -> Operators:
        pool = KvPool.make(self.config, end - start, num_blocks, "f16")
        output = self.output if end == self.config.num_layers else None
        layers = self.layers[start:end]
        embedding = self.embedding if start == 0 else None
        decoder = NativeDecoder(self.kernel, self.config, layers, output, self.rotary, pool, 1, embedding)
        selftest = run_native_selftest(self.kernel, self.config, self.precision, "f16")
        decoder.fingerprint, decoder.is_row_exact = selftest.fingerprint, selftest.is_row_exact
        return decoder


@dataclass(frozen=True)
class TorchWeights:
    """On PyTorch."""

    config: ModelConfig
    weights: StageWeights
    selftest: SelfTest

    def stage(self, start: int, end: int, num_blocks: int) -> Operators:
        weights = StageWeights(
            self.weights.embedding if start == 0 else None,
            self.weights.layers[start:end],
            self.weights.output if end == self.config.num_layers else None,
            self.weights.dtype,
        )
        decoder = TorchDecoder(self.config, weights, num_blocks, torch.device("cpu"), self.selftest.group_sizes)
        decoder.fingerprint, decoder.is_row_exact = self.selftest.fingerprint, self.selftest.is_row_exact
        return decoder


@cache
def whole_model(precision: str = DEFAULT_PRECISION) -> WholeModel:
    gguf = GgufFile.open(resolve(DEFAULT_MODEL))
    config = read_config(gguf)
    load = _load_torch if precision in {"bf16", "f32"} else _load_native
    return WholeModel(gguf, config, load(gguf, config, precision))


def _load_native(gguf: GgufFile, config: ModelConfig, precision: str) -> Weights:
    chosen = best_kernel()
    assert chosen is not None, "no native kernels were built"
    loader = NativeWeightLoader(gguf, config, precision)
    layers = tuple(loader.layer(index) for index in range(config.num_layers))
    embedding = EmbeddingTable(gguf, EMBEDDING)
    return NativeWeights(
        chosen[1], gguf, config, precision, embedding, layers, loader.output(), rotary_table(config)
    )  # fmt: skip


def _load_torch(gguf: GgufFile, config: ModelConfig, precision: str) -> Weights:
    torch.set_num_threads(1)
    loader = WeightLoader(gguf, config, precision, "cpu")
    layers = tuple(loader.layer(index) for index in range(config.num_layers))
    embedding = EmbeddingTable(gguf, EMBEDDING)
    selftest = run_selftest(config, precision, torch.device("cpu"))
    return TorchWeights(config, StageWeights(embedding, layers, loader.output(), dtype_of(precision)), selftest)
