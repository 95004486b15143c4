"""llama.cpp's side: starts `bench.llama_worker`, asks it, and outlives its crashes."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from bench.llama_setting import LlamaSetting
from bench.worker_process import WorkerProcess
from bench.works import Work


class LlamaFailedError(Exception):
    """llama.cpp could not do what was asked; the next question starts it anew if it crashed."""


class LlamaSide:
    """A process that runs llama.cpp, started at the first question. A context manager."""

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._worker = WorkerProcess("llama.cpp", "bench.llama_worker", LlamaFailedError)

    def __enter__(self) -> LlamaSide:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def tokens_per_s(self, setting: LlamaSetting, work: Work) -> float:
        """One run; a setting or work other than the last is loaded and warmed up before.

        Raises:
            LlamaFailedError: it refused, crashed, or took too long.
        """
        seconds = self._worker.ask("measure", setting=asdict(setting), work=asdict(work), max_threads=self._max_threads)
        assert isinstance(seconds, float)
        return work.timed_tokens / seconds

    def kept_s(self, setting: LlamaSetting, prefix_tokens: int, suffix_tokens: int, is_shared: bool) -> float:
        """Seconds to the first token behind a prefix that is kept, of its own sequence or of one that shares it."""
        numbers = {"prefix_tokens": prefix_tokens, "suffix_tokens": suffix_tokens}
        seconds = self._worker.ask("kept", setting=asdict(setting), **numbers, is_shared=is_shared)
        assert isinstance(seconds, float)
        return seconds

    def logits(self, setting: LlamaSetting, token_ids: list[int]) -> NDArray[np.float32]:
        """float32 [T, V] of every position of a text."""
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/logits.npy"
            self._worker.ask("logits", setting=asdict(setting), token_ids=token_ids, path=path)
            loaded: NDArray[np.float32] = np.load(path)
            return loaded

    def quantized(self, source: Path, kind: str, folder: Path) -> Path:
        """The model file `source` as `kind`, made once and kept in `folder`."""
        target = folder / f"{source.stem}.{kind}.gguf"
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            self._worker.ask("quantize", source=str(source), target=str(target), kind=kind)
        return target

    def system_info(self) -> str:
        return str(self._worker.ask("about"))

    def close(self) -> None:
        self._worker.close()
