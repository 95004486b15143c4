"""Prints what each precision costs and keeps: memory of the weights, and how far the logits are from float32.

`python bench/precisions.py` makes the table of docs/models.md, from a fixed text in chunks of 512 positions, each a
sequence of its own. The reference is PyTorch in float32 on the same file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stagewire.client.text.tokenizer import Tokenizer
from stagewire.model.card import build_card
from stagewire.model.catalogue import DEFAULT_MODEL, resolve
from stagewire.model.config import read_config
from stagewire.model.gguf import GgufFile
from stagewire.stage.backend import load_backend
from stagewire.stage.operators import BLOCK_SIZE, Batch, Operators, SequenceRows
from stagewire.stage.settings import StageSettings

TEXT = Path(__file__).resolve().parent / "prose.txt"
_SEQUENCE_TOKENS = 512
_ROWS_AT_ONCE = 128
_CHOICES = (("stored", "f16"), ("stored", "f32"), ("int8", "f16"), ("int4", "f16"), ("bf16", "auto"), ("f32", "auto"))

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Distance:
    """`kl` in nats, the mean over positions; `top1` the share of positions with the same likeliest token."""

    kl: float
    top1: float


def distance(reference: Logits, logits: Logits) -> Distance:
    """Of two float32 [T, V]."""
    expected, given = _log_probabilities(reference), _log_probabilities(logits)
    kl = (np.exp(expected) * (expected - given)).sum(axis=1)
    return Distance(float(kl.mean()), float((expected.argmax(axis=1) == given.argmax(axis=1)).mean()))


def text_token_ids(path: Path, num_tokens: int) -> list[int]:
    """The beginning of our fixed text, in the tokens of the model at `path`."""
    with GgufFile.open(path) as gguf:
        return Tokenizer(build_card(gguf, "model")).encode(TEXT.read_text(encoding="utf-8"))[:num_tokens]


def load(path: Path, precision: str, kv_precision: str) -> Operators:
    """All layers in one stage."""
    with GgufFile.open(path) as gguf:
        config = read_config(gguf)
    settings = StageSettings(
        model=str(path),
        control_endpoint="tcp://127.0.0.1:1",
        precision=precision,
        kv_precision=kv_precision,
        kv_tokens=_SEQUENCE_TOKENS,
    )
    return load_backend(path, config, settings, config.num_layers).operators


def logits_of(operators: Operators, token_ids: list[int]) -> Iterator[Logits]:
    """Of all positions, [128, V] at a time; every 512 tokens a new sequence begins."""
    table = np.arange(_SEQUENCE_TOKENS // BLOCK_SIZE, dtype=np.int32)
    for start in range(0, len(token_ids), _ROWS_AT_ONCE):
        part = token_ids[start : start + _ROWS_AT_ONCE]
        rows = SequenceRows(0, len(part), start % _SEQUENCE_TOKENS, table)
        yield operators.forward(Batch.of(part, [rows], range(len(part))), None)


def _log_probabilities(logits: Logits) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _row(path: Path, choice: tuple[str, str], token_ids: list[int], references: list[Logits]) -> str:
    operators = load(path, *choice)
    parts = [distance(*pair) for pair in zip(references, logits_of(operators, token_ids), strict=True)]
    sizes = [len(reference) for reference in references]
    kl, top1 = (float(np.average([getattr(p, name) for p in parts], weights=sizes)) for name in ("kl", "top1"))
    return f"| `{choice[0]}` | {choice[1]} | {operators.weight_bytes / 1e6:.0f} MB | {kl:.5f} | {100 * top1:.1f}% |"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a .gguf file, or a name from the catalogue")
    parser.add_argument("--tokens", type=int, default=100_000, help="how much of the text; all of it if not said")
    options = parser.parse_args()
    path = resolve(options.model)
    token_ids = text_token_ids(path, options.tokens)
    references = list(logits_of(load(path, "f32", "auto"), token_ids))
    _say(f"{len(token_ids)} positions of {TEXT.name}, {path.name}\n")
    _say("| `--precision` | KV cache | weights | KL to float32 | same first token |\n|---|---|---|---|---|")
    for choice in _CHOICES:
        _say(_row(path, choice, token_ids, references))


if __name__ == "__main__":
    main()
