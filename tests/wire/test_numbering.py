"""Numbers on the ring: the next is taken, another is a gap, another epoch is dropped."""

from __future__ import annotations

from stagewire.wire.codec import BROKER, Arrival, Envelope, ReceiverNumbers, SenderNumbers
from stagewire.wire.epoch import Epoch

EPOCH = Epoch(1, 1)


def test_messages_in_order_are_taken() -> None:
    """Two senders have numbers of their own."""
    receiver = ReceiverNumbers(EPOCH)
    senders = [SenderNumbers(EPOCH, 0), SenderNumbers(EPOCH, 1)]
    arrivals = [receiver.arrive(sender.next(0.0), False) for sender in senders for _ in range(3)]
    assert arrivals == [Arrival.TAKE] * 6


def test_a_lost_message_shows_with_the_next_one() -> None:
    """A number that is skipped is a gap."""
    receiver, sender = ReceiverNumbers(EPOCH), SenderNumbers(EPOCH, 0)
    sender.next(0.0)
    assert receiver.arrive(sender.next(0.0), False) is Arrival.GAP


def test_a_lost_last_message_shows_with_the_repetition() -> None:
    """The idle sender repeats the number of what got lost."""
    receiver, sender = ReceiverNumbers(EPOCH), SenderNumbers(EPOCH, 0)
    assert receiver.arrive(sender.next(0.0), False) is Arrival.TAKE
    sender.next(0.1)
    repeat = sender.repeat(0.7)
    assert repeat is not None and receiver.arrive(repeat, True) is Arrival.GAP


def test_a_busy_sender_does_not_repeat() -> None:
    """Repetition waits for half a second of silence, and again after each."""
    sender = SenderNumbers(EPOCH, 0)
    sender.next(10.0)
    assert sender.repeat(10.4) is None
    assert sender.repeat(10.5) == Envelope(EPOCH, 0, 0, 1)
    assert sender.repeat(10.9) is None


def test_a_repetition_of_what_was_taken_changes_nothing() -> None:
    """It is dropped, and the next message is still the next."""
    receiver, sender = ReceiverNumbers(EPOCH), SenderNumbers(EPOCH, 0)
    first_repeat = sender.repeat(0.0)
    assert first_repeat is not None and receiver.arrive(first_repeat, True) is Arrival.DROP
    assert receiver.arrive(sender.next(0.0), False) is Arrival.TAKE


def test_a_message_twice_is_a_gap() -> None:
    """One connection cannot repeat itself: something is wrong, and the epoch must end."""
    receiver, sender = ReceiverNumbers(EPOCH), SenderNumbers(EPOCH, 0)
    envelope = sender.next(0.0)
    receiver.arrive(envelope, False)
    assert receiver.arrive(envelope, False) is Arrival.GAP


def test_another_epoch_is_dropped() -> None:
    """Older or newer: not this receiver's business."""
    receiver = ReceiverNumbers(EPOCH)
    for epoch in (Epoch(1, 0), Epoch(2, 0)):
        assert receiver.arrive(Envelope(epoch, 0, 0, 5), False) is Arrival.DROP


def test_an_equal_epoch_is_the_same() -> None:
    """Whichever object says so: each message may bring its own."""
    receiver = ReceiverNumbers(EPOCH)
    assert [receiver.arrive(Envelope(Epoch(1, 1), 0, 0, i), False) for i in (1, 2, 3)] == [Arrival.TAKE] * 3
    assert receiver.arrive(Envelope(Epoch(1, 2), 0, 0, 4), False) is Arrival.DROP


def test_a_restarted_broker_begins_anew() -> None:
    """A higher run starts at 1 again; the old one's stragglers are dropped."""
    receiver = ReceiverNumbers(EPOCH)
    old, new = SenderNumbers(EPOCH, BROKER, run=10), SenderNumbers(EPOCH, BROKER, run=11)
    assert receiver.arrive(old.next(0.0), False) is Arrival.TAKE
    assert receiver.arrive(new.next(0.0), False) is Arrival.TAKE
    assert receiver.arrive(old.next(0.0), False) is Arrival.DROP
    assert receiver.arrive(new.next(0.0), False) is Arrival.TAKE
