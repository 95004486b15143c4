"""Prints what each precision costs and keeps: memory of the weights, and how far the logits are from float32.

`python -m bench.precisions` makes the table of docs/models.md, from a fixed text in chunks of 512 positions, each a
sequence of its own. The reference is PyTorch in float32 on the same file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bench.accuracy import TEXT_PATH, compare, load, logits_of, text_token_ids
from stagewire.model.catalogue import DEFAULT_MODEL

_SEQUENCE_TOKENS = 512
_CHOICES = (("stored", "f16"), ("stored", "f32"), ("int8", "f16"), ("int4", "f16"), ("bf16", "auto"), ("f32", "auto"))


def _sequences(token_ids: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(token_ids), _SEQUENCE_TOKENS):
        yield token_ids[start : start + _SEQUENCE_TOKENS]


def _row(model: str, choice: tuple[str, str], token_ids: list[int], references: list[NDArray[np.float32]]) -> str:
    operators = load(model, choice[0], _SEQUENCE_TOKENS, choice[1])
    pairs = zip(references, _sequences(token_ids), strict=True)
    parts = [compare(reference, logits_of(operators, sequence)) for reference, sequence in pairs]
    sizes = [len(reference) for reference in references]
    kl, top1 = (float(np.average([getattr(p, name) for p in parts], weights=sizes)) for name in ("kl", "top1"))
    return f"| `{choice[0]}` | {choice[1]} | {operators.weight_bytes / 1e6:.0f} MB | {kl:.5f} | {100 * top1:.1f}% |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a .gguf file, or a name from the catalogue")
    parser.add_argument("--tokens", type=int, default=100_000, help="how much of the text; all of it if not said")
    options = parser.parse_args()
    token_ids = text_token_ids(options.model, options.tokens)
    reference = load(options.model, "f32", _SEQUENCE_TOKENS)
    references = [logits_of(reference, sequence) for sequence in _sequences(token_ids)]
    print(f"{len(token_ids)} positions of {TEXT_PATH.name}\n")
    print("| `--precision` | KV cache | weights | KL to float32 | same first token |\n|---|---|---|---|---|")
    for choice in _CHOICES:
        print(_row(options.model, choice, token_ids, references), flush=True)


if __name__ == "__main__":
    main()
