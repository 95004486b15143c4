"""One sequence as a stage holds it: its blocks, its tokens, and how far they are public."""

from __future__ import annotations

from dataclasses import dataclass, field

from stagewire.stage.kv.prefix_index import TOKEN_BYTES, Entry


@dataclass(slots=True)
class HeldSequence:
    """`entries` are the keyed ones of its leading full blocks.

    `prompt_end` is where its last prefill ended, until that is published; rows from `decoded_from` on were
    computed by decode. `is_cut`: the last block goes on behind the end, in a sequence that keys it as a full one.
    """

    blocks: list[int] = field(default_factory=list)
    token_bytes: bytearray = field(default_factory=bytearray)
    entries: list[Entry] = field(default_factory=list)
    prompt_end: int = 0
    decoded_from: int | None = None
    is_cut: bool = False

    @property
    def length(self) -> int:
        return len(self.token_bytes) // TOKEN_BYTES
