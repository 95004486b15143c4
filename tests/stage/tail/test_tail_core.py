"""The tail: who starts, which tokens a request holds, what each slice draws, and the links to the clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from support.random_numbers import picked, reference_uniform
from support.tail_steps import (
    EPOCH,
    GREEDY,
    PROMPT,
    VOCAB_SIZE,
    decode,
    ending,
    endings,
    prefill,
    rows,
    run,
    start,
    step,
    tail,
    to_client,
    tokens,
)  # fmt: skip

from stagewire.stage.tail.core import Draw, TailCore
from stagewire.stage.tail.link_instructions import CloseLink, Dial, LinkEnd, SendLink, SendRelay, TellHead
from stagewire.stage.tail.philox import Place
from stagewire.stage.tail.sampler import PenaltyCounts, Sampled, sample
from stagewire.stage.timing.timing_line import timing_line
from stagewire.wire.errors import ErrorCode
from stagewire.wire.prompt_digest import prompt_digest
from stagewire.wire.request import FinishReason, ReturnOffer, Usage
from stagewire.wire.returns import (
    Acknowledgement,
    ReturnAck,
    ReturnAction,
    ReturnControl,
    ReturnHello,
    ReturnTokens,
    TailHello,
)  # fmt: skip
from stagewire.wire.ring import CancelRequest, Keep, Phase, SequenceFinish, SequenceResult, Slice, StepResult
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import TokenIds

UNSEEN = SamplingParams(temperature=0.0, repetition_penalty=2.0)
"""Of equal logits, it takes the lowest id that the request does not hold yet."""
OFFER = ReturnOffer("tcp://client", b"offer", 1)


# --- who starts, and which tokens it holds ---


def test_a_start_with_an_offer_is_dialled_and_one_without_is_greeted_through_the_broker() -> None:
    """Before the step is computed; links are numbered over all clients, and a client has one."""
    core = TailCore(EPOCH, VOCAB_SIZE, lambda: b"nonce")
    starts = (replace(start(1), offer=OFFER), start(2, client_id="d"), start(3))
    assert core.begin(step(starts=starts), 0.0) == [
        Dial("c", 1, "tcp://client", TailHello(EPOCH, "c", 1, b"offer", b"nonce")),
        SendRelay("d", TailHello(EPOCH, "d", 2, b"", b"nonce")),
    ]
    assert core.num_requests == 3


@pytest.mark.parametrize(
    ("slices", "token_ids"),
    [
        # The prompt in one chunk and in two, of which the last draws.
        ((Slice(1, Phase.PREFILL, 0, 4, True),), (0, 1, 2, 3)),
        ((Slice(1, Phase.PREFILL, 0, 2, False), Slice(1, Phase.PREFILL, 2, 2, True)), (0, 1, 2, 3)),
        # A chunk that comes again counts once, else what follows would count as known.
        (
            (
                Slice(1, Phase.PREFILL, 0, 2, False),
                Slice(1, Phase.PREFILL, 0, 2, False),
                Slice(1, Phase.PREFILL, 2, 2, True),
            ),
            (0, 1, 0, 1, 2, 3),
        ),
        # So does a part of one, and one that was missed counts when it comes again.
        ((Slice(1, Phase.PREFILL, 0, 2, False), Slice(1, Phase.PREFILL, 0, 4, True)), (0, 1, 0, 1, 2, 3)),
        (
            (Slice(1, Phase.PREFILL, 0, 2, False, missed=True), Slice(1, Phase.PREFILL, 0, 4, True)),
            (6, 6, 0, 1, 2, 3),
        ),
        # A restore's tokens count whether or not a stage holds them.
        ((Slice(1, Phase.TRY_RESTORE_DECODE, 0, 4, True, num_restored=3),), (0, 1, 2, 3)),
        (
            (
                Slice(1, Phase.TRY_RESTORE, 0, 2, False, missed=True, num_restored=0),
                Slice(1, Phase.PREFILL, 2, 2, True),
            ),
            (0, 1, 2, 3),
        ),
    ],
)
def test_a_request_holds_each_token_once_however_it_came(slices: tuple[Slice, ...], token_ids: tuple[int, ...]) -> None:
    """The next draw of a request that shuns what it holds: the first id that is not among its four tokens."""
    core = tail(start(sampling=UNSEEN))
    for index, span in enumerate(slices):
        first = sum(before.num_tokens for before in slices[:index])
        one = step(span, token_ids=token_ids[first : first + span.num_tokens])
        core.begin(one, 0.0)
        draws = core.draw(one, np.ones((1, VOCAB_SIZE), np.float32))
    assert draws == [Draw(1, Sampled(4))]


def test_a_drawn_token_that_is_computed_again_is_counted_once() -> None:
    """After a preemption the whole sequence is a prompt; a token's frequency stays what was drawn."""
    core = tail(start(sampling=SamplingParams(temperature=0.0, frequency_penalty=1.0)))
    level = rows(3) * np.float32(1.5)
    run(core, step(prefill(), token_ids=[0, 1]), level)
    again = step(Slice(1, Phase.PREFILL, 0, 3, True), token_ids=[0, 1, 3])
    assert run(core, again, level)[0].results == (SequenceResult(1, (3,), None),)
    assert run(core, step(decode(4), token_ids=[3]), level)[0].results[0].token_ids == (0,)


