"""A stage as a state machine: registration, stage_epoch, fences, and the ring through toy layers."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from support.stage_info import INFO
from support.toy_operators import VOCAB_SIZE, ToyOperators, expected_tokens

from stagewire.stage.core import StageCore, StageParts
from stagewire.stage.head.limits import HeadLimits
from stagewire.stage.instructions import (
    CloseRing,
    ConnectRing,
    Exit,
    Instruction,
    SendControl,
    SendHead,
    SendNext,
)
from stagewire.stage.kv.store import KvStore
from stagewire.stage.schedule.limits import SchedulerLimits
from stagewire.stage.settings import StageSettings
from stagewire.stage.tail.link_instructions import CloseLink, Dial
from stagewire.stage.tail.return_link import DIAL_S
from stagewire.wire.cache_reports import AskCache, CacheReport
from stagewire.wire.codec import BROKER, Envelope, Message, decode_frame, encode_frame
from stagewire.wire.control import (
    Assemble,
    Assembled,
    AssemblyReport,
    Dissolve,
    Dissolved,
    Fault,
    GenerateAck,
    Register,
    Registered,
    RegisterRefused,
    RequestEnded,
    RunningRequest,
)
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode, SettingsError
from stagewire.wire.frontend import RelayToClient, RelayToTail, WhoAreYou
from stagewire.wire.request import FinishReason, ReturnOffer, SnapshotRequest, StageTiming
from stagewire.wire.returns import ReturnHello, ReturnTokens, TailHello
from stagewire.wire.ring import Repeat, StartRequest, Step
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.snapshots import AskHeadSnapshots, SnapshotAction, SnapshotInfo, SnapshotOrder, SnapshotReport
from stagewire.wire.tensor import Blob, TokenIds

EPOCH = Epoch(5, 1)


def new_core(dial_timeout_s: float = DIAL_S) -> StageCore:
    def head_limits(assemble: Assemble) -> HeadLimits:
        scheduler = SchedulerLimits(
            num_stages=assemble.num_stages,
            num_blocks=assemble.num_blocks,
            block_size=16,
            max_sequences=4,
            chunk_tokens=32,
            chunk_target_s=1.0,
        )
        return HeadLimits(
            scheduler=scheduler, context_length=100, vocab_size=VOCAB_SIZE, end_token_ids=(), step_deadline_s=5.0
        )

    nonces = count(1)
    parts = StageParts(
        store=KvStore(16, 16, block_bytes=100),
        hidden_size=2,
        is_row_exact=True,
        head_limits=head_limits,
        draw_nonce=lambda: b"nonce-%d" % next(nonces),
        dial_timeout_s=dial_timeout_s,
    )
    return StageCore(INFO, parts)


def assemble(index: int = 0, num_stages: int = 1, epoch: Epoch = EPOCH) -> Assemble:
    following = None if index == num_stages - 1 else "tcp://next"
    return Assemble(epoch, index, num_stages, "tcp://feed", following, 16, 16, f"n{index}")


def start(request_id: str = "r", max_tokens: int = 3) -> StartRequest:
    return StartRequest(
        request_id, "c", "s", SamplingParams(temperature=0), max_tokens, (), False, None, TokenIds.of([3, 4, 5])
    )


def feed(core: StageCore, sequence: int, message: StartRequest | Repeat, epoch: Epoch = EPOCH) -> list[Instruction]:
    return core.handle_ring(Envelope(epoch, BROKER, 7, sequence), message, 0.0)


def test_a_stage_registers_when_asked() -> None:
    """Without an assembly there is nothing to adopt."""
    assert new_core().handle_control(WhoAreYou(), 0.0) == [SendControl(Register(INFO, None))]


def test_assembly_is_acknowledged_once_its_links_are_there_and_again_when_repeated() -> None:
    """The head needs no feed socket of its own, the tail no hop."""
    head, tail = new_core(), new_core()
    assert head.handle_control(assemble(0, 2), 0.0) == [
        ConnectRing(None, "tcp://next"),
        SendControl(Assembled(EPOCH)),
    ]
    assert tail.handle_control(assemble(1, 2), 0.0) == [
        ConnectRing("tcp://feed", None),
        SendControl(Assembled(EPOCH)),
    ]
    assert tail.handle_control(assemble(1, 2), 0.1) == [SendControl(Assembled(EPOCH))]


def test_a_new_epoch_replaces_the_old_and_the_old_never_returns() -> None:
    """What was dissolved, or overtaken, stays fenced."""
    core = new_core()
    core.handle_control(assemble(), 0.0)
    newer = replace(assemble(), epoch=Epoch(5, 2))
    assert core.handle_control(newer, 0.1) == [
        CloseRing(),
        ConnectRing(None, None),
        SendControl(Assembled(Epoch(5, 2))),
    ]
    assert core.handle_control(assemble(), 0.2) == [SendControl(Dissolved(EPOCH))]
    assert feed(core, 1, start()) == [], "a message of the old epoch is dropped"


def test_dissolving_is_always_acknowledged() -> None:
    """Also an epoch that this stage was never in; none below it is ever taken up again."""
    core = new_core()
    core.handle_control(assemble(), 0.0)
    assert core.handle_control(Dissolve(EPOCH), 0.1) == [CloseRing(), SendControl(Dissolved(EPOCH))]
    assert core.handle_control(Dissolve(EPOCH), 0.2) == [SendControl(Dissolved(EPOCH))]
    assert core.handle_control(assemble(), 0.3) == [SendControl(Dissolved(EPOCH))]
    assert core.stage_epoch is None


def test_a_broker_that_does_not_keep_the_assembly_ends_it() -> None:
    """The report names it with the head's requests; the welcome says whether it stands."""
    core = new_core()
    core.handle_control(assemble(), 0.0)
    feed(core, 1, start())
    report = AssemblyReport(EPOCH, 0, 1, (RunningRequest("r", "c", "s"),))
    assert core.handle_control(WhoAreYou(), 0.1) == [SendControl(Register(INFO, report))]
    assert core.handle_control(Registered(8, EPOCH), 0.2) == []
    assert core.handle_control(Registered(9, None), 0.3) == [CloseRing()]


