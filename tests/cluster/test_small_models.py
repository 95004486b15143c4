"""Model files whose words are unusual, served by real processes: what they recommend, where prompts begin and end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.model_files import TOKENS, Value, write_model

from stagewire.client import Client, FinishReason, Result, SamplingParams
from stagewire.cluster.local import LocalCluster
from stagewire.wire.sampling import UNTOLD_SAMPLING

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
KEY = "tokenizer.ggml."
LLAMA3: dict[str, Value | None] = {
    f"{KEY}pre": "llama-bpe",
    f"{KEY}tokens": ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", *TOKENS[3:]],
    f"{KEY}bos_token_id": 0,
    f"{KEY}eos_token_id": 1,
    f"{KEY}add_bos_token": None,
    "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A Llama 3 of fourteen tokens, whose file recommends a temperature that is none, and a top-k."""
    folder = tmp_path_factory.mktemp("model")
    path = write_model(folder / "m.gguf", LLAMA3 | {"general.sampling.temp": -1.0, "general.sampling.top_k": 3})
    said: list[str] = []
    with LocalCluster(str(path), stages=1, log_dir=folder / "logs", progress=said.append) as running:
        assert said[0] == "note: m.gguf: ignored general.sampling.temp: temperature=-1.0 is not a number in [0, 100]"
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with cluster.client() as made:
        yield made


def forced(client: Client, token_id: int) -> Result:
    """An answer whose first token is this one."""
    sampling = SamplingParams(temperature=0, logit_bias=((token_id, 100.0),))
    return client.session().generate(prompt_token_ids=[3, 4], sampling=sampling, max_tokens=3).wait(30)


def drawn(client: Client, sampling: SamplingParams | None) -> Result:
    asked = client.session().generate(prompt_token_ids=[3, 4], sampling=sampling, max_tokens=20, ignore_eos=True)
    return asked.wait(30)


@pytest.mark.parametrize(("token_id", "ends"), [(1, True), (2, True), (0, False), (5, False)])
def test_a_turn_ends_at_the_tokens_that_end_it(client: Client, token_id: int, ends: bool) -> None:
    """The file names <|end_of_text|> alone."""
    result = forced(client, token_id)
    expected = (FinishReason.STOP, 1) if ends else (FinishReason.LENGTH, 3)
    assert (result.finish_reason, len(result.token_ids)) == expected


@pytest.mark.parametrize("text", ["ab", "a b", "hhh"])
def test_a_raw_prompt_begins_with_the_start_token_and_a_template_writes_its_own(client: Client, text: str) -> None:
    """Once in each: the file does not say whether, and its kind does."""
    num_tokens = len(client.tokenizer().encode(text))
    for raw in (True, False):
        answer = client.session().generate(text, raw=raw, max_tokens=1, sampling=SamplingParams(temperature=0))
        assert answer.wait(30).usage.prompt_tokens == 1 + num_tokens


def test_what_cannot_be_used_is_named_in_the_log_and_the_rest_counts(cluster: LocalCluster, client: Client) -> None:
    """The model is served all the same; the result says with what."""
    assert client.card().sampling == SamplingParams(top_k=3)
    for prompt in ({"text": "ab"}, {"prompt_token_ids": [3]}, {"messages": [{"role": "user", "content": "ab"}]}):
        told = client.session().generate(**prompt, max_tokens=2).wait(30).sampling
        assert replace(told, seed=None) == SamplingParams(top_k=3)
        assert told.seed is not None
    assert "ignored general.sampling.temp: temperature=-1.0 is not a number" in cluster.logs(0)


def test_an_answer_is_repeated_by_what_its_result_says(client: Client) -> None:
    """Whatever was asked for; without that it is another answer, sooner or later."""
    for sampling in (None, SamplingParams(), SamplingParams(temperature=3.0)):
        results = [
            client.session()
            .generate(prompt_token_ids=[3, 4], sampling=sampling, max_tokens=20, ignore_eos=True)
            .wait(30)
            for _ in range(4)
        ]
        assert len({one.token_ids for one in results}) > 1
        for one in results:
            again = client.session().generate(
                prompt_token_ids=[3, 4], sampling=one.sampling, max_tokens=20, ignore_eos=True
            )
            assert again.wait(30).token_ids == one.token_ids


@pytest.mark.parametrize("asked", [20, 14, 13, 1])
def test_there_are_as_many_log_probabilities_as_tokens(client: Client, asked: int) -> None:
    sampling = SamplingParams(temperature=0, logprobs=asked)
    events = list(client.session().generate(prompt_token_ids=[3], sampling=sampling, max_tokens=2, ignore_eos=True))
    assert [len(event.top_logprobs) for event in events] == [min(asked, len(TOKENS))] * 2


@pytest.mark.slow
def test_a_generation_config_beside_the_file_counts_too(tmp_path: Path) -> None:
    """Its end tokens, and its values; a damaged one costs nothing but a line in the log."""
    path = write_model(tmp_path / "m.gguf", LLAMA3)
    config = tmp_path / "generation_config.json"
    for text, sampling, ends in (
        (json.dumps({"eos_token_id": [1, 7], "temperature": 0.6, "top_p": 0.9}), SamplingParams(0.6, top_p=0.9), True),
        ("{damaged", UNTOLD_SAMPLING, False),
    ):
        config.write_text(text, encoding="utf-8")
        with LocalCluster(str(path), stages=1, log_dir=tmp_path / "logs") as running, running.client() as client:
            assert client.card().sampling == sampling
            assert (forced(client, 7).finish_reason is FinishReason.STOP) == ends
            assert ("ignored generation_config.json" in running.logs(0)) != ends
