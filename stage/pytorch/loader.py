"""A stage on PyTorch, loaded and proved: the layers of one range as `Operators`."""

from __future__ import annotations

from pathlib import Path

import torch

from stagewire.model.gguf import GgufFile
from stagewire.model.layout import EMBEDDING, stage_bytes
from stagewire.stage.compute.embedding import EmbeddingTable
from stagewire.stage.compute.memory import return_freed_memory
from stagewire.stage.compute.operators import BLOCK_SIZE
from stagewire.stage.pytorch.decoder import StageWeights, TorchDecoder
from stagewire.stage.pytorch.selftest import run_selftest
from stagewire.stage.pytorch.weights import WeightLoader, dtype_of
from stagewire.stage.settings import StageSettings
from stagewire.wire.card import ModelConfig
from stagewire.wire.errors import SettingsError


def load_torch_operators(
    path: Path, config: ModelConfig, settings: StageSettings, layer_end: int, precision: str
) -> TorchDecoder:
    """Load `[settings.layer_start, layer_end)`, each tensor once, and run the self-test.

    Raises:
        SettingsError: an unknown precision or device.
        ModelError: a tensor is missing, or of a type that cannot be read.
    """
    dtype, device = dtype_of(precision), _device_of(settings.device)
    torch.set_num_threads(settings.threads)
    selftest = run_selftest(config, precision, device)
    with GgufFile.open(path) as gguf:  # the embedding keeps its part mapped
        loader = WeightLoader(gguf, config, precision, settings.device)
        weights = StageWeights(
            embedding=EmbeddingTable(gguf, EMBEDDING) if settings.layer_start == 0 else None,
            layers=tuple(loader.layer(index) for index in range(settings.layer_start, layer_end)),
            output=loader.output() if layer_end == config.num_layers else None,
            dtype=dtype,
        )
        file_bytes = stage_bytes(gguf, config, settings.layer_start, layer_end)
        gguf.release_all()
    num_blocks = -(-settings.kv_tokens // BLOCK_SIZE)
    decoder = TorchDecoder(config, weights, num_blocks, device, selftest.group_sizes)
    decoder.fingerprint, decoder.is_row_exact = selftest.fingerprint, selftest.is_row_exact
    decoder.file_bytes, decoder.weight_bytes = file_bytes, weights.num_bytes
    return_freed_memory()
    return decoder


def _device_of(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device={name!r}: PyTorch cannot use it here ({error})") from error
    return device