def test_a_second_welcome_takes_nothing_away() -> None:
    """A stage that registered twice is welcomed twice, before its pipeline is assembled or meanwhile."""
    core = new_core()
    assert core.handle_control(Registered(8, None), 0.0) == []
    assert core.handle_control(Registered(8, None), 0.1) == []
    core.handle_control(assemble(), 0.2)
    assembly = core.stage_epoch
    feed(core, 1, start())
    assert core.handle_control(Registered(8, EPOCH), 0.3) == []
    assert core.handle_control(Registered(9, EPOCH), 0.4) == [], "another broker, which adopts it"
    assert core.handle_control(Registered(9, EPOCH), 0.5) == []
    assert core.stage_epoch is assembly and core.stage_epoch is not None
    assert core.stage_epoch.report().requests == (RunningRequest("r", "c", "s"),)


def test_a_late_end_of_an_assembly_does_not_touch_the_next() -> None:
    """The first was given up before its `Assembled` came, so that it is dissolved a second time."""
    core, newer = new_core(), Epoch(5, 2)
    core.handle_control(assemble(), 0.0)
    assert core.handle_control(Dissolve(EPOCH), 0.1) == [CloseRing(), SendControl(Dissolved(EPOCH))]
    assert core.handle_control(Registered(5, None), 0.2) == []
    core.handle_control(assemble(epoch=newer), 0.3)
    assert core.handle_control(Dissolve(EPOCH), 0.4) == [SendControl(Dissolved(EPOCH))]
    assert core.handle_control(Registered(5, newer), 0.5) == []
    assert core.stage_epoch is not None and core.stage_epoch.epoch == newer


def test_a_refused_stage_exits_with_the_reason() -> None:
    """Another stage of the same name is there already, say."""
    refused = RegisterRefused(ErrorCode.IDENTITY_IN_USE, "s0 is taken")
    assert new_core().handle_control(refused, 0.0) == [Exit(ErrorCode.IDENTITY_IN_USE, "s0 is taken")]


