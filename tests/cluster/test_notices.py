"""What a model that can be served will not do is said in the command's own words, before it serves."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.model_files import METADATA, Value, write_model
from support.native_files import write_native_model

from stagewire.cluster.notices import text_notices
from stagewire.model.check import check_model

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
WHOLE: dict[str, Value | None] = {"tokenizer.chat_template": TEMPLATE}
NO_TEXT: dict[str, Value | None] = {key: None for key in METADATA if key.startswith("tokenizer.")}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (WHOLE, []),
        ({}, ["no chat template: `chat` will not work, `generate` only with --raw"]),
        ({"tokenizer.chat_template": ""}, ["no chat template"]),
        ({"tokenizer.chat_template": "{% if %}"}, ["cannot chat, .* the chat template of 'm' is damaged"]),
        ({"tokenizer.chat_template": "{{ raise_exception('no users') }}"}, ["cannot chat, .*no users"]),
        (NO_TEXT, ["has no vocabulary: only requests by token ids"]),
        (WHOLE | {"tokenizer.ggml.model": "llama"}, ["understands no text here: the tokenizer model 'llama'"]),
        (WHOLE | {"tokenizer.ggml.model": "t5"}, ["understands no text here: the tokenizer model 't5'"]),
        (WHOLE | {"tokenizer.ggml.pre": "deepseek-v3"}, ["understands no text here: .*'deepseek-v3'"]),
        (
            WHOLE
            | {"tokenizer.ggml.eos_token_id": None, "tokenizer.ggml.token_type": [1] * 14}
            | {"tokenizer.ggml.tokens": [*"abcdefghijklmn"], "tokenizer.ggml.merges": []},
            ["names no token that ends an answer"],
        ),
    ],
)
def test_each_defect_of_text_has_its_line(changes: dict[str, Value | None], words: list[str], tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", changes)
    notices = text_notices(check_model(str(path), path).card)
    assert len(notices) == len(words)
    for notice, pattern in zip(notices, words, strict=True):
        assert re.search(pattern, notice), notice
        assert "\n" not in notice


@pytest.mark.processes
@pytest.mark.parametrize(
    ("changes", "words"),
    [({}, "note: m has no chat template"), ({"tokenizer.ggml.pre": "odd"}, "note: m understands no text here")],
)
def test_up_says_it_before_it_serves(changes: dict[str, Value], words: str, tmp_path: Path) -> None:
    path = write_native_model(tmp_path / "m.gguf", changes=changes)
    command = [sys.executable, "-m", "stagewire", "up", f"--model={path}", "--frontend-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not (lines[-1:] and lines[-1].startswith("serving")):
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(20) == 130
    assert lines[0].startswith(words)
    assert lines[-1].startswith("serving m at tcp://")
