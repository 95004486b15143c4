"""The client's DEALER to the broker, which comes back by itself, and the monitor that tells when."""

from __future__ import annotations

import zmq

from stagewire.client.links.return_sockets import MAX_MESSAGE_BYTES
from stagewire.sockets.connection import WatchedSocket
from stagewire.sockets.nonblocking import Outbox

CONNECTED = zmq.EVENT_HANDSHAKE_SUCCEEDED
_OUTBOX_LIMIT = 8192


def broker_socket(context: zmq.Context[zmq.Socket[bytes]], poller: zmq.Poller, endpoint: str) -> WatchedSocket:
    """Connecting to `endpoint`.

    Raises:
        zmq.ZMQError: it is no endpoint, or nothing more can be opened.
    """
    options = (
        (zmq.IMMEDIATE, 1),  # what one broker was to get must not reach the next
        (zmq.IPV6, int("[" in endpoint)),
        (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES),
        (zmq.RECONNECT_IVL, 50),
        (zmq.RECONNECT_IVL_MAX, 1000),
    )
    news, outbox = CONNECTED | zmq.EVENT_DISCONNECTED, Outbox(_OUTBOX_LIMIT)
    broker = WatchedSocket(context, zmq.DEALER, poller, options, news, outbox)
    broker.socket.connect(endpoint)
    return broker
