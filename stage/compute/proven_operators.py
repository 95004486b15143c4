"""Loaded layers with their proof: what a stage computes with, whatever multiplies underneath."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stagewire.stage.compute.operators import Batch


class Decoder(Protocol):
    """The layers and their KV pool; each method as `Operators` has it."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_bytes(self) -> int: ...

    def copy_block(self, source: int, target: int) -> None: ...

    def read_block(self, block: int) -> bytes: ...

    def write_block(self, block: int, content: bytes) -> None: ...

    def forward(self, batch: Batch, hidden_states: NDArray[np.float32] | None) -> NDArray[np.float32]: ...


class Proof(Protocol):
    """What a self-test has found."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def is_row_exact(self) -> bool: ...


class ProvenOperators:
    """`Operators` of a decoder; see there. Sizes are those of the tensors in the file, and in memory."""

    def __init__(self, decoder: Decoder, proof: Proof, file_bytes: int, weight_bytes: int) -> None:
        self.fingerprint, self.is_row_exact = proof.fingerprint, proof.is_row_exact
        self.num_blocks, self.block_bytes = decoder.num_blocks, decoder.block_bytes
        self.file_bytes, self.weight_bytes = file_bytes, weight_bytes
        self.copy_block, self.read_block, self.write_block = decoder.copy_block, decoder.read_block, decoder.write_block
        self.forward = decoder.forward
