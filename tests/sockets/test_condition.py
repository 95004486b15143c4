"""The simulated network: delays add up, order is kept, a seed repeats; the outbox holds and bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagewire.sockets.condition import ConditionedLink, WireCondition
from stagewire.sockets.nonblocking import Outbox
from stagewire.wire.codec import Frame
from stagewire.wire.errors import SettingsError


def test_delay_and_bandwidth_add_up() -> None:
    """Each message waits for the wire, takes its transfer time, then travels."""
    link = ConditionedLink(WireCondition(delay_s=0.01, bandwidth_bytes_per_s=1000))
    assert link.arrival(5.0, 100) == pytest.approx(5.11)
    assert link.arrival(5.0, 100) == pytest.approx(5.21)


@given(st.integers(0, 9), st.lists(st.floats(0, 0.01), min_size=2, max_size=20))
def test_messages_never_overtake(seed: int, gaps: list[float]) -> None:
    """Jitter and stalls delay, but what was sent first arrives first; the same seed gives the same times."""
    condition = WireCondition(delay_s=0.001, jitter_s=0.05, stall_s=1.0, stall_probability=0.3, seed=seed)

    def arrivals() -> list[float]:
        link, now, out = ConditionedLink(condition), 0.0, []
        for gap in gaps:
            now += gap
            out.append(link.arrival(now, 10))
        return out

    times = arrivals()
    assert times == sorted(times) and times == arrivals()


def test_parse_reads_what_str_writes() -> None:
    """The command line's form is complete."""
    condition = WireCondition.parse("delay=10ms,bandwidth=100mbit,jitter=1ms,stall=0.2s,stall_probability=0.01,seed=7")
    assert condition == WireCondition(
        delay_s=0.01,
        bandwidth_bytes_per_s=12.5e6,
        jitter_s=0.001,
        stall_s=0.2,
        stall_probability=0.01,
        seed=7,
    )
    assert WireCondition.parse(str(condition)) == condition


@pytest.mark.parametrize("text", ["delay=10", "speed=1ms", "delay=-1ms", "stall_probability=2", "bandwidth=0mbit"])
def test_a_bad_condition_is_named(text: str) -> None:
    """The error repeats the part or the value that is wrong."""
    with pytest.raises(SettingsError):
        WireCondition.parse(text)


def test_an_outbox_refuses_beyond_its_limit() -> None:
    """The caller learns that it is full; nothing is dropped in silence."""
    outbox = Outbox(2)
    assert [outbox.put([b"x"], 0.0) for _ in range(3)] == [True, True, False]


def test_an_outbox_keeps_order_over_a_full_socket() -> None:
    """What the socket does not take stays first in line."""
    outbox, sent, room = Outbox(9), [], [2]

    def send(frames: list[Frame]) -> bool:
        room[0] -= 1
        if room[0] < 0:
            return False
        sent.append(bytes(frames[0]))
        return True

    for name in (b"a", b"b", b"c"):
        outbox.put([name], 0.0)
    outbox.flush(send, 0.0)
    assert sent == [b"a", b"b"] and len(outbox) == 1
    room[0] = 1
    outbox.flush(send, 0.0)
    assert sent == [b"a", b"b", b"c"] and outbox.next_due() is None


def test_an_outbox_holds_back_what_is_under_way() -> None:
    """A conditioned link lets go when the message would arrive."""
    outbox, sent = Outbox(9, WireCondition(delay_s=0.5)), list[list[Frame]]()

    def send(frames: list[Frame]) -> bool:
        sent.append(frames)
        return True

    outbox.put([b"x"], 1.0)
    outbox.flush(send, 1.4)
    assert sent == [] and outbox.next_due() == 1.5
    outbox.flush(send, 1.5)
    assert sent == [[b"x"]]
