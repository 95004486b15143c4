"""The process that runs llama.cpp: one JSON request a line on standard input, one JSON answer a line on output.

It ends when its input does. A crash of the library ends only this process; `bench.llama_side` is its other end.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import numpy as np

from bench import llama_library
from bench.ggml_backend import NoRpcError
from bench.llama_library import LlamaContext, LlamaError, LlamaModel
from bench.llama_setting import Buffers, LlamaSetting
from bench.worker_process import serve
from bench.works import Phase, Work

_WARM_UP_TOKENS = 16


class LlamaWorker:
    """Holds one model and one context at a time, and makes them anew when another setting or work is asked for."""

    def __init__(self) -> None:
        self._loaded: tuple[LlamaSetting, LlamaModel] | None = None
        self._opened: tuple[LlamaSetting, Work, LlamaContext] | None = None

    def about(self) -> str:
        return llama_library.system_info()

    def quantize(self, source: str, target: str, kind: str) -> None:
        llama_library.quantize(source, target, kind)

    def measure(self, setting: LlamaSetting, work: Work, max_threads: int) -> float:
        """Seconds of the timed phase of one run. `max_threads` prefill what is only decoded after."""
        context = self._context(setting, work, max_threads)
        if work.phase is Phase.PREFILL:
            return context.prefill_s(0, work.prompt_tokens)
        return context.decode_s(work.num_sequences, work.prompt_tokens, work.generate_tokens)

    def kept(self, setting: LlamaSetting, prefix_tokens: int, suffix_tokens: int, is_shared: bool) -> float:
        """Seconds to decode `suffix_tokens` behind a prefix that sequence 0 has kept, of it or of a new sequence."""
        work = Work("kept", Phase.PREFILL, 2, prefix_tokens, suffix_tokens)
        return self._context(setting, work, setting.threads).extend_s(prefix_tokens, suffix_tokens, is_shared)

    def logits(self, setting: LlamaSetting, token_ids: list[int], path: str) -> None:
        """Writes the logits of every position to a numpy file."""
        self.close()
        context = LlamaContext(self._model(setting), setting, 1, len(token_ids))
        np.save(path, context.logits(token_ids))
        context.close()

    def close(self) -> None:
        if self._opened is not None:
            self._opened[2].close()
            self._opened = None

    def _context(self, setting: LlamaSetting, work: Work, max_threads: int) -> LlamaContext:
        if self._opened is not None and self._opened[:2] == (setting, work):
            return self._opened[2]
        self.close()
        is_unified = work.phase is Phase.PREFILL
        context = LlamaContext(self._model(setting), setting, work.num_sequences, work.context_tokens, is_unified)
        self._opened = (setting, work, context)
        if work.phase is Phase.PREFILL:
            context.prefill_s(0, work.prompt_tokens)
            return context
        context.set_threads(max_threads)
        for sequence in range(work.num_sequences):
            context.prefill_s(sequence, work.prompt_tokens)
        context.set_threads(setting.threads)
        context.decode_s(work.num_sequences, work.prompt_tokens, _WARM_UP_TOKENS)
        return context

    def _model(self, setting: LlamaSetting) -> LlamaModel:
        """Threads and batch sizes belong to the context: only what the weights depend on counts."""
        if self._loaded is not None:
            held, model = self._loaded
            if (held.file, held.buffers, held.servers) == (setting.file, setting.buffers, setting.servers):
                return model
            self.close()
            model.close()
            self._loaded = None
        model = LlamaModel(setting)
        self._loaded = (setting, model)
        return model


def answer(worker: LlamaWorker, method: str, arguments: dict[str, Any]) -> object:
    if "setting" in arguments:
        given = arguments["setting"]
        arguments["setting"] = LlamaSetting(
            **(given | {"buffers": Buffers(given["buffers"]), "servers": tuple(given["servers"])})
        )
    if "work" in arguments:
        arguments["work"] = Work(**(arguments["work"] | {"phase": Phase(arguments["work"]["phase"])}))
    return getattr(worker, method)(**arguments)


def main() -> None:
    # The library prints to standard output here and there; our answers go where it cannot reach.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    llama_library.start()
    serve(sys.stdin, answers, partial(answer, LlamaWorker()), (LlamaError, NoRpcError, LookupError))


if __name__ == "__main__":
    main()
