"""The PUSH sockets of one epoch's ring: to the next stage, and to the head."""

from __future__ import annotations

import zmq

from stagewire.sockets.connection import HIGH_WATER_MARK
from stagewire.sockets.nonblocking import Outbox, SendSocket
from stagewire.stage.instructions import ConnectRing, SendHead, SendNext
from stagewire.stage.settings import StageSettings
from stagewire.wire.codec import Frame

_OUTBOX_LIMIT = 4096
Link = type[SendNext] | type[SendHead]


class RingSockets:
    """Opened for an epoch, and closed with it; what they still hold then is of no use to anybody."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], settings: StageSettings) -> None:
        self._context, self._settings = context, settings
        self._links: dict[Link, SendSocket] = {}

    @property
    def links(self) -> list[SendSocket]:
        return [*self._links.values()]

    def connect(self, connect: ConnectRing) -> None:
        """Fresh sockets, where there is an endpoint."""
        targets: tuple[tuple[Link, str | None], ...] = (
            (SendNext, connect.next_endpoint),
            (SendHead, connect.feed_endpoint),
        )
        conditions = {SendNext: self._settings.hop_condition, SendHead: self._settings.feed_condition}
        for link, endpoint in targets:
            if endpoint is not None:
                socket = self._context.socket(zmq.PUSH)
                socket.set(zmq.SNDHWM, HIGH_WATER_MARK)
                socket.set(zmq.LINGER, 0)
                socket.connect(endpoint)
                self._links[link] = SendSocket(socket, Outbox(_OUTBOX_LIMIT, conditions[link]))

    def put(self, link: Link, frame: Frame, now: float) -> bool:
        """Send, or queue; False when the outbox is full, which credits do not let happen."""
        return self._links[link].put([frame], now)

    def close(self) -> None:
        for link in self._links.values():
            link.socket.close(linger=0)
        self._links.clear()
