"""When a stage registers, and what it says while nobody answers."""

from __future__ import annotations

import pytest

from stagewire.stage.registering import Registering


def test_it_registers_once_a_second_until_it_is_welcome_and_again_when_it_is_unknown() -> None:
    registering = Registering("tcp://127.0.0.1:9")
    asked = [now for now in range(40) if registering.is_due(False, False, now / 10)]
    assert asked == [0, 10, 20, 30]
    assert not registering.is_due(True, False, 9.0)
    assert registering.is_due(True, True, 9.1)


def test_a_broker_that_does_not_answer_is_named_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    registering = Registering("tcp://127.0.0.1:9")
    for second in range(25):
        registering.is_due(False, False, float(second))
    assert [record.getMessage() for record in caplog.records] == [
        "event=no_answer control=tcp://127.0.0.1:9 detail='is a broker there?'"
    ] * 2
