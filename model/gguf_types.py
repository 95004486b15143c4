"""Tensor types of GGUF files: their block sizes, and how a block becomes float32."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType

import numpy as np
from numpy.typing import NDArray

from stagewire.wire.errors import ErrorCode, ModelError

_QUANTS_PACKAGE = "_stagewire_gguf"


@dataclass(frozen=True, slots=True)
class TensorType:
    """A storage format: every `block_size` elements of a row take `block_bytes` bytes."""

    name: str
    block_size: int
    block_bytes: int
    supported: bool = True


# Numbers and sizes of ggml's `enum ggml_type`; a test compares them with the `gguf` package. Types that the
# package cannot dequantize are listed too, so that a file that merely contains them can be read.
TENSOR_TYPES: Mapping[int, TensorType] = MappingProxyType(
    {
        0: TensorType("F32", 1, 4),
        1: TensorType("F16", 1, 2),
        2: TensorType("Q4_0", 32, 18),
        3: TensorType("Q4_1", 32, 20),
        6: TensorType("Q5_0", 32, 22),
        7: TensorType("Q5_1", 32, 24),
        8: TensorType("Q8_0", 32, 34),
        9: TensorType("Q8_1", 32, 40, supported=False),
        10: TensorType("Q2_K", 256, 84),
        11: TensorType("Q3_K", 256, 110),
        12: TensorType("Q4_K", 256, 144),
        13: TensorType("Q5_K", 256, 176),
        14: TensorType("Q6_K", 256, 210),
        15: TensorType("Q8_K", 256, 292, supported=False),
        16: TensorType("IQ2_XXS", 256, 66),
        17: TensorType("IQ2_XS", 256, 74),
        18: TensorType("IQ3_XXS", 256, 98),
        19: TensorType("IQ1_S", 256, 50),
        20: TensorType("IQ4_NL", 32, 18),
        21: TensorType("IQ3_S", 256, 110),
        22: TensorType("IQ2_S", 256, 82),
        23: TensorType("IQ4_XS", 256, 136),
        24: TensorType("I8", 1, 1, supported=False),
        25: TensorType("I16", 1, 2, supported=False),
        26: TensorType("I32", 1, 4, supported=False),
        27: TensorType("I64", 1, 8, supported=False),
        28: TensorType("F64", 1, 8, supported=False),
        29: TensorType("IQ1_M", 256, 56),
        30: TensorType("BF16", 1, 2),
        34: TensorType("TQ1_0", 256, 54),
        35: TensorType("TQ2_0", 256, 66),
        39: TensorType("MXFP4", 32, 17),
        40: TensorType("NVFP4", 64, 36),
        41: TensorType("Q1_0", 128, 18, supported=False),
    }
)
TYPE_BY_NAME: Mapping[str, TensorType] = MappingProxyType({t.name: t for t in TENSOR_TYPES.values()})


def dequantize_bytes(data: NDArray[np.uint8], type_name: str) -> NDArray[np.float32]:
    """Turns whole blocks, a flat array of bytes, into a flat array of float32.

    Raises:
        ModelError: UNSUPPORTED_TENSOR_TYPE, naming the type.
    """
    if type_name == "F32":
        return data.view("<f4")
    if type_name == "F16":
        return data.view("<f2").astype(np.float32)
    quants = _quants()
    try:
        # Damaged scales (infinities, NaNs) are values like others here, not a reason to warn.
        with np.errstate(all="ignore"):
            values = quants.dequantize(data, quants.GGMLQuantizationType[type_name])
    except (KeyError, NotImplementedError):
        raise unsupported_type(f"tensor type {type_name}") from None
    return np.asarray(values, dtype=np.float32).reshape(-1)


def unsupported_type(subject: str) -> ModelError:
    names = ", ".join(t.name for t in TENSOR_TYPES.values() if t.supported)
    return ModelError(f"{subject} is not supported; supported are {names}", ErrorCode.UNSUPPORTED_TENSOR_TYPE)


def _quants() -> ModuleType:
    """Imports `gguf.quants` without running `gguf/__init__.py`.

    That file imports writers, vocabularies and their dependencies: three times the memory and time, in every
    stage. A package of another name with the same search path gives the two modules that are needed.
    """
    if _QUANTS_PACKAGE not in sys.modules:
        spec = importlib.util.find_spec("gguf")
        if spec is None or spec.submodule_search_locations is None:
            raise ModelError("the package 'gguf' is missing: pip install 'stagewire[native]'")
        package = ModuleType(_QUANTS_PACKAGE)
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules[_QUANTS_PACKAGE] = package
    return importlib.import_module(f"{_QUANTS_PACKAGE}.quants")
