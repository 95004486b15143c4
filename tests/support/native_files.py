"""Small model files with tensors of any type, for stages on the native kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from support.model_files import METADATA, NUM_LAYERS, Value, write_metadata

from stagewire.model.gguf_types import TYPE_BY_NAME

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MIDDLE, VOCAB = 256, 16, 4, 16, 512, 40

# Where a block has its halves; elsewhere any byte will do.
_HALVES: Mapping[str, tuple[int, ...]] = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "IQ4_NL": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,), "TQ2_0": (64,),
}  # fmt: skip


def stored_rows(kind: str, outputs: int, inputs: int, seed: int) -> NDArray[np.generic]:
    """Random rows of one type as a file holds them: [outputs, bytes of a row], or floats."""
    rng = np.random.default_rng(seed)
    if kind in ("F32", "F16", "BF16"):
        floats = rng.standard_normal((outputs, inputs)).astype(np.float32) / np.float32(inputs**0.5)
        stored: NDArray[np.generic] = gguf.quantize(floats, gguf.GGMLQuantizationType[kind])
        return stored
    block = TYPE_BY_NAME[kind]
    blocks = rng.integers(0, 256, (outputs, inputs // block.block_size, block.block_bytes), np.uint8)
    for offset in _HALVES.get(kind, ()):
        halves = rng.uniform(1e-4, 4e-4, blocks.shape[:2]).astype("<f2")
        blocks[:, :, offset : offset + 2] = halves[:, :, None].view(np.uint8)
    return blocks.reshape(outputs, -1)


def write_native_model(
    path: Path,
    kind: str | Mapping[str, str] = "Q4_1",
    changes: Mapping[str, Value] | None = None,
    vocab: int = VOCAB,
) -> Path:
    """Two layers with matrices of one type, or of `kind[""]` but for tensors whose names end as another key says."""
    kinds = {"": kind} if isinstance(kind, str) else dict(kind)
    metadata = dict(METADATA) | {
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": MIDDLE,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.key_length": HEAD_DIM,
        "llama.attention.value_length": HEAD_DIM,
        "llama.rope.dimension_count": HEAD_DIM,
        **(changes or {}),
    }
    sizes = {key.removeprefix("llama."): value for key, value in metadata.items() if isinstance(value, int)}
    writer = gguf.GGUFWriter(path, "llama")
    write_metadata(writer, metadata)
    for seed, (name, shape) in enumerate(_shapes(sizes, vocab).items()):
        if len(shape) == 1:
            writer.add_tensor(name, np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(np.float32))
            continue
        outputs, inputs = shape
        chosen = next(kinds[end] for end in sorted(kinds, key=len, reverse=True) if name.endswith(end))
        writer.add_tensor(name, stored_rows(chosen, outputs, inputs, seed), raw_dtype=gguf.GGMLQuantizationType[chosen])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shapes(sizes: Mapping[str, int], vocab: int) -> dict[str, tuple[int, ...]]:
    hidden, middle = sizes["embedding_length"], sizes["feed_forward_length"]
    query = sizes["attention.head_count"] * sizes["attention.key_length"]
    key = sizes["attention.head_count_kv"] * sizes["attention.key_length"]
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, hidden)}
    for layer in range(NUM_LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (hidden,),
            f"blk.{layer}.attn_q.weight": (query, hidden),
            f"blk.{layer}.attn_k.weight": (key, hidden),
            f"blk.{layer}.attn_v.weight": (key, hidden),
            f"blk.{layer}.attn_output.weight": (hidden, query),
            f"blk.{layer}.ffn_norm.weight": (hidden,),
            f"blk.{layer}.ffn_gate.weight": (middle, hidden),
            f"blk.{layer}.ffn_up.weight": (middle, hidden),
            f"blk.{layer}.ffn_down.weight": (hidden, middle),
        }
    return shapes | {"output_norm.weight": (hidden,)}
