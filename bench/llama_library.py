"""llama.cpp through its low-level batch API: models, contexts, timed prefills and decodes, one process at a time.

Only the process of `bench.llama_worker` imports this. Tokens are decoded without drawing from the logits, which is
in llama.cpp's favour; batches are built before the clock starts.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from bench.ggml_backend import connect_servers, extra_buffer_type
from bench.llama_setting import Buffers, LlamaSetting

_FLASH_ATTENTION_ON = 1
_LAYER_WEIGHTS = rb"blk\.\d+\.(attn_(q|k|v|output)|ffn_(gate|up|down))\.weight"
_QUANTIZATIONS = {"q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, "bf16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16}
_LOWEST_ID = 300


class LlamaError(Exception):
    """llama.cpp refused, or gave a code that is not success."""


class _BufferOverride(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


class LlamaModel:
    """One file, loaded as a `LlamaSetting` says. Close it."""

    def __init__(self, setting: LlamaSetting) -> None:
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 999 if setting.servers else 0
        parameters.use_extra_bufts = setting.buffers is not Buffers.PLAIN
        if setting.buffers is Buffers.REPACK:
            overrides = (_BufferOverride * 2)()  # the second one ends the list
            overrides[0] = _BufferOverride(_LAYER_WEIGHTS, extra_buffer_type("CPU_REPACK"))
            parameters.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
        if setting.servers:
            devices = connect_servers(setting.servers)
            parameters.devices = ctypes.cast((ctypes.c_void_p * (len(devices) + 1))(*devices, None), ctypes.c_void_p)
        self.handle = llama_cpp.llama_model_load_from_file(setting.file.encode(), parameters)
        if not self.handle:
            raise LlamaError(f"llama.cpp cannot load {Path(setting.file).name} with {setting}")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.handle))

    def close(self) -> None:
        llama_cpp.llama_model_free(self.handle)


class LlamaContext:
    """KV memory for some sequences of a model. Close it before the model."""

    def __init__(
        self,
        model: LlamaModel,
        setting: LlamaSetting,
        num_sequences: int,
        context_tokens: int,
        is_unified: bool = False,
    ) -> None:
        """`is_unified`: sequences share one memory, so that one may take over another's prefix without a copy."""
        parameters = llama_cpp.llama_context_default_params()
        # Rounded up so that the library does not have to; its KV memory comes in blocks of 256.
        parameters.n_ctx = num_sequences * (-(-context_tokens // 256) * 256)
        parameters.n_seq_max = num_sequences
        parameters.n_batch = max(context_tokens, setting.ubatch_tokens)
        parameters.n_ubatch = setting.ubatch_tokens
        parameters.n_threads = parameters.n_threads_batch = setting.threads
        parameters.flash_attn_type = _FLASH_ATTENTION_ON
        parameters.kv_unified = is_unified
        parameters.no_perf = True
        self.handle = llama_cpp.llama_init_from_model(model.handle, parameters)
        if not self.handle:
            raise LlamaError(f"llama.cpp cannot make a context for {num_sequences} x {context_tokens} tokens")
        self._vocab_size = model.vocab_size
        self._memory = llama_cpp.llama_get_memory(self.handle)
        self._random = np.random.default_rng(1)

    def close(self) -> None:
        llama_cpp.llama_free(self.handle)

    def set_threads(self, threads: int) -> None:
        llama_cpp.llama_set_n_threads(self.handle, threads, threads)

    def prefill_s(self, sequence: int, num_tokens: int) -> float:
        """Forgets the sequence and computes a prompt of random tokens; the last token's logits are asked for."""
        self._forget(sequence, 0)
        return self._timed([self._batch([(sequence, range(num_tokens))])])

    def decode_s(self, num_sequences: int, depth: int, num_tokens: int) -> float:
        """Decodes `num_tokens` of sequences that are `depth` tokens long, all together, then forgets those again."""
        steps = [
            self._batch([(sequence, range(position, position + 1)) for sequence in range(num_sequences)])
            for position in range(depth, depth + num_tokens)
        ]
        spent_s = self._timed(steps)
        for sequence in range(num_sequences):
            self._forget(sequence, depth)
        return spent_s

    def extend_s(self, depth: int, num_tokens: int, is_shared: bool) -> float:
        """Decodes tokens behind the first `depth` of sequence 0, in it or in sequence 1 that shares them."""
        sequence, started = int(is_shared), time.perf_counter()
        if is_shared:
            llama_cpp.llama_memory_seq_cp(self._memory, 0, 1, 0, depth)
        shared_s = time.perf_counter() - started
        spent_s = shared_s + self._timed([self._batch([(sequence, range(depth, depth + num_tokens))])])
        self._forget(sequence, 0 if is_shared else depth)
        return spent_s

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Of every position of one sequence: float32 [T, V]."""
        self._forget(0, 0)
        batch = self._batch([(0, range(len(token_ids)))], token_ids, all_logits=True)
        self._timed([batch])
        values = llama_cpp.llama_get_logits(self.handle)
        copied: NDArray[np.float32] = np.ctypeslib.as_array(values, shape=(len(token_ids), self._vocab_size)).copy()
        return copied

    def _forget(self, sequence: int, from_position: int) -> None:
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, from_position, -1)

    def _batch(
        self, parts: Sequence[tuple[int, range]], token_ids: Sequence[int] | None = None, all_logits: bool = False
    ) -> llama_cpp.llama_batch:
        """Tokens of these positions of these sequences; logits are asked for the last of each."""
        size = sum(len(positions) for _, positions in parts)
        if token_ids is None:
            token_ids = [int(drawn) for drawn in self._random.integers(_LOWEST_ID, self._vocab_size, size)]
        batch = llama_cpp.llama_batch_init(size, 0, 1)
        batch.n_tokens = size
        rows = [(sequence, position, positions[-1]) for sequence, positions in parts for position in positions]
        for row, (sequence, position, last) in enumerate(rows):
            batch.token[row], batch.pos[row] = token_ids[row], position
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
            batch.logits[row] = all_logits or position == last
        return batch

    def _timed(self, batches: Sequence[llama_cpp.llama_batch]) -> float:
        started = time.perf_counter()
        codes = []
        for batch in batches:
            codes.append(llama_cpp.llama_decode(self.handle, batch))
            llama_cpp.llama_synchronize(self.handle)
        spent_s = time.perf_counter() - started
        for batch in batches:
            llama_cpp.llama_batch_free(batch)
        if any(codes):
            raise LlamaError(f"llama_decode gave the codes {sorted(set(codes))}; 0 is success")
        return spent_s


def quantize(source: str, target: str, kind: str) -> None:
    """Writes `source` again as `kind`, quantizing once more what is quantized already.

    Raises:
        LlamaError: it failed; there is no `target`.
    """
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.allow_requantize, parameters.ftype = True, _QUANTIZATIONS[kind]
    partial = Path(target + ".partial")
    code = llama_cpp.llama_model_quantize(source.encode(), str(partial).encode(), ctypes.byref(parameters))
    if code != 0:
        partial.unlink(missing_ok=True)
        raise LlamaError(f"llama.cpp cannot requantize to {kind} (code {code})")
    partial.replace(target)


def system_info() -> str:
    """Which instructions the library was built for, in its own words."""
    return str(llama_cpp.llama_print_system_info().decode()).strip(" |")


def _say_nothing(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """The library logs hundreds of lines a model."""


_log_callback = llama_cpp.llama_log_callback(_say_nothing)  # kept: the library calls it as long as it lives


def start() -> None:
    """Before anything else, once."""
    llama_cpp.llama_log_set(_log_callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
