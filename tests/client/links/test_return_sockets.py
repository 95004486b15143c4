"""Which connection is a return socket's peer, and that none of them can end the process."""

from __future__ import annotations

import subprocess
import sys

import pytest
import zmq

from stagewire.client.links.return_sockets import Connections

ACCEPTED, CONNECTED, GONE = zmq.EVENT_ACCEPTED, zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED


def after(*events: tuple[int, int]) -> Connections:
    connections = Connections()
    for event, descriptor in events:
        connections.take(event, descriptor)
    return connections


def test_the_end_of_its_peer_is_the_end() -> None:
    """The first connection whose handshake succeeded."""
    assert not after((ACCEPTED, 5), (CONNECTED, 0)).is_over
    assert after((ACCEPTED, 5), (CONNECTED, 0), (GONE, 5)).is_over


def test_a_later_connection_comes_and_goes_unnoticed() -> None:
    """With or without a handshake of its own."""
    peer = [(ACCEPTED, 5), (CONNECTED, 0)]
    assert not after(*peer, (ACCEPTED, 6), (CONNECTED, 0), (GONE, 6)).is_over
    assert not after(*peer, (ACCEPTED, 6), (GONE, 6)).is_over
    assert after(*peer, (ACCEPTED, 6), (GONE, 5)).is_over


def test_a_failed_handshake_before_any_peer_spoils_the_socket() -> None:
    """The next one could be dead on arrival."""
    connections = after((ACCEPTED, 5), (GONE, 5))
    assert connections.is_over
    assert not connections.is_connected


def test_if_two_shook_hands_at_once_either_may_have_been_the_peer() -> None:
    """So the end of either is taken for the end."""
    both = [(ACCEPTED, 5), (ACCEPTED, 6), (CONNECTED, 0)]
    assert after(*both, (GONE, 5)).is_over
    assert after(*both, (GONE, 6)).is_over


ABORT = """
import sys, time, zmq
from stagewire.sockets.connection import WATCHFUL
context = zmq.Context()
binder = context.socket(zmq.PAIR)
for option, value in {options}:
    binder.set(option, value)
binder.set(zmq.RCVHWM, 10)
binder.bind("tcp://127.0.0.1:*")
peer = context.socket(zmq.PAIR)
peer.connect(binder.last_endpoint)
for _ in range(50):
    peer.send(bytes(1000))
time.sleep(0.3)
peer.close(linger=0)
time.sleep(1.5)
print("survived", flush=True)
binder.close(linger=0)
"""


@pytest.mark.processes
def test_a_peer_that_leaves_while_it_is_not_read_does_no_harm() -> None:
    """With ZMTP heartbeats libzmq aborts the process here, hence the kernel's means."""
    code = ABORT.format(options="WATCHFUL")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "survived\n", done.stderr
