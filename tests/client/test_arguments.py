"""A bad argument harms the call that brought it, and nobody else: not the socket thread, not the other requests."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from stagewire.client import ChatMessage, Client, ClientSettings, ErrorCode, RequestRefused, SamplingParams
from stagewire.client.prompt import Prompt, asked
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


ONE_TEXT = "text must be a str"
IDS = "prompt_token_ids"


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ({"text": ["a", "b"]}, f"{ONE_TEXT}, not list: one call takes one text; call generate once for each"),
        ({"text": ("a",)}, f"{ONE_TEXT}, not tuple: one call takes one text; call generate once for each"),
        ({"text": [1, 2]}, f"{ONE_TEXT}, not list: token ids are given as prompt_token_ids=[...]"),
        ({"text": np.array([1, 2])}, f"{ONE_TEXT}, not ndarray: token ids are given as prompt_token_ids=[...]"),
        ({"text": [{"role": "user", "content": "a"}]}, f"{ONE_TEXT}, not list: messages are given as messages=[...]"),
        ({"text": [ChatMessage("user", "a")]}, f"{ONE_TEXT}, not list: messages are given as messages=[...]"),
        ({"text": {"role": "user", "content": "a"}}, f"{ONE_TEXT}, not dict: messages are given as messages=[...]"),
        ({"text": b"a"}, f"{ONE_TEXT}, not bytes: decode it: text.decode()"),
        ({"text": []}, f"{ONE_TEXT}, not list: give a text, messages=[...] or prompt_token_ids=[...]"),
        ({"text": 5}, f"{ONE_TEXT}, not int: give a text, messages=[...] or prompt_token_ids=[...]"),
        ({"messages": "a"}, "messages must be a list, not str: a text is given as the first argument"),
        ({"messages": {"role": "user"}}, "messages must be a list, also of one message: messages=[...]"),
        ({"messages": ChatMessage("user", "a")}, "messages must be a list, also of one message: messages=[...]"),
        ({"messages": ["a"]}, 'messages holds a str, \'a\': write {"role": "user", "content": ...}'),
        ({IDS: "a"}, f"{IDS} must be a list of integers, not str: a text is given as the first argument"),
        ({IDS: 5}, f"{IDS} must be a list of integers, not int"),
        ({IDS: ["1", "2"]}, f"{IDS} holds '1', a str: token ids are integers, a text is given alone"),
        ({IDS: [[1], [2]]}, f"{IDS} holds [1], a list: one call takes one prompt; call generate once for each"),
        ({IDS: [1, True]}, f"{IDS} holds True, which is no token id"),
        ({IDS: [1, None]}, f"{IDS} holds None, which is no token id"),
        ({IDS: np.array([0.5])}, f"{IDS} holds 0.5, which is no token id"),
        ({"text": "a", "stop": 5}, "stop must be a str or a list of str, not int"),
        ({"text": "a", "stop": b"a"}, "stop must be a str or a list of str, not bytes"),
        ({"text": "a", "stop": [5]}, "stop holds 5, which is no str: a token is given in stop_token_ids"),
        ({"text": "a", "stop_token_ids": 5}, "stop_token_ids must be a list of integers, not int"),
        ({"text": "a", "stop_token_ids": ["x"]}, "stop_token_ids holds 'x', a str: token ids are integers"),
        (
            {"text": "a", "sampling": {"temperature": 0}},
            "sampling={'temperature': 0} must be SamplingParams, such as sampling=SamplingParams(temperature=0)",
        ),
        (
            {"text": "a", "snapshot": "rules"},
            "snapshot='rules' must be SnapshotRequest, such as snapshot=SnapshotRequest('rules')",
        ),
        ({"text": "a", "restore": 5}, "restore=5 must be str, such as restore='rules'"),
        ({"text": "a", "ignore_eos": 1}, "ignore_eos=1 must be bool, such as ignore_eos=True"),
    ],
)
def test_an_argument_of_a_wrong_kind_says_which_one_is_meant(arguments: dict[str, Any], meant: str) -> None:
    """Before a broker is asked for anything."""
    text = arguments.pop("text", None)
    with pytest.raises(RequestRefused) as refused:
        asked(text, arguments)  # type: ignore[arg-type]
    assert refused.value.detail.replace("np.float64(0.5)", "0.5") == meant


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("temperature", "generate() has no 'temperature': give it as sampling=SamplingParams(temperature=...)"),
        ("logprobs", "generate() has no 'logprobs': give it as sampling=SamplingParams(logprobs=...)"),
        ("max_new_tokens", "generate() has no 'max_new_tokens': 'max_tokens' is meant, maybe"),
        ("stops", "generate() has no 'stops': 'stop' is meant, maybe"),
        ("xyzzy", "generate() has no 'xyzzy'"),
    ],
)
def test_an_option_that_there_is_not_says_where_it_belongs(name: str, meant: str) -> None:
    """As Python does for its own calls, with a `TypeError`."""
    with Client(settings=ClientSettings(endpoint="tcp://127.0.0.1:9")) as client, pytest.raises(TypeError) as error:
        client.generate("a", **{name: 1})  # type: ignore[arg-type]
    assert str(error.value) == meant


def test_a_session_has_a_model_already() -> None:
    with pytest.raises(TypeError, match=r"client\.session\(model=\.\.\.\)"):
        asked("a", {"model": "toy"})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize("ids", [[5, 6], (5, 6), np.array([5, 6]), range(5, 7), iter([5, 6]), [np.int32(5), 6]])
def test_token_ids_may_come_as_any_integers(ids: Any) -> None:
    """They become plain ones, once, also those that can be read only once."""
    prompt = Prompt(prompt_token_ids=ids, stop_token_ids=np.array([7]))  # type: ignore[arg-type]
    sent = prompt.request("s", None, prompt.token_ids(None, None), None)
    assert (sent.prompt_token_ids.to_list(), sent.stop_token_ids) == ([5, 6], (7,))
    assert decode([bytes(frame) for frame in encode(sent)]) == sent


@pytest.mark.parametrize("bias", [{5: -1.5, 7: 3}, ((5, -1.5), (7, 3)), [[5, -1.5], [7, 3]]])
def test_a_logit_bias_may_come_as_a_dict(bias: Any) -> None:
    """It is kept, and sent, as pairs; the empty one is none."""
    assert SamplingParams(logit_bias=bias).logit_bias == ((5, -1.5), (7, 3.0))
    assert SamplingParams(logit_bias={}) == SamplingParams()


@pytest.mark.parametrize(
    ("bias", "why"),
    [
        ({"5": 1}, "logit_bias token id='5' is not an integer"),
        ({5: 1000}, r"logit_bias\[5\]=1000 is not a number in \[-100, 100\]"),
        ({5: "1"}, r"logit_bias\[5\]='1' is not a number"),
        (dict.fromkeys(range(1025), 0), "logit_bias has 1025 pairs; at most 1024"),
        (5, "is neither {token id: value} nor a tuple of such pairs"),
    ],
)
def test_a_wrong_logit_bias_says_what_is_wrong(bias: Any, why: str) -> None:
    with pytest.raises(RequestRefused, match=why):
        SamplingParams(logit_bias=bias)
