"""The best setting of llama.cpp for each work, found by trying: it is to be met at its fastest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench.llama_setting import BUFFERS, UBATCH_TOKENS, LlamaSetting
from bench.llama_side import LlamaFailedError
from bench.works import Phase, Work

_TRIES = 2


class Tuning:
    """Remembers what was found. `measure` gives tokens per second of one run, or raises `LlamaFailedError`.

    Unless `thorough`, the first layout that works is taken, with the library's own size of micro-batches.
    """

    def __init__(
        self,
        measure: Callable[[LlamaSetting, Work], float],
        progress: Callable[[str], None],
        thorough: bool = True,
    ) -> None:
        self._measure, self._progress, self._thorough = measure, progress, thorough
        self._found: dict[tuple[str, int, Phase, int], LlamaSetting] = {}

    def best(self, file: str, threads: int, work: Work) -> LlamaSetting:
        """The fastest setting for such a work; decoding at any depth counts as the same.

        Raises:
            LlamaFailedError: no setting works.
        """
        key = (file, threads, work.phase, work.num_sequences if work.phase is Phase.DECODE else work.prompt_tokens)
        if key not in self._found:
            self._found[key] = self._search(LlamaSetting(file=file, threads=threads), work)
        return self._found[key]

    def _search(self, plain: LlamaSetting, work: Work) -> LlamaSetting:
        """First the layout of weights, then, for prefill, how many tokens go through the layers at a time."""
        layouts = [replace(plain, buffers=buffers) for buffers in BUFFERS]
        if not self._thorough:
            return self._first(layouts, work)
        layout = self._fastest(layouts, work)
        if work.phase is Phase.DECODE:
            return layout
        return self._fastest([replace(layout, ubatch_tokens=tokens) for tokens in UBATCH_TOKENS], work)

    def _first(self, settings: list[LlamaSetting], work: Work) -> LlamaSetting:
        works = next((setting for setting in settings if self._rate(setting, work)), None)
        if works is None:
            raise _none_works(work)
        return works

    def _fastest(self, settings: list[LlamaSetting], work: Work) -> LlamaSetting:
        rates = {setting: self._rate(setting, work) for setting in settings}
        best = max(settings, key=lambda setting: rates[setting])
        if rates[best] == 0.0:
            raise _none_works(work)
        return best

    def _rate(self, setting: LlamaSetting, work: Work) -> float:
        """0 where it does not work: not every layout exists for every type and processor."""
        try:
            rate = max(self._measure(setting, work) for _ in range(_TRIES))
        except LlamaFailedError as error:
            self._progress(f"  {setting}: {error}")
            return 0.0
        self._progress(f"  {setting}: {rate:.0f} tok/s")
        return rate


def _none_works(work: Work) -> LlamaFailedError:
    return LlamaFailedError(f"no setting of llama.cpp works for {work.name}")
