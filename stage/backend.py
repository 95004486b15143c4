"""Chooses what computes a stage's layers: the native kernels where they can, else PyTorch, and says which and why."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from stagewire.model.gguf import GgufFile
from stagewire.model.gguf_codes import CODE_FORMS
from stagewire.model.layout import EMBEDDING, stage_tensors
from stagewire.stage.compute.operators import Operators
from stagewire.stage.native.kernel import best_kernel
from stagewire.stage.native.loader import load_native_operators
from stagewire.stage.native.weights import unsupported_reason
from stagewire.stage.settings import StageSettings
from stagewire.wire.card import ModelConfig
from stagewire.wire.errors import SettingsError

log = logging.getLogger("stagewire.stage")

_TORCH_PRECISIONS = ("bf16", "f32")


@dataclass(frozen=True, slots=True)
class Backend:
    """Loaded layers; `precision` is never `auto`, `kernel` is a native variant or `torch`."""

    operators: Operators
    precision: str
    kernel: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What will compute a stage: the kernel's name and module (None: PyTorch), and the precision, never `auto`.

    `reason` says why it is PyTorch where native kernels would have been taken.
    """

    precision: str
    native: tuple[str, ModuleType] | None
    reason: str = ""


def load_backend(path: Path, config: ModelConfig, settings: StageSettings, layer_end: int) -> Backend:
    """Load `[settings.layer_start, layer_end)` as the settings ask.

    Raises:
        SettingsError, ModelError: as `choose_backend`.
    """
    choice = choose_backend(path, config, settings, layer_end)
    if choice.native:
        name, kernel = choice.native
        operators = load_native_operators(kernel, path, config, settings, layer_end, choice.precision)
        return Backend(operators, choice.precision, name)
    if choice.reason:
        log.warning("event=no_native_kernels detail=%r precision=%s", choice.reason, choice.precision)
    return _load_torch(path, config, settings, layer_end, choice.precision)


def choose_backend(path: Path, config: ModelConfig, settings: StageSettings, layer_end: int) -> Choice:
    """What `load_backend` would take, found out of the file's header, without a weight.

    `auto` takes the weights as the file stores them if it stores codes and native kernels can be had, else bf16.

    Raises:
        SettingsError: a precision that cannot be had here; the message says why.
        ModelError: a tensor is missing, or of a type that cannot be read.
    """
    if settings.precision in _TORCH_PRECISIONS:
        return _choose_torch(settings, settings.precision)
    chosen = best_kernel()
    with GgufFile.open(path) as gguf:
        reason = _reason_against(gguf, config, settings, layer_end)
    if chosen is None and not reason:
        reason = "they are not built here: install again where there is a C++ compiler"
    if chosen and not reason:
        return Choice("stored" if settings.precision == "auto" else settings.precision, chosen)
    if settings.precision != "auto":
        raise SettingsError(f"precision={settings.precision!r} needs the native kernels, but {reason}")
    return _choose_torch(settings, "bf16", reason)


_FLOATS = "this file holds floats, which PyTorch multiplies faster"


def _choose_torch(settings: StageSettings, precision: str, reason: str = "") -> Choice:
    if settings.kv_precision != "auto":
        raise SettingsError(
            f"kv_precision={settings.kv_precision!r}: PyTorch stages keep keys as their weights; use auto"
        )
    if importlib.util.find_spec("torch") is None:
        because = f" ({reason})" if reason else ""
        instead = "; or --precision stored, which goes without" if reason == _FLOATS else ""
        detail = f"this takes PyTorch{because}, which is missing: pip install 'stagewire[stage]'{instead}"
        raise SettingsError(detail)
    return Choice(precision, None, reason)


def _reason_against(gguf: GgufFile, config: ModelConfig, settings: StageSettings, layer_end: int) -> str:
    """Why the native kernels cannot compute this; empty if they can."""
    if settings.device != "cpu":
        return f"they compute on the CPU only, not on {settings.device}"
    # `auto` looks at all layers, so that every stage of a model gives the same answer.
    layers = (0, config.num_layers) if settings.precision == "auto" else (settings.layer_start, layer_end)
    names = stage_tensors(gguf, config, *layers)
    if layers[1] < config.num_layers or not config.tie_word_embeddings:
        names = tuple(name for name in names if name != EMBEDDING)  # only looked up
    has_codes = any(gguf.tensor_type(name).name in CODE_FORMS for name in gguf.tensors)
    if settings.precision == "auto" and not has_codes:
        return _FLOATS
    return unsupported_reason(gguf, config, names, settings.precision)


def _load_torch(path: Path, config: ModelConfig, settings: StageSettings, layer_end: int, precision: str) -> Backend:
    # It takes a second and 190 MB to import; a native stage does without.
    try:
        from stagewire.stage.pytorch.loader import load_torch_operators  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError(f"PyTorch is missing ({error}): pip install 'stagewire[stage]'") from error
    return Backend(load_torch_operators(path, config, settings, layer_end, precision), precision, "torch")
