"""The default model loaded once per test run and precision, and stages cut out of it without loading again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from in_process import InProcessPipeline
from numpy.typing import NDArray

from stagewire.model.catalogue import DEFAULT_MODEL, resolve
from stagewire.model.config import read_config
from stagewire.model.gguf import GgufFile
from stagewire.model.layout import EMBEDDING
from stagewire.stage.attention_plan import GroupSizes
from stagewire.stage.embedding import EmbeddingTable
from stagewire.stage.operators import Batch
from stagewire.stage.selftest import run_selftest
from stagewire.stage.torch_decoder import StageWeights, TorchDecoder
from stagewire.stage.torch_weights import WeightLoader, dtype_of
from stagewire.wire.card import ModelConfig


@dataclass(frozen=True)
class WholeModel:
    """All weights of the default model in one precision; `gguf` stays open for the embedding."""

    gguf: GgufFile
    config: ModelConfig
    weights: StageWeights
    group_sizes: GroupSizes

    def stage(self, start: int, end: int, num_blocks: int = 256) -> CutStage:
        weights = StageWeights(
            self.weights.embedding if start == 0 else None,
            self.weights.layers[start:end],
            self.weights.output if end == self.config.num_layers else None,
            self.weights.dtype,
        )
        decoder = TorchDecoder(self.config, weights, num_blocks, torch.device("cpu"), self.group_sizes)
        return CutStage(decoder)

    def pipeline(self, *cuts: int, num_blocks: int = 256, **options: int) -> InProcessPipeline:
        """Stages between these cuts, as `pipeline(12, 20)` for 0:12, 12:20, 20:30."""
        bounds = pairwise([0, *cuts, self.config.num_layers])
        stages = [self.stage(start, end, num_blocks) for start, end in bounds]
        return InProcessPipeline(stages, self.config.hidden_size, self.config.vocab_size, **options)


class CutStage:
    """Some layers of a `WholeModel` as `Operators`."""

    is_row_exact = True
    fingerprint = "test"
    file_bytes = weight_bytes = 0

    def __init__(self, decoder: TorchDecoder) -> None:
        self._decoder = decoder

    @property
    def num_blocks(self) -> int:
        return self._decoder.num_blocks

    @property
    def block_bytes(self) -> int:
        return self._decoder.block_bytes

    def copy_block(self, source: int, target: int) -> None:
        self._decoder.copy_block(source, target)

    def read_block(self, block: int) -> bytes:
        return self._decoder.read_block(block)

    def write_block(self, block: int, content: bytes) -> None:
        self._decoder.write_block(block, content)

    def forward(self, batch: Batch, hidden_states: NDArray[np.float32] | None) -> NDArray[np.float32]:
        return self._decoder.forward(batch, hidden_states)


@cache
def whole_model(precision: str) -> WholeModel:
    torch.set_num_threads(1)
    gguf = GgufFile.open(resolve(DEFAULT_MODEL))
    config = read_config(gguf)
    loader = WeightLoader(gguf, config, precision, "cpu")
    layers = tuple(loader.layer(index) for index in range(config.num_layers))
    embedding = EmbeddingTable(gguf, EMBEDDING)
    sizes = run_selftest(config, precision, torch.device("cpu")).group_sizes
    return WholeModel(gguf, config, StageWeights(embedding, layers, loader.output(), dtype_of(precision)), sizes)