def test_a_gap_ends_the_epoch_and_is_told_until_dissolved() -> None:
    """After the fault nothing is taken any more."""
    core = new_core()
    core.handle_control(Registered(8, None), 0.0)
    core.handle_control(assemble(), 0.0)
    (told,) = feed(core, 2, start())
    assert isinstance(told, SendControl) and isinstance(told.message, Fault)
    assert told.message.code is ErrorCode.STAGE_LOST
    assert feed(core, 3, start()) == []
    assert core.tick(0.5) == []
    assert core.tick(1.0) == [told]
    assert core.stage_epoch is not None and core.stage_epoch.take(1.0) is None


def test_a_repetition_that_is_ahead_is_a_gap_too() -> None:
    """The last message of an idle link was lost."""
    core = new_core()
    core.handle_control(assemble(), 0.0)
    assert feed(core, 0, Repeat()) == []
    (told,) = feed(core, 1, Repeat())
    assert isinstance(told, SendControl) and isinstance(told.message, Fault)


def test_a_message_that_does_not_belong_here_ends_the_epoch() -> None:
    """A step at a head can only be a mistake; it is not ignored."""
    core = new_core()
    core.handle_control(assemble(), 0.0)
    step = Step(1, (), (), (), (), (), TokenIds(), None)
    (told,) = core.handle_ring(Envelope(EPOCH, 1, 0, 1), step, 0.0)
    assert isinstance(told, SendControl) and isinstance(told.message, Fault)
    assert told.message.code is ErrorCode.PROTOCOL_ERROR


def test_idle_links_repeat_their_number() -> None:
    """Every half second, on each link of its own."""
    core = new_core()
    core.handle_control(Registered(8, None), 0.0)
    core.handle_control(assemble(1, 3), 0.0)
    first = [SendNext(Envelope(EPOCH, 1, 0, 0), Repeat()), SendHead(Envelope(EPOCH, 1, 0, 0), Repeat())]
    assert core.tick(0.0) == first
    assert core.tick(0.4) == []
    assert core.tick(0.5) == first


def run_ring(cores: list[StageCore], operators: list[ToyOperators], rounds: int = 60) -> list[Instruction]:
    """Pass steps round by hand until nothing happens; returns all that left the ring."""
    out: list[Instruction] = []
    for _ in range(rounds):
        for index, core in enumerate(cores):
            stage_epoch = core.stage_epoch
            assert stage_epoch is not None
            taken = stage_epoch.take(0.0)
            if taken is None:
                continue
            sent = stage_epoch.begin(taken.step, 0.0)
            plan = stage_epoch.executor.plan(taken.step)
            output = plan.compute(operators[index])
            draws = stage_epoch.draw(plan, output)
            sent += stage_epoch.finish(taken, plan, output, draws, StageTiming(9, 1, 0.5, 0.1, 0.0), 0.0)
            for instruction in sent:
                if isinstance(instruction, SendNext):
                    out += cores[index + 1].handle_ring(instruction.envelope, instruction.message, 0.0)
                elif isinstance(instruction, SendHead):
                    out += cores[0].handle_ring(instruction.envelope, instruction.message, 0.0)
                else:
                    out.append(instruction)
    return out


def relayed(instructions: list[Instruction]) -> list[Message]:
    """What went to clients through the broker."""
    sent = [i.message for i in instructions if isinstance(i, SendControl)]
    return [decode_frame(m.frame.data) for m in sent if isinstance(m, RelayToClient)]


@pytest.mark.parametrize("cuts", [[(0, 2)], [(0, 1), (1, 2)]])
def test_the_ring_serves_a_request(cuts: list[tuple[int, int]]) -> None:
    """Acknowledged, computed, returned, reported: with one stage, whose ring closes inside, and with two."""
    cores = [new_core() for _ in cuts]
    operators = [ToyOperators(*cut, 2, 16) for cut in cuts]
    for index, core in enumerate(cores):
        core.handle_control(assemble(index, len(cuts)), 0.0)
    assert feed(cores[0], 1, start()) == [SendControl(GenerateAck("r", EPOCH, None, ""))]
    out = run_ring(cores, operators)
    (hello,) = relayed(out)
    assert isinstance(hello, TailHello), "without an offer the tail greets through the broker, and waits for the reply"
    ended = [i.message for i in out if isinstance(i, SendControl) and isinstance(i.message, RequestEnded)]
    assert [(e.request_id, e.finish_reason, e.usage.completion_tokens) for e in ended] == [
        ("r", FinishReason.LENGTH, 3)
    ]
    reply = Blob(encode_frame(ReturnHello(hello.link, hello.tail_nonce, None)))
    (tokens,) = relayed(cores[-1].handle_control(RelayToTail("c", EPOCH, reply), 0.0))
    assert isinstance(tokens, ReturnTokens)
    assert list(tokens.items[0].token_ids) == expected_tokens([3, 4, 5], 3, 2)


