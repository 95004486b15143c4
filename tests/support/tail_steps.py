"""A tail with requests whose clients have said hello, and the steps, rows and endings that its tests speak of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from stagewire.stage.tail.core import TailCore
from stagewire.stage.tail.link_instructions import LinkInstruction, SendRelay
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.note import Note
from stagewire.wire.prompt_digest import prompt_digest
from stagewire.wire.request import Ending, FinishReason, StageTiming, Usage
from stagewire.wire.returns import ReturnHello, ReturnItem, ReturnTokens, TailHello
from stagewire.wire.ring import Phase, SequenceFinish, SequenceStart, Slice, Step, StepResult
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import TokenIds
from stagewire.wire.timing import RequestTiming

EPOCH = Epoch(1, 1)
VOCAB_SIZE, STOP = 8, 7
PROMPT = (0, 0)
GREEDY = SamplingParams(temperature=0.0)
UNTIMED = RequestTiming(0.0, 0.0, 0.0, 0.0, 0.0, (), 0.0, 0.0, 0.0, 0.0, 0.0)


def start(
    seq_id: int = 1, sampling: SamplingParams = GREEDY, client_id: str = "c", choice_index: int = 0
) -> SequenceStart:
    """A prompt of two tokens, an answer of at most three."""
    digest = prompt_digest(TokenIds.of(PROMPT))
    return SequenceStart(
        seq_id, f"r{seq_id}", client_id, sampling, 2, digest, 3, (STOP,), None, choice_index=choice_index
    )


def prefill(seq_id: int = 1) -> Slice:
    return Slice(seq_id, Phase.PREFILL, 0, 2, True)


def decode(position: int, seq_id: int = 1) -> Slice:
    return Slice(seq_id, Phase.DECODE, position, 1, True)


def step(
    *slices: Slice,
    step_id: int = 1,
    starts: tuple[SequenceStart, ...] = (),
    finishes: tuple[SequenceFinish, ...] = (),
    releases: tuple[int, ...] = (),
    token_ids: Sequence[int] | None = None,
) -> Step:
    packed = TokenIds.of([0] * sum(span.num_tokens for span in slices) if token_ids is None else token_ids)
    return Step(step_id, releases, starts, slices, finishes, (), packed, None)


def rows(*likely: int) -> NDArray[np.float32]:
    """Logits float32 [R, V]; each row's largest is that of the id given for it."""
    return np.eye(VOCAB_SIZE, dtype=np.float32)[list(likely)]


def tail(*starts: SequenceStart) -> TailCore:
    """It serves these, whose clients have said hello through the broker."""
    core = TailCore(EPOCH, VOCAB_SIZE, lambda: b"nonce")
    for told in core.begin(step(starts=starts), 0.0):
        assert isinstance(told, SendRelay) and isinstance(told.message, TailHello)
        core.receive(told.client_id, None, ReturnHello(told.message.link, b"nonce", None), 0.0)
    return core


def run(
    core: TailCore, step: Step, logits: NDArray[np.float32] | None = None, timings: tuple[StageTiming, ...] = ()
) -> tuple[StepResult, list[LinkInstruction | Note]]:
    assert core.begin(step, 0.0) == []
    return core.record(step, core.draw(step, logits), timings, 0.0)


def to_client(*items: ReturnItem, client_id: str = "c") -> SendRelay:
    return SendRelay(client_id, ReturnTokens(items))


def tokens(first: int, *token_ids: int, seq_id: int = 1, ending: Ending | None = None) -> ReturnItem:
    return ReturnItem(f"r{seq_id}", first, token_ids, (), ending)


def ending(
    reason: FinishReason, num_tokens: int, code: ErrorCode | None = None, detail: str = "", cached_tokens: int = 0
) -> Ending:
    """Of a request whose steps took no time."""
    usage = Usage(2, num_tokens, cached_tokens)
    return Ending(reason, num_tokens, usage, code=code, detail=detail, timing=UNTIMED)


def endings(out: Iterable[LinkInstruction | Note]) -> list[Ending]:
    sent = [i.message for i in out if isinstance(i, SendRelay) and isinstance(i.message, ReturnTokens)]
    return [item.ending for message in sent for item in message.items if item.ending]
