"""What the tests of snapshots share: pipelines of toy stages, a prompt, and orders about files."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from support.in_process import InProcessPipeline, request
from support.toy_operators import VOCAB_SIZE, ToyOperators, expected_tokens

from stagewire.stage.head.core import HeadCore
from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import FinishReason, SnapshotRequest
from stagewire.wire.ring import Phase, Step
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.snapshots import SnapshotAction, SnapshotOrder

GREEDY = SamplingParams(temperature=0.0)
CUTS = [(0, 2), (2, 3), (3, 6)]
PROMPT = [3 + i % 50 for i in range(40)]


def pipeline_of(num_blocks: int = 20, **options: Any) -> InProcessPipeline:
    return InProcessPipeline([ToyOperators(*cut, 6, num_blocks) for cut in CUTS], 2, VOCAB_SIZE, **options)


def head_of(pipeline: InProcessPipeline) -> HeadCore:
    stage_epoch = pipeline.cores[0].stage_epoch
    assert stage_epoch is not None and stage_epoch.head is not None
    return stage_epoch.head


def ask(
    pipeline: InProcessPipeline,
    name: str,
    prompt: Sequence[int],
    max_tokens: int = 2,
    wish: SnapshotRequest | None = None,
) -> int:
    """Run one request to its end; returns its cached tokens, after looking at the others."""
    pipeline.start(replace(request(name, prompt, max_tokens, GREEDY), snapshot=wish))
    output = pipeline.run()[name]
    assert output.ending is not None and output.ending.finish_reason is FinishReason.LENGTH
    assert output.token_ids == expected_tokens(list(prompt), max_tokens, 6)
    return output.ending.usage.cached_tokens


def kept(pipeline: InProcessPipeline) -> list[tuple[str, int]]:
    """Names and lengths; every stage holds exactly these."""
    head_of(pipeline).check_invariants()
    snapshots = head_of(pipeline).snapshots.of_client("client")
    for store in pipeline.stores:
        store.check_invariants()
        assert [store.length(one.seq_id) for one in snapshots] == [one.num_tokens for one in snapshots]
        assert store.num_used <= head_of(pipeline).scheduler.snapshots.num_blocks
        assert bool(store.num_used) == bool(snapshots)
    return [(one.name, one.num_tokens) for one in snapshots]


def flood(pipeline: InProcessPipeline, seed: int = 1) -> None:
    """Enough other prompts to push out all that is not pinned."""
    rng = random.Random(seed)
    for number in range(12):
        ask(pipeline, f"flood-{seed}-{number}", [rng.randrange(VOCAB_SIZE) for _ in range(100)])


def rows_on_hops(pipeline: InProcessPipeline) -> list[tuple[Phase, int]]:
    """Phase and rows of every slice that has crossed a hop since the last call."""
    seen = [(s.phase, s.num_rows) for _, m in pipeline.hops if isinstance(m, Step) for s in m.slices]
    pipeline.hops.clear()
    return seen


def order(pipeline: InProcessPipeline, action: SnapshotAction, name: str, target: str = "") -> ErrorCode | None:
    """What the head makes of it, for the client of the requests."""
    return pipeline.ask_snapshots(SnapshotOrder(action, name, target)).code


def bring_back(pipeline: InProcessPipeline, name: str, file: str, client_id: str = "client") -> ErrorCode | None:
    """Import a snapshot; the code of its failure, if it fails."""
    asked = f"import-{next_number()}"
    wish = SnapshotRequest(name, file=file)
    pipeline.start(replace(request(asked, [], 0, GREEDY), snapshot=wish, client_id=client_id))
    ending = pipeline.run()[asked].ending
    refusals = [ack.code for ack in pipeline.acks if ack.request_id == asked]
    assert ending is not None or refusals[0] is not None
    return ending.code if ending is not None else refusals[0]


next_number = itertools.count().__next__


def kept_names(pipeline: InProcessPipeline) -> list[tuple[str, int]]:
    return [(one.name, one.num_tokens) for one in head_of(pipeline).snapshots.of_client("client")]
