"""Looks at a whole model file before any process is started, so that no stage finds out later what all could know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stagewire.model.card import build_card
from stagewire.model.gguf import GgufFile
from stagewire.model.layout import stage_tensors
from stagewire.model.name import model_name
from stagewire.model.sampling_defaults import gguf_sampling
from stagewire.wire.card import ModelCard

_MAX_PADDING = 1 << 16


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A file whose tensors, shapes, types and vocabulary are what the stages will want of it.

    `path` is where it lies, `remarks` what is odd about it and does no harm, one line each.
    """

    path: Path
    card: ModelCard
    remarks: tuple[str, ...]


def check_model(given: str, path: Path) -> CheckedModel:
    """Checks the file at `path`, which somebody named `given`, for all layers.

    Reads its header and its vocabulary, no weights.

    Raises:
        ModelError: as `read_config`, `build_card` and `stage_tensors`.
    """
    remarks: list[str] = []
    with GgufFile.open(path) as gguf:
        card = build_card(gguf, model_name(given, gguf))
        stage_tensors(gguf, card.config, 0, card.config.num_layers)
        num_trailing = gguf.num_bytes - gguf.data_end
        is_padding = num_trailing <= _MAX_PADDING and not gguf.read_bytes(gguf.data_end, num_trailing).strip(b"\0")
        gguf_sampling(gguf, tell=lambda line: remarks.append(f"{path.name}: {line}"))
    odd = f"{path}: {num_trailing} bytes behind the last tensor, which nobody reads; was it fetched as it should be?"
    return CheckedModel(path, card, tuple(remarks if is_padding else [*remarks, odd]))
