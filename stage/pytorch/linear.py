"""A matrix product whose rows do not know each other: it always multiplies a tile of the same number of rows.

Measured with torch 2.13 on CPUs: the bits of `F.linear` depend on the number of rows, because the library
picks its kernel by shape, in bfloat16 as in float32. With a fixed number of rows there is one kernel, and a
row's result depends neither on its place in the tile nor on the other rows, nor on the number of threads.
That is a measurement, not a promise of any library, so `stage.selftest` proves it again in every process.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

TILE_ROWS = 32
"""Rows of every product. 32 cost a single row almost nothing: reading the weights takes longer."""


class TileLinear:
    """`x @ weight.T` for up to TILE_ROWS rows, padded to exactly as many.

    On CPUs the weights are kept in the order that oneDNN's kernel reads them (measured in bfloat16: 1.4 to
    1.6 times as fast as reordering on every call). The plain copy is not kept.
    """

    def __init__(self, weight: Tensor) -> None:
        self.num_bytes = weight.nbytes
        self._is_packed = weight.device.type == "cpu" and _can_pack(weight.dtype)
        if self._is_packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, TILE_ROWS)
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """Returns [rows, outputs] for `x` [rows, inputs], in the dtype of `x`, which is the weight's."""
        return self._multiply(_padded(x))[: len(x)]

    def float32(self, x: Tensor) -> Tensor:
        """Returns the product as float32, where possible without rounding to bfloat16 (16 bits remain).

        oneDNN's float32 accumulators come out rounded to bfloat16. A second pass that takes the first result
        off before it rounds gives what the rounding has lost. Logits need it: next to 20 the distance between
        neighbouring bfloat16 numbers is 0.125, and near ties would be decided by it.
        """
        num_rows, x = len(x), _padded(x)
        product = self._multiply(x)
        if product.dtype == torch.float32 or not self._is_packed:
            return product[:num_rows].float()
        lost = torch.ops.mkldnn._linear_pointwise.binary(x, product, self._weight, None, "sub")
        return product[:num_rows].float().add_(lost[:num_rows])

    def _multiply(self, x: Tensor) -> Tensor:
        if not self._is_packed:
            return functional.linear(x, self._weight)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], "")
        return product


def _padded(x: Tensor) -> Tensor:
    missing = TILE_ROWS - len(x)
    return functional.pad(x, (0, 0, 0, missing)) if missing else x


def _can_pack(dtype: torch.dtype) -> bool:
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
