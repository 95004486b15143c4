"""The head's snapshots: prefixes that all stages keep, by client and name, until somebody frees them.

A snapshot is a sequence that is never scheduled. Its blocks are accounted for from the time that it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.stage.schedule.pinned_blocks import PinnedBlocks
from stagewire.stage.schedule.sequence import Sequence
from stagewire.wire.ring import Keep, Phase, StepResult

MAX_SNAPSHOTS = 1024


@dataclass(slots=True)
class Snapshot:
    """The tokens of a prompt's beginning; complete once all stages keep them.

    `has_logits`: the tail has kept the logits of the last one, so a prompt that is equal decodes at once. One that is
    `is_busy` is being exported: its blocks stay until that is done, also if it `is_retired` meanwhile.
    """

    seq_id: int
    client_id: str
    name: str
    token_ids: list[int]
    is_complete: bool = False
    has_logits: bool = False
    is_busy: bool = False
    is_retired: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class Snapshots:
    """All snapshots of one pipeline epoch; `pinned` are the blocks of each stage that they hold, or will."""

    def __init__(self, block_size: int, is_shared: bool = True) -> None:
        self.pinned = PinnedBlocks(block_size, is_shared)
        self._by_id: dict[int, Snapshot] = {}
        self.in_flight: dict[int, list[Sequence]] = {}
        """Sequences whose slices carry a snapshot, by step."""

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def num_blocks(self) -> int:
        """Blocks of each stage that they hold."""
        return self.pinned.num_blocks

    def of_all(self) -> list[Snapshot]:
        """The complete ones, by client and name."""
        complete = [one for one in self._by_id.values() if one.is_complete]
        return sorted(complete, key=lambda one: (one.client_id, one.name))

    def of_client(self, client_id: str) -> list[Snapshot]:
        """The complete ones, by name."""
        return [one for one in self.of_all() if one.client_id == client_id]

    def find(self, client_id: str, name: str) -> Snapshot | None:
        """A complete one."""
        return next((one for one in self.of_client(client_id) if one.name == name), None)

    def longest(self, client_id: str, token_ids: list[int]) -> Snapshot | None:
        """This client's longest complete snapshot that these tokens begin with, if any can be continued.

        One of all the tokens can only be drawn from, so it must have its logits.
        """
        num_tokens = len(token_ids)
        fitting = [
            one
            for one in self._by_id.values()
            if one.is_complete
            and one.client_id == client_id
            and one.num_tokens < num_tokens + one.has_logits
            and one.token_ids == token_ids[: one.num_tokens]
        ]
        return max(fitting, key=lambda one: one.num_tokens, default=None)

    def why_unused(self, client_id: str, name: str, token_ids: list[int]) -> str:
        """Why a prompt of these tokens has no use for all of a snapshot that it names; empty if it has."""
        snapshot = self.find(client_id, name)
        if snapshot is None:
            return f"snapshot {name!r:.80} was freed before this request began"
        num_shared = _num_shared(snapshot.token_ids, token_ids)
        if num_shared == snapshot.num_tokens:
            return ""
        return f"snapshot {name!r:.80}: the prompt shares the first {num_shared} of its {snapshot.num_tokens} tokens"

    def reserve(self, snapshot: Snapshot, sequence: Sequence) -> None:
        """`sequence` will pass the place; from now on the blocks are spoken for."""
        self._by_id[snapshot.seq_id] = snapshot
        self.pinned.add(snapshot.seq_id, snapshot.token_ids)
        sequence.keep = Keep(snapshot.seq_id, snapshot.num_tokens)

    def retire(self, snapshot: Snapshot) -> list[int]:
        """Nobody finds it any more; returns what the caller is to have released, nothing yet of one that is busy."""
        snapshot.is_retired, snapshot.is_complete = True, False
        if snapshot.is_busy or self._by_id.pop(snapshot.seq_id, None) is None:
            return []
        self.pinned.remove(snapshot.seq_id)
        return [snapshot.seq_id]

    def abandon(self, keep: Keep) -> list[int]:
        """The sequence that asked for it has ended before it was complete; as `retire`."""
        snapshot = self._by_id.get(keep.seq_id)
        return self.retire(snapshot) if snapshot else []

    # --- the scheduler's ---

    def due(self, sequence: Sequence, end: int, step_id: int, phase: Phase, source: int | None) -> Keep | None:
        """What a slice that brings `sequence` to `end` tokens in this step shall keep.

        The tail has logits to keep with it if that is where it ends, and they are computed, or kept with its source.
        """
        keep = sequence.keep
        if keep is None or sequence.kept_in is not None or end < keep.num_tokens:
            return None
        sequence.kept_in = step_id
        has_logits = phase is not Phase.TRY_RESTORE and end == keep.num_tokens
        if phase is Phase.RESUME and source is not None:
            has_logits = has_logits and self._by_id[source].has_logits
        self._by_id[keep.seq_id].has_logits = has_logits
        self.in_flight.setdefault(step_id, []).append(sequence)
        return keep

    def miss(self, sequence: Sequence) -> list[int]:
        """The sequence begins again; returns what stages before the miss may have kept already."""
        keep, step_id = sequence.keep, sequence.kept_in
        if keep is None or step_id is None:
            return []
        sequence.kept_in = None
        self.in_flight[step_id].remove(sequence)
        return [keep.seq_id]

    def complete(self, result: StepResult) -> list[int]:
        """A step is through; returns what is to be given up: copies that not all have, and snapshots replaced."""
        released: list[int] = []
        for sequence in self.in_flight.pop(result.step_id, []):
            keep = sequence.keep
            assert keep is not None, sequence
            if keep.seq_id in result.kept and keep.seq_id in self._by_id:
                sequence.keep = None
                released += self._replace(self._by_id[keep.seq_id])
            else:
                released.append(keep.seq_id)
            sequence.kept_in = None
        return released

    def _replace(self, snapshot: Snapshot) -> list[int]:
        old = self.find(snapshot.client_id, snapshot.name)
        snapshot.is_complete = True
        return self.retire(old) if old else []

    def check_invariants(self) -> None:
        """Raise AssertionError if the books do not add up."""
        self.pinned.check_invariants()
        assert self.num_blocks <= sum(self.pinned.blocks_for(one.num_tokens) for one in self._by_id.values())
        names = [(one.client_id, one.name) for one in self._by_id.values() if one.is_complete]
        assert len(names) == len(set(names))
        for step_id, sequences in self.in_flight.items():
            assert all(sequence.kept_in == step_id for sequence in sequences)


def _num_shared(first: list[int], second: list[int]) -> int:
    """How many tokens both begin with."""
    pairs = zip(first, second, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