# --- drawing ---


def test_each_slice_that_asks_draws_from_its_own_row() -> None:
    """A chunk before the last has no row, and one that was missed has none either and draws nothing."""
    core = tail(*(start(seq_id) for seq_id in (1, 2, 3, 4)))
    chunk, missed = replace(prefill(2), sample=False), replace(decode(2, 3), missed=True)
    assert core.draw(step(prefill(1), chunk, missed, decode(2, 4)), rows(3, 5)) == [
        Draw(1, Sampled(3)),
        Draw(4, Sampled(5)),
    ]
    assert core.draw(step(missed), None) == []


def test_a_token_depends_on_its_place_in_the_sequence_not_on_how_that_was_computed() -> None:
    """A replay draws what a decode drew: the seed goes with the position behind the last row."""
    params = SamplingParams(seed=5, temperature=3.0)
    core = tail(start(sampling=params))
    row = rows(3)
    counts, digest = PenaltyCounts(VOCAB_SIZE, params), prompt_digest(TokenIds.of(PROMPT))
    expected = [sample(row[0], params, counts, Place(digest, 0, position)) for position in range(30, 40)]
    decodes = [core.draw(step(decode(position)), row) for position in range(29, 39)]
    replays = [core.draw(step(Slice(1, Phase.PREFILL, 0, length, True)), row) for length in range(30, 40)]
    assert decodes == replays == [[Draw(1, sampled)] for sampled in expected]
    assert len({sampled.token_id for sampled in expected}) > 1


def test_another_choice_of_the_same_prompt_draws_other_tokens() -> None:
    """Each what the plain generator says for its index, of one seed."""
    params = SamplingParams(seed=5, temperature=100.0)
    core = tail(*(start(seq_id, params, choice_index=seq_id - 1) for seq_id in (1, 2, 3)))
    level, shares = np.zeros((1, VOCAB_SIZE), np.float32), [1 / VOCAB_SIZE] * VOCAB_SIZE
    drawn = [
        [core.draw(step(decode(position, seq_id)), level)[0].sampled for position in range(1, 21)]
        for seq_id in (1, 2, 3)
    ]
    assert drawn == [
        [Sampled(picked(shares, reference_uniform(5, PROMPT, position, index))) for position in range(2, 22)]
        for index in range(3)
    ]
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]


def test_a_sequence_that_is_not_there_draws_nothing_and_changes_nothing() -> None:
    """It has ended, and a later step was under way already; its row is passed over."""
    core = tail(start(2))
    both = step(decode(2, 1), decode(2, 2))
    assert core.draw(both, rows(3, 5)) == [Draw(1, None), Draw(2, Sampled(5))]
    result, out = run(core, both, rows(3, 5))
    assert result == StepResult(1, (SequenceResult(2, (5,), None),), ())
    assert out == [to_client(tokens(0, 5, seq_id=2))]


