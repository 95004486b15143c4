"""Small model files for tests, written by the `gguf` package, and damaged ones, written byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

Value = int | float | bool | str | Sequence[str] | Sequence[int]
Tensors = dict[str, NDArray[np.float32]]

NUM_LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MIDDLE = 2, 32, 4, 2, 8, 64
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh", "Ġ", "ab", "Ġab"]
METADATA: Mapping[str, Value] = {
    "llama.block_count": NUM_LAYERS,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": MIDDLE,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.context_length": 128,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": HEAD_DIM,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(TOKENS) - 3),
    "tokenizer.ggml.merges": ["a b", "Ġ ab"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.add_bos_token": False,
}


def small_tensors() -> Tensors:
    """The tensors of a two-layer model with tied embeddings, in numpy order."""
    generator = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(TOKENS), HIDDEN)}
    for layer in range(NUM_LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate.weight": (MIDDLE, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (MIDDLE, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, MIDDLE),
        }
    shapes["output_norm.weight"] = (HIDDEN,)
    return {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def write_model(
    path: Path,
    changes: Mapping[str, Value | None] | None = None,
    tensors: Tensors | None = None,
    architecture: str = "llama",
) -> Path:
    """Writes a small model; `changes` replaces, adds, or (None) removes metadata. Matrices are Q8_0."""
    writer = gguf.GGUFWriter(path, architecture)
    write_metadata(writer, dict(METADATA) | dict(changes or {}))
    for name, tensor in (small_tensors() if tensors is None else tensors).items():
        if tensor.ndim == 2 and tensor.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_metadata(writer: gguf.GGUFWriter, metadata: Mapping[str, Value | None]) -> None:
    for key, value in metadata.items():
        _add(writer, key, value)


def _add(writer: gguf.GGUFWriter, key: str, value: Value | None) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int() if value < 0:
            writer.add_int32(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case None:
            pass
        case _:
            writer.add_array(key, value)


def text(value: str) -> bytes:
    """A GGUF string."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def key_value(key: str, value_type: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", value_type) + value


def tensor_entry(name: str, dimensions: Sequence[int], type_id: int, offset: int) -> bytes:
    """A row of the tensor table; `dimensions` as in the file, innermost first."""
    head = text(name) + struct.pack("<I", len(dimensions))
    return head + struct.pack(f"<{len(dimensions)}QIQ", *dimensions, type_id, offset)


def file_bytes(
    keys: Sequence[bytes] = (), tensors: Sequence[bytes] = (), data: bytes = b"", alignment: int = 32
) -> bytes:
    """A whole file of version 3 with whatever defects its parts have."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join([*keys, *tensors])
    return header + b"\0" * (-len(header) % alignment) + data
