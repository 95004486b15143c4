"""Lays a weight matrix out as the native kernels read it: panels of 16 outputs; see stage/native/src/matrix.h."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stagewire.model.gguf_codes import CodeForm, Codes
from stagewire.stage.native.large_pages import LargePages

PANEL = 16
"""Outputs side by side, one in each lane."""
BLOCK = 32
"""Inputs that share a record."""

FLOAT_KINDS = {"F32": 1, "F16": 2, "BF16": 3}
_QUANTIZED = 0

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class NativeMatrix:
    """One matrix; `words` describe it to a kernel, and hold addresses that are good as long as this object lives."""

    outputs: int
    inputs: int
    kind: int
    form: CodeForm | None
    records: Bytes
    supers: NDArray[np.float16] = field(default_factory=lambda: np.empty(0, np.float16))

    @property
    def num_bytes(self) -> int:
        return self.records.nbytes + self.supers.nbytes

    @property
    def words(self) -> list[int]:
        form = self.form or CodeForm(0, 0, 0, False, False)
        numbers = [form.bits, form.group, int(form.has_sub_scales), int(form.has_minima), form.zero]
        return [self.kind, self.outputs, self.inputs, *numbers, self.records.ctypes.data, self.supers.ctypes.data]


def pack_codes(pages: LargePages, form: CodeForm, outputs: int, inputs: int, slices: Iterator[Codes]) -> NativeMatrix:
    """Packs rows that come in slices, each but the last a multiple of 16 rows.

    Rows that are missing to a whole panel are zero.
    """
    record_bytes, super_halves = _record_bytes(form), PANEL * (1 + form.has_minima)
    num_panels, num_blocks = -(-outputs // PANEL), inputs // BLOCK
    records = pages.take(num_panels * num_blocks * record_bytes).reshape(num_panels, num_blocks, record_bytes)
    num_supers = inputs // 256 if form.has_sub_scales else 0
    supers = pages.take(2 * num_panels * num_supers * super_halves).view(np.float16)
    supers = supers.reshape(num_panels, num_supers, super_halves)
    panel = 0
    for part in slices:
        size = -(-len(part.codes) // PANEL)
        _fill_records(records[panel : panel + size], part)
        if form.has_sub_scales:
            supers[panel : panel + size] = _supers(part)
        panel += size
    assert panel == num_panels, (panel, num_panels)
    return NativeMatrix(outputs, inputs, _QUANTIZED, form, records.reshape(-1), supers.reshape(-1))


def pack_floats(pages: LargePages, type_name: str, weights: NDArray[np.generic]) -> NativeMatrix:
    """Packs float32, float16 or (as uint16) bfloat16 rows [outputs, inputs], kept as they are."""
    outputs, inputs = weights.shape
    panels = _panels(weights).transpose(0, 2, 1)
    records = pages.take(panels.size * weights.dtype.itemsize)
    records.view(weights.dtype).reshape(panels.shape)[:] = panels
    return NativeMatrix(outputs, inputs, FLOAT_KINDS[type_name], None, records)


def _record_bytes(form: CodeForm) -> int:
    scale_bytes = BLOCK // form.group * PANEL if form.has_sub_scales else 2 * PANEL
    return form.bits * BLOCK * PANEL // 8 + scale_bytes * (1 + form.has_minima)


def _panels(rows: NDArray[np.generic]) -> NDArray[np.generic]:
    """[R, N] to [panels, 16, N], the last panel filled up with zeros."""
    missing = -len(rows) % PANEL
    if missing:
        rows = np.concatenate([rows, np.zeros((missing, rows.shape[1]), rows.dtype)])
    return rows.reshape(-1, PANEL, rows.shape[1])


def _fill_records(records: Bytes, part: Codes) -> None:
    """Writes codes, scales and minima of whole panels: records [panels, blocks, bytes]."""
    num_panels, num_blocks, _ = records.shape
    quads = _panels(part.codes).reshape(num_panels, PANEL, num_blocks, 8, 4).transpose(0, 2, 3, 1, 4)
    if part.form.bits == 4:
        quads = quads[:, :, :4] | quads[:, :, 4:] << 4
    fields = [quads.reshape(num_panels, num_blocks, -1)]
    scales = part.scales if part.sub_scales is None else part.sub_scales
    minima = part.minima if part.sub_minima is None else part.sub_minima
    fields += [_lanes(values, num_blocks) for values in (scales, minima) if values is not None]
    np.concatenate(fields, axis=2, out=records)


def _lanes(values: NDArray[np.generic], num_blocks: int) -> Bytes:
    """[R, groups] to the bytes of each record: [panels, blocks, groups in it x 16 lanes]."""
    panels = _panels(values)
    by_group = panels.transpose(0, 2, 1).reshape(len(panels), num_blocks, -1)
    return np.ascontiguousarray(by_group).view(np.uint8)


def _supers(part: Codes) -> NDArray[np.float16]:
    """[panels, supers, 16 scales and then 16 minima]."""
    halves = [part.scales] if part.minima is None else [part.scales, part.minima]
    return np.concatenate([_panels(values).transpose(0, 2, 1) for values in halves], axis=2).astype(np.float16)
