"""Writes the tiny random model that ships: `PYTHONPATH=tests python -m support.tiny_model` from the root.

Its weights are drawn from a hash, so that they are the same everywhere. It can do nothing but what a cluster needs for
tests: it takes text and chats, its answers depend on all of the prompt, and they hardly ever end by themselves.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from stagewire.model.shipped import TINY_MODEL, tiny_model_path

NUM_LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MIDDLE, CONTEXT = 4, 64, 4, 2, 16, 64, 1024
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = (
    "the", " the", " and", " of", " to", " in", " a", " is", " that", " it", " was", " for", " on", " with", " as",
    " she", " he", " they", " river", " house", " stone", " light", " went", " said", " over", "ing", "er", "ed", ".\n",
)  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_EMBEDDING_SPREAD = 0.6
_LIKELY_SPREAD = 0.4
"""Of the projection's rows: what can be read is likely, the rest has rows of zeros, and so the middle of all logits."""


def disguised(text: str) -> str:
    """GPT-2's way to write bytes as printable characters."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return "".join(characters[byte] for byte in text.encode("latin-1"))


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges: all bytes, and the words, each merged from its beginning on."""
    tokens = [*SPECIALS, *(disguised(chr(byte)) for byte in range(256))]
    merges: list[str] = []
    for word in map(disguised, WORDS):
        for end in range(1, len(word)):
            merge = f"{word[:end]} {word[end]}"
            if merge not in merges:
                merges.append(merge)
            if word[: end + 1] not in tokens:
                tokens.append(word[: end + 1])
    return tokens, merges


def drawn(name: str, num_bytes: int) -> NDArray[np.uint8]:
    return np.frombuffer(hashlib.shake_256(name.encode()).digest(num_bytes), np.uint8)


def four_bits(name: str, outputs: int, inputs: int) -> NDArray[np.uint8]:
    """Rows in Q4_1, of even spread around zero: scale, least value, 32 codes."""
    scale = np.float16(1 / (4.61 * inputs**0.5))
    head = np.frombuffer(np.array([scale, -7.5 * scale], "<f2").tobytes(), np.uint8)
    blocks = drawn(name, outputs * inputs // 2).reshape(outputs, -1, 16)
    return np.concatenate([np.broadcast_to(head, (*blocks.shape[:2], 4)), blocks], axis=2).reshape(outputs, -1)


def eight_bits(name: str, spreads: NDArray[np.float64], inputs: int) -> NDArray[np.uint8]:
    """Rows in Q8_0, each of its own spread: scale, 32 codes."""
    scales = (spreads / 74).astype("<f2").view(np.uint8).reshape(-1, 1, 2)
    blocks = drawn(name, len(spreads) * inputs).reshape(len(spreads), -1, 32)
    return np.concatenate([np.broadcast_to(scales, (*blocks.shape[:2], 2)), blocks], axis=2).reshape(len(spreads), -1)


def write_tiny_model(path: Path) -> None:
    tokens, merges = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(TINY_MODEL)
    writer.add_description("random weights, for tests of what talks with a cluster")
    writer.add_block_count(NUM_LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MIDDLE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    _add_tensors(writer, tokens)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensors(writer: gguf.GGUFWriter, tokens: list[str]) -> None:
    four, eight = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
    norm, query, key = np.ones(HIDDEN, np.float32), HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    rows = np.full(len(tokens), _EMBEDDING_SPREAD)
    writer.add_tensor("token_embd.weight", eight_bits("token_embd", rows, HIDDEN), raw_dtype=eight)
    for layer in range(NUM_LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", norm)
        sizes = {
            "attn_q": (query, HIDDEN),
            "attn_k": (key, HIDDEN),
            "attn_v": (key, HIDDEN),
            "attn_output": (HIDDEN, query),
        }
        sizes |= {"ffn_gate": (MIDDLE, HIDDEN), "ffn_up": (MIDDLE, HIDDEN), "ffn_down": (HIDDEN, MIDDLE)}
        for name, size in sizes.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", four_bits(f"{layer}.{name}", *size), raw_dtype=four)
    writer.add_tensor("output_norm.weight", norm)
    readable = {disguised(chr(byte)) for byte in range(0x20, 0x7F)} | {disguised(word) for word in WORDS}
    likely = np.array([_LIKELY_SPREAD if token in readable else 0.0 for token in tokens])
    writer.add_tensor("output.weight", eight_bits("output", likely, HIDDEN), raw_dtype=eight)


if __name__ == "__main__":
    write_tiny_model(tiny_model_path())
