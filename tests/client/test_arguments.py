"""A bad argument harms the call that brought it, and nobody else: not the socket thread, not the other requests."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stagewire.client import Client, ClientSettings, ErrorCode, RequestRefused, SamplingParams
from stagewire.wire.codec import decode, encode
from stagewire.wire.control import Fault
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import StagewireError

NEUTRAL = SamplingParams()


@pytest.mark.parametrize(
    ("session", "arguments"),
    [
        ("s", {"max_tokens": 2**64}),
        ("s", {"max_tokens": -1}),
        ("s", {"max_tokens": True}),
        ("s", {"stop_token_ids": list(range(1025))}),
        ("s", {"prompt_token_ids": [1.5]}),
        ("s", {"prompt_token_ids": [1.5], "sampling": None}),  # before anybody is asked how the model is sampled
        ("\udcff", {}),
        (object(), {}),
    ],
)
def test_a_bad_argument_is_refused_in_the_callers_thread(session: Any, arguments: dict[str, Any]) -> None:
    """With a typed error, before anything is sent; another request of the client still waits."""
    given: dict[str, Any] = {"prompt_token_ids": [1], "max_tokens": 1, "sampling": NEUTRAL} | arguments
    with Client(settings=ClientSettings(endpoint="tcp://127.0.0.1:9")) as client:
        other = client.session().generate(prompt_token_ids=[1], max_tokens=1, sampling=NEUTRAL)
        with pytest.raises(RequestRefused) as error:
            client.session(session).generate(**given)
        assert error.value.code in (ErrorCode.INVALID_REQUEST, ErrorCode.TOKEN_OUT_OF_VOCABULARY)
        with pytest.raises(TimeoutError):
            other.wait(0.3)
        assert "stagewire-client" in {thread.name for thread in threading.enumerate()}


def test_a_long_error_text_still_fits_into_a_message() -> None:
    """A library may write pages; the code and the beginning must arrive."""
    detail = StagewireError("x" * 50_000).detail
    fault = Fault(Epoch(1, 1), ErrorCode.DECODE_FAILED, detail)
    assert decode(encode(fault)) == fault
