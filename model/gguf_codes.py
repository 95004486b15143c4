"""Takes the blocks of quantized GGUF tensors apart into codes, scales and minima; nothing is multiplied or rounded.

A weight is `(code - zero) * scale + minimum`, in float32, and equals what dequantizing gives, bit for bit. Bit layouts
are those of the GGUF format. R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from stagewire.model.gguf_types import TYPE_BY_NAME

Bytes = NDArray[np.uint8]

_SUPER = 256  # columns that share the halves of a type with sub-scales
_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@dataclass(frozen=True, slots=True)
class CodeForm:
    """What is the same for all tensors of a type: width of its codes in memory, columns to a scale, zero point."""

    bits: int
    group: int
    zero: int
    has_sub_scales: bool
    has_minima: bool


@dataclass(frozen=True, slots=True)
class Codes:
    """Rows of one tensor. Without sub-scales `scales` and `minima` are float16 [R, C / 32].

    With them they are float16 [R, C / 256], to be multiplied by the int8 [R, C / group] of `sub_scales` and
    `sub_minima`. `codes` are uint8 [R, C].
    """

    form: CodeForm
    codes: Bytes
    scales: NDArray[np.float16]
    minima: NDArray[np.float16] | None = None
    sub_scales: NDArray[np.int8] | None = None
    sub_minima: NDArray[np.int8] | None = None

    def dequantize(self) -> NDArray[np.float32]:
        """The weights, float32 [R, C]."""
        values = (self.codes.astype(np.int32) - self.form.zero).astype(np.float32)
        values *= self._spread(self.scales, self.sub_scales)
        if self.minima is not None:
            values += self._spread(self.minima, self.sub_minima)
        return values

    def _spread(self, halves: NDArray[np.float16], subs: NDArray[np.int8] | None) -> NDArray[np.float32]:
        if subs is None:
            return np.repeat(halves.astype(np.float32), 32, axis=1)
        per_group = np.repeat(halves.astype(np.float32), _SUPER // self.form.group, axis=1) * subs.astype(np.float32)
        return np.repeat(per_group, self.form.group, axis=1)


def take_apart(type_name: str, data: Bytes) -> Codes:
    """Returns the parts of rows of blocks, uint8 [R, bytes of a row].

    Raises:
        KeyError: the type is not among `CODE_FORMS`.
    """
    blocks = data.reshape(len(data), -1, TYPE_BY_NAME[type_name].block_bytes)
    return _READERS[type_name](CODE_FORMS[type_name], blocks)


def _codes(parts: NDArray[np.generic]) -> Bytes:
    flat: Bytes = np.ascontiguousarray(parts, dtype=np.uint8).reshape(len(parts), -1)
    return flat


def _halves(blocks: Bytes, offset: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(blocks[..., offset : offset + 2]).view("<f2")[..., 0]


def _nibbles(packed: Bytes) -> Bytes:
    """Low nibbles of all bytes, then the high ones: [..., 2 * bytes]."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=-1)


def _fifth_bits(packed: Bytes) -> Bytes:
    return np.unpackbits(packed, axis=-1, bitorder="little")


# --- blocks of 32 ---


def _q4_0(form: CodeForm, blocks: Bytes) -> Codes:
    return Codes(form, _codes(_nibbles(blocks[..., 2:])), _halves(blocks, 0))


def _q4_1(form: CodeForm, blocks: Bytes) -> Codes:
    return Codes(form, _codes(_nibbles(blocks[..., 4:])), _halves(blocks, 0), _halves(blocks, 2))


def _q5_0(form: CodeForm, blocks: Bytes) -> Codes:
    codes = _nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6]) << 4
    return Codes(form, _codes(codes), _halves(blocks, 0))


def _q5_1(form: CodeForm, blocks: Bytes) -> Codes:
    codes = _nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8]) << 4
    return Codes(form, _codes(codes), _halves(blocks, 0), _halves(blocks, 2))


def _q8_0(form: CodeForm, blocks: Bytes) -> Codes:
    return Codes(form, _codes(blocks[..., 2:] ^ 0x80), _halves(blocks, 0))


def _iq4_nl(form: CodeForm, blocks: Bytes) -> Codes:
    return Codes(form, _codes(_iq4_table()[_nibbles(blocks[..., 2:])]), _halves(blocks, 0))


def _iq4_table() -> Bytes:
    return (np.array(_IQ4_VALUES) + 128).astype(np.uint8)


# --- blocks of 256 with sub-scales ---


def _q2_k(form: CodeForm, blocks: Bytes) -> Codes:
    packed = blocks[..., 16:80].reshape(*blocks.shape[:2], 2, 1, 32)
    codes = packed >> _shifts(0, 2, 4, 6) & 3
    subs = blocks[..., :16]
    return Codes(
        form,
        _codes(codes),
        _halves(blocks, 80),
        -_halves(blocks, 82),
        _subs(subs & 0x0F),
        _subs(subs >> 4),
    )


