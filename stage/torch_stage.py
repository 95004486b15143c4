"""A stage on PyTorch, loaded and proved: the layers of one range as `Operators`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from stagewire.model.gguf import GgufFile
from stagewire.model.layout import EMBEDDING, stage_tensors
from stagewire.stage.embedding import EmbeddingTable
from stagewire.stage.memory import return_freed_memory
from stagewire.stage.operators import BLOCK_SIZE, Batch
from stagewire.stage.selftest import SelfTest, run_selftest
from stagewire.stage.settings import StageSettings
from stagewire.stage.torch_decoder import StageWeights, TorchDecoder
from stagewire.stage.torch_weights import WeightLoader, dtype_of
from stagewire.wire.card import ModelConfig
from stagewire.wire.errors import SettingsError


class TorchOperators:
    """`Operators` in plain PyTorch; see there. It keeps the file open where it looks embeddings up."""

    def __init__(
        self, gguf: GgufFile, decoder: TorchDecoder, selftest: SelfTest, file_bytes: int, weight_bytes: int
    ) -> None:
        self._gguf, self._decoder, self._selftest = gguf, decoder, selftest
        self._file_bytes, self._weight_bytes = file_bytes, weight_bytes

    @property
    def fingerprint(self) -> str:
        return self._selftest.fingerprint

    @property
    def is_row_exact(self) -> bool:
        return self._selftest.is_row_exact

    @property
    def num_blocks(self) -> int:
        return self._decoder.num_blocks

    @property
    def block_bytes(self) -> int:
        return self._decoder.block_bytes

    @property
    def file_bytes(self) -> int:
        return self._file_bytes

    @property
    def weight_bytes(self) -> int:
        return self._weight_bytes

    def copy_block(self, source: int, target: int) -> None:
        self._decoder.copy_block(source, target)

    def read_block(self, block: int) -> bytes:
        return self._decoder.read_block(block)

    def write_block(self, block: int, content: bytes) -> None:
        self._decoder.write_block(block, content)

    def forward(self, batch: Batch, hidden_states: NDArray[np.float32] | None) -> NDArray[np.float32]:
        return self._decoder.forward(batch, hidden_states)


def load_torch_operators(
    path: Path, config: ModelConfig, settings: StageSettings, layer_end: int, precision: str
) -> TorchOperators:
    """Load `[settings.layer_start, layer_end)`, each tensor once, and run the self-test.

    Raises:
        SettingsError: an unknown precision or device.
        ModelError: a tensor is missing, or of a type that cannot be read.
    """
    dtype, device = dtype_of(precision), _device_of(settings.device)
    torch.set_num_threads(settings.threads)
    selftest = run_selftest(config, precision, device)
    gguf = GgufFile.open(path)
    names = stage_tensors(gguf, config, settings.layer_start, layer_end)
    loader = WeightLoader(gguf, config, precision, settings.device)
    weights = StageWeights(
        embedding=EmbeddingTable(gguf, EMBEDDING) if settings.layer_start == 0 else None,
        layers=tuple(loader.layer(index) for index in range(settings.layer_start, layer_end)),
        output=loader.output() if layer_end == config.num_layers else None,
        dtype=dtype,
    )
    num_blocks = -(-settings.kv_tokens // BLOCK_SIZE)
    decoder = TorchDecoder(config, weights, num_blocks, device, selftest.group_sizes)
    gguf.release_all()
    return_freed_memory()
    file_bytes = sum(gguf.tensor(name).num_bytes for name in names)
    return TorchOperators(gguf, decoder, selftest, file_bytes, weights.num_bytes)


def _device_of(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device={name!r}: PyTorch cannot use it here ({error})") from error
    return device