@pytest.mark.parametrize(
    ("sampling", "row", "detail"),
    [
        (GREEDY, np.full(VOCAB_SIZE, np.nan, np.float32), "the model's logits are not finite"),
        (GREEDY, np.full(VOCAB_SIZE, -np.inf, np.float32), "the model's logits are not finite"),
        (
            SamplingParams(temperature=0.0, logit_bias=((99, 1.0),)),
            rows(3)[0],
            "sampling failed: IndexError: index 99 is out of bounds for axis 0 with size 8",
        ),
    ],
)
def test_what_cannot_be_sampled_ends_only_its_own_sequence(
    sampling: SamplingParams, row: NDArray[np.float32], detail: str
) -> None:
    """With a code and the reason; the others of the step draw as if nothing were."""
    core = tail(start(1, sampling), start(2))
    both = step(prefill(1), prefill(2))
    result, out = run(core, both, np.stack([row, rows(5)[0]]))
    failed = ending(FinishReason.FAILED, 0, ErrorCode.DECODE_FAILED, detail)
    assert result.results == (
        SequenceResult(1, (), FinishReason.FAILED, ErrorCode.DECODE_FAILED, Usage(2, 0)),
        SequenceResult(2, (5,), None),
    )
    assert out == [
        to_client(tokens(0, ending=failed), tokens(0, 5, seq_id=2)),
        timing_line(start(1, sampling), failed, EPOCH),
    ]
    assert core.num_requests == 1


def test_a_resumed_sequence_draws_from_the_logits_that_were_kept() -> None:
    """They are of the snapshot's last token, and a copy: the step's own rows may be written over."""
    core = tail(start(1), start(2))
    logits = rows(6)
    core.draw(step(replace(prefill(1), sample=False, keep=Keep(50, 2))), logits)
    logits[:] = rows(1)
    resume = Slice(2, Phase.RESUME, 0, 2, True, num_restored=2, source=50)
    assert core.draw(step(resume), None) == [Draw(2, Sampled(6))]
    assert core.draw(step(replace(resume, keep=Keep(51, 2))), None) == [Draw(2, Sampled(6))]
    assert core.draw(step(replace(resume, source=51)), None) == [Draw(2, Sampled(6))]


@pytest.mark.parametrize("keep", [None, Keep(50, 1)])
def test_a_resumed_sequence_without_kept_logits_ends_and_says_so(keep: Keep | None) -> None:
    """Nothing was kept under that id, or less than the whole prompt was; the row of another token is no answer."""
    core = tail(start(1), start(2))
    core.draw(step(replace(prefill(1), keep=keep)), rows(6))
    resume = step(Slice(2, Phase.RESUME, 0, 2, True, num_restored=2, source=50))
    assert core.draw(resume, None) == [Draw(2, None, "the snapshot has no logits")]
    (failed,) = endings(run(core, resume)[1])
    detail = "the snapshot has no logits"
    assert failed == ending(FinishReason.FAILED, 0, ErrorCode.DECODE_FAILED, detail, cached_tokens=2)


def test_kept_logits_go_with_the_release_of_their_snapshot() -> None:
    """Of that one only."""
    core = tail(start(1), start(2))
    for keep in (Keep(50, 2), Keep(51, 2)):
        core.draw(step(replace(prefill(1), keep=keep)), rows(6))
    core.begin(step(releases=(50, 99)), 0.0)
    resume = Slice(2, Phase.RESUME, 0, 2, True, num_restored=2, source=50)
    assert core.draw(step(resume), None) == [Draw(2, None, "the snapshot has no logits")]
    assert core.draw(step(replace(resume, source=51)), None) == [Draw(2, Sampled(6))]


# --- links to the clients ---


def test_who_has_no_request_here_has_no_link() -> None:
    """Whatever comes of an unknown client does nothing, and keeps nothing."""
    core = tail(start())
    hello, ack = ReturnHello(1, b"nonce", OFFER), ReturnAck((Acknowledgement("r1", 1, True),))
    for link in (None, 1):
        assert core.receive("stranger", link, hello, 0.0) == core.receive("stranger", link, ack, 0.0) == []
    assert core.lose("stranger", 1, 0.0) == core.lose("stranger", 1, 0.0, LinkEnd.UNWANTED) == []
    assert core.reset_relays(0.0) == [SendRelay("c", TailHello(EPOCH, "c", 2, b"", b"nonce"))]
    assert TailCore(EPOCH, VOCAB_SIZE, bytes).reset_relays(0.0) == TailCore(EPOCH, VOCAB_SIZE, bytes).tick(0.0) == []