def _q3_k(form: CodeForm, blocks: Bytes) -> Codes:
    low = blocks[..., 32:96].reshape(*blocks.shape[:2], 2, 1, 32) >> _shifts(0, 2, 4, 6) & 3
    high = blocks[..., None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = low | high.reshape(low.shape) << 2
    packed = blocks[..., 96:108]
    scales = _nibbles(packed[..., :8]) | (_two_bits(packed[..., 8:12]) << 4)
    return Codes(form, _codes(codes), _halves(blocks, 108), sub_scales=_subs(scales.astype(np.int8) - 32))


def _two_bits(packed: Bytes) -> Bytes:
    """The pairs of bits of four bytes: all lowest pairs, then the next: [..., 16]."""
    return _codes(packed[..., None, :] >> _shifts(0, 2, 4, 6) & 3).reshape(*packed.shape[:-1], 16)


def _q4_k(form: CodeForm, blocks: Bytes) -> Codes:
    codes = _nibbles(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))
    return Codes(form, _codes(codes), _halves(blocks, 0), -_halves(blocks, 2), *_six_bit_pairs(blocks[..., 4:16]))


def _q5_k(form: CodeForm, blocks: Bytes) -> Codes:
    low = _nibbles(blocks[..., 48:].reshape(*blocks.shape[:2], 4, 32)).reshape(*blocks.shape[:2], 8, 32)
    high = blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = low | high << 4
    return Codes(form, _codes(codes), _halves(blocks, 0), -_halves(blocks, 2), *_six_bit_pairs(blocks[..., 4:16]))


def _six_bit_pairs(packed: Bytes) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Eight scales and eight minima of 6 bits, from 12 bytes."""
    first, second, rest = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([first & 0x3F, (rest & 0x0F) | (first >> 6) << 4], axis=-1)
    minima = np.concatenate([second & 0x3F, (rest >> 4) | (second >> 6) << 4], axis=-1)
    return _subs(scales), _subs(minima)


def _q6_k(form: CodeForm, blocks: Bytes) -> Codes:
    low = blocks[..., :128].reshape(*blocks.shape[:2], 2, 1, 64) >> _shifts(0, 4) & 0x0F
    high = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32) >> _shifts(0, 2, 4, 6) & 3
    codes = low.reshape(*blocks.shape[:2], 256) | high.reshape(*blocks.shape[:2], 256) << 4
    return Codes(form, _codes(codes), _halves(blocks, 208), sub_scales=_subs(blocks[..., 192:208].view(np.int8)))


def _iq4_xs(form: CodeForm, blocks: Bytes) -> Codes:
    codes = _iq4_table()[_nibbles(blocks[..., 8:].reshape(*blocks.shape[:2], 8, 16))]
    low = (blocks[..., 4:8, None] >> np.array([0, 4], np.uint8) & 0x0F).reshape(*blocks.shape[:2], 8)
    high = (blocks[..., 2:4, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(*blocks.shape[:2], 8)
    scales = (low | high << 4).astype(np.int8) - 32
    return Codes(form, _codes(codes), _halves(blocks, 0), sub_scales=_subs(scales))


def _shifts(*bits: int) -> Bytes:
    return np.array(bits, np.uint8)[:, None]


def _subs(parts: NDArray[np.generic]) -> NDArray[np.int8]:
    flat: NDArray[np.int8] = np.ascontiguousarray(parts).astype(np.int8).reshape(len(parts), -1)
    return flat


CODE_FORMS: Mapping[str, CodeForm] = MappingProxyType(
    {
        "Q4_0": CodeForm(4, 32, 8, False, False),
        "Q4_1": CodeForm(4, 32, 0, False, True),
        "Q5_0": CodeForm(8, 32, 16, False, False),
        "Q5_1": CodeForm(8, 32, 0, False, True),
        "Q8_0": CodeForm(8, 32, 128, False, False),
        "IQ4_NL": CodeForm(8, 32, 128, False, False),
        "Q2_K": CodeForm(4, 16, 0, True, True),
        "Q3_K": CodeForm(4, 16, 4, True, False),
        "Q4_K": CodeForm(4, 32, 0, True, True),
        "Q5_K": CodeForm(8, 32, 0, True, True),
        "Q6_K": CodeForm(8, 16, 32, True, False),
        "IQ4_XS": CodeForm(8, 32, 128, True, False),
    }
)
"""Types that a native kernel computes with as they are stored."""

_READERS: Mapping[str, Callable[[CodeForm, Bytes], Codes]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_XS": _iq4_xs,
}
