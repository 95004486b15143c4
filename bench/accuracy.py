"""How far the logits of a precision are from float32: KL divergence and agreement on the likeliest token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stagewire.client.text.tokenizer import Tokenizer
from stagewire.model.card import build_card
from stagewire.model.catalogue import resolve
from stagewire.model.gguf import GgufFile
from stagewire.stage.compute.operators import BLOCK_SIZE, Batch, Operators, SequenceRows
from stagewire.stage.settings import StageSettings
from stagewire.stage.worker import load_stage

TEXT_PATH = Path(__file__).resolve().parent / "prose.txt"
_ROWS_AT_ONCE = 128
_FEWEST_KV_TOKENS = 64
_NOWHERE = "tcp://127.0.0.1:1"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """`kl` in nats, the mean over all positions; `top1` the share of positions with the same likeliest token."""

    kl: float
    top1: float


def compare(reference: NDArray[np.float32], logits: NDArray[np.float32]) -> Accuracy:
    """Of two float32 [T, V] arrays of logits."""
    expected, given = _log_probabilities(reference), _log_probabilities(logits)
    kl = np.sum(np.exp(expected) * (expected - given), axis=1)
    top1 = np.argmax(reference, axis=1) == np.argmax(logits, axis=1)
    return Accuracy(float(np.mean(kl)), float(np.mean(top1)))


def _log_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    normalized: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalized


def text_token_ids(model: str, num_tokens: int) -> list[int]:
    """The beginning of our fixed text in a model's tokens."""
    with GgufFile.open(resolve(model)) as gguf:
        tokenizer = Tokenizer(build_card(gguf, "model"))
    return tokenizer.encode(TEXT_PATH.read_text(encoding="utf-8"))[:num_tokens]


def load(model: str, precision: str, num_tokens: int, kv_precision: str = "auto") -> Operators:
    """All layers in one stage, in this process, with room for a sequence of `num_tokens`.

    Raises:
        SettingsError: this installation has no such precision.
    """
    kv_tokens = max(_FEWEST_KV_TOKENS, num_tokens)
    settings = StageSettings(
        model=model, control_endpoint=_NOWHERE, precision=precision, kv_precision=kv_precision, kv_tokens=kv_tokens
    )
    return load_stage(settings).backend.operators


def logits_of(operators: Operators, token_ids: list[int]) -> NDArray[np.float32]:
    """Of all positions of one sequence: float32 [T, V]."""
    table = np.arange(-(-len(token_ids) // BLOCK_SIZE), dtype=np.int32)
    parts = []
    for start in range(0, len(token_ids), _ROWS_AT_ONCE):
        part = token_ids[start : start + _ROWS_AT_ONCE]
        rows = SequenceRows(0, len(part), start, table)
        parts.append(operators.forward(Batch.of(part, [rows], range(len(part))), None))
    return np.concatenate(parts)