def test_a_stage_tells_what_its_cache_holds_and_forgets_it_when_asked() -> None:
    """Blocks that a request uses stay."""
    core = new_core()
    core.handle_control(assemble(), 0.0)
    feed(core, 1, start())
    run_ring([core], [ToyOperators(0, 2, 2, 16)])
    for ticket, clear, kept, cleared in ((5, False, 1, 0), (6, True, 0, 1), (7, False, 0, 0)):
        (told,) = core.handle_control(AskCache(ticket, clear), 1.0)
        assert isinstance(told, SendControl) and isinstance(told.message, CacheReport)
        cache = told.message.cache
        assert (told.message.ticket, cache.stage_id, cache.num_used_blocks) == (ticket, "s0", 0)
        assert (cache.num_cached_blocks, cache.num_cleared, cache.block_bytes) == (kept, cleared, 100)
        assert cache.statistics.recorded_tokens == 3


def test_a_head_tells_a_clients_snapshots_and_frees_them() -> None:
    """Another client's name, or a stage without a head, has none."""
    core = new_core()
    core.handle_control(assemble(), 0.0)
    feed(core, 1, replace(start(max_tokens=0), snapshot=SnapshotRequest("rules", 2)))
    run_ring([core], [ToyOperators(0, 2, 2, 16)])

    def told(client_id: str, free: str | None = None) -> tuple[SnapshotInfo, ...]:
        order = SnapshotOrder(SnapshotAction.FREE, free) if free else SnapshotOrder()
        (report,) = core.handle_control(AskHeadSnapshots(4, client_id, order), 1.0)
        assert isinstance(report, SendControl) and isinstance(report.message, SnapshotReport)
        assert report.message.ticket == 4
        return report.message.items

    assert told("c") == (SnapshotInfo("rules", 2, 1, True, str(EPOCH), "c", 1),)
    assert told("d", free="rules") == () and len(told("c")) == 1
    assert told("c", free="rules") == ()
    run_ring([core], [ToyOperators(0, 2, 2, 16)])
    core.handle_control(Dissolve(EPOCH), 2.0)
    assert told("c") == ()


@pytest.mark.parametrize("timeout_s", [0.5, DIAL_S, 20.0])
def test_how_long_a_client_is_dialled_is_a_setting_of_the_stage(timeout_s: float) -> None:
    """Then its tokens come through the broker. The setting has limits, and reaches the tail."""
    core, operators = new_core(timeout_s), ToyOperators(0, 2, 2, 16)
    core.handle_control(assemble(), 0.0)
    offer = ReturnOffer("tcp://127.0.0.1:1", b"offer", 1)
    feed(core, 1, replace(start(), offer=offer))
    dialled = [one for one in run_ring([core], [operators]) if isinstance(one, Dial)]
    assert [one.endpoint for one in dialled] == ["tcp://127.0.0.1:1"]
    closed = [sum(isinstance(one, CloseLink) for one in core.tick(at)) for at in (timeout_s - 0.25, timeout_s)]
    assert closed == [0, 1]
    with pytest.raises(SettingsError, match="dial_timeout_s=0: must be between"):
        StageSettings(model="m", control_endpoint="tcp://127.0.0.1:1", dial_timeout_s=0)


def test_relayed_nonsense_is_counted_and_harmless() -> None:
    """A client's bytes come through the broker unread; the tail reads them with care."""
    core = new_core()
    core.handle_control(assemble(), 0.0)
    assert core.handle_control(RelayToTail("c", EPOCH, Blob()), 0.0) == []
    assert core.num_dropped == 1
