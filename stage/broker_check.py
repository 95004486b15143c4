"""A look at the control address before a stage loads its layers: what is wrong with it shall not show minutes later."""

from __future__ import annotations

import logging

import zmq

from stagewire.sockets.connection import new_socket
from stagewire.sockets.nonblocking import received
from stagewire.sockets.probe import PROBE_S, probe_within
from stagewire.wire.address import dialled
from stagewire.wire.answering import Kind, Wanted, circumstance, mistake
from stagewire.wire.codec import decode, encode
from stagewire.wire.control import Heartbeat
from stagewire.wire.errors import ErrorCode, ProtocolError, SettingsError
from stagewire.wire.frontend import BadMessage

log = logging.getLogger("stagewire.stage")

_LOOK_UP_S = PROBE_S + 1.0
_ANSWER_S = 0.5


def check_broker(control_endpoint: str) -> None:
    """Returns where a stage may wait for its broker, within about three seconds; says so if none is there yet.

    Raises:
        SettingsError: the name does not resolve, or another port than a broker's control port answers.
    """
    address = dialled(control_endpoint, "control_endpoint")
    found = probe_within(address, _LOOK_UP_S)
    wrong = mistake(found, address, Wanted.CONTROL)
    if found.kind is Kind.BROKER:
        wrong = _objection(control_endpoint)
    elif not wrong:
        detail = f"{circumstance(found)}; this stage waits for a broker"
        log.warning("event=no_broker control=%s detail=%r", control_endpoint, detail)
    if wrong:
        raise SettingsError(f"control_endpoint={control_endpoint}: {wrong}", ErrorCode.INVALID_SETTING)


def _objection(control_endpoint: str) -> str | None:
    """What a broker has against a stage at this port; a heartbeat of nobody whom it knows changes nothing there."""
    with zmq.Context() as context, new_socket(context, zmq.DEALER, control_endpoint) as socket:
        socket.set(zmq.LINGER, 0)
        socket.connect(control_endpoint)
        socket.send_multipart(encode(Heartbeat("", 0, 0, None, None)), copy=True)
        socket.poll(round(_ANSWER_S * 1000))
        for frames in received(socket, limit=1):
            try:
                answer = decode(frames)
            except ProtocolError as error:
                return error.detail
            return answer.detail if isinstance(answer, BadMessage) else None
    return None
