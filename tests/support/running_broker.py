"""A broker in a thread of the test."""

from __future__ import annotations

import threading

from stagewire.broker.loop import BrokerEndpoints, run_broker
from stagewire.broker.settings import BrokerSettings

ANSWER_S = 5.0


FAST = BrokerSettings(
    frontend_endpoint="tcp://127.0.0.1:*", control_endpoint="tcp://127.0.0.1:*", grace_s=0.0, stage_silence_s=1.0
)


class RunningBroker:
    """`run_broker` in a thread, until `stop`."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._stop, self._ready = threading.Event(), threading.Event()
        self.endpoints = BrokerEndpoints("", "")
        self._thread = threading.Thread(target=run_broker, args=(settings, self._on_ready, self._stop))
        self._thread.start()
        assert self._ready.wait(ANSWER_S)

    def _on_ready(self, endpoints: BrokerEndpoints) -> None:
        self.endpoints = endpoints
        self._ready.set()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(ANSWER_S)
        assert not self._thread.is_alive()