def test_what_a_client_says_reaches_its_own_link() -> None:
    """An answer to the dial brings what was drawn meanwhile, a cancel goes to the head, a loss leads to a relay."""
    core = TailCore(EPOCH, VOCAB_SIZE, lambda: b"nonce")
    core.begin(step(starts=(replace(start(), offer=OFFER), start(2, client_id="d"))), 0.0)
    assert run(core, step(prefill()), rows(3))[1] == []
    sent = SendLink("c", 1, ReturnTokens((tokens(0, 3),)))
    assert core.receive("c", 1, ReturnHello(1, b"nonce", None), 0.0) == [sent]
    cancel = ReturnControl("r1", ReturnAction.CANCEL)
    assert core.receive("c", 1, cancel, 0.0) == [TellHead(CancelRequest("r1"))]
    assert core.receive("d", 1, cancel, 0.0) == [], "a client has no say over another's requests"
    assert core.lose("c", 1, 0.0) == [SendRelay("c", TailHello(EPOCH, "c", 3, b"", b"nonce"))]


def test_another_broker_greets_every_client_that_is_reached_through_it() -> None:
    """Direct links are none of its business."""
    core = tail(start(1), start(2, client_id="d"))
    core.begin(step(starts=(replace(start(3, client_id="e"), offer=OFFER),)), 0.0)
    core.receive("e", 3, ReturnHello(3, b"nonce", None), 0.0)
    assert core.reset_relays(0.0) == [
        SendRelay("c", TailHello(EPOCH, "c", 4, b"", b"nonce")),
        SendRelay("d", TailHello(EPOCH, "d", 5, b"", b"nonce")),
    ]


def test_a_dial_without_an_answer_is_given_up_after_its_time() -> None:
    """Then the client is greeted through the broker."""
    core = TailCore(EPOCH, VOCAB_SIZE, lambda: b"nonce")
    core.begin(step(starts=(replace(start(), offer=OFFER),)), 0.0)
    assert core.tick(3.9) == []
    assert core.tick(4.0) == [CloseLink("c", 1), SendRelay("c", TailHello(EPOCH, "c", 2, b"", b"nonce"))]


def test_a_client_that_has_all_its_endings_is_forgotten_and_its_next_request_gets_a_new_link() -> None:
    """No number comes twice, or the client would take the new link for the old one."""
    core = tail(start())
    run(core, step(finishes=(SequenceFinish(1, FinishReason.CANCELLED),)))
    assert core.receive("c", None, ReturnAck((Acknowledgement("r1", 0, True),)), 0.0) == []
    assert core.tick(0.1) == []
    assert core.receive("c", None, ReturnHello(1, b"nonce", OFFER), 0.2) == []
    greeting = SendRelay("c", TailHello(EPOCH, "c", 2, b"", b"nonce"))
    assert core.begin(step(starts=(start(2),)), 0.3) == [greeting]


def test_with_the_epoch_all_requests_logits_and_links_go() -> None:
    """No ending is written: who runs them again writes it, or who gives them up."""
    core = tail(start(1))
    core.draw(step(replace(prefill(), keep=Keep(50, 2))), rows(6))
    core.begin(step(starts=(replace(start(2, client_id="d"), offer=OFFER),)), 0.0)
    assert core.close() == [CloseLink("d", 2)]
    assert core.num_requests == 0
    both = step(prefill(1), finishes=(SequenceFinish(2, FinishReason.CANCELLED),))
    assert run(core, both, rows(3)) == (StepResult(1, (), ()), [])
    core.begin(step(starts=(start(3),)), 0.0)
    resume = Slice(3, Phase.RESUME, 0, 2, True, num_restored=2, source=50)
    assert core.draw(step(resume), None) == [Draw(3, None, "the snapshot has no logits")]
