"""The chat as a person has it: on a pseudo-terminal, with a real cluster behind it."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.terminal import CTRL_C, CTRL_D, ENTER, STAGEWIRE, Terminal, on_terminal

from stagewire.client.text.tokenizer import Tokenizer
from stagewire.cluster.local import LocalCluster
from stagewire.cluster.spec import StageLimits

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
GREEDY = ("--temperature", "0")
MORE = "/set max_tokens N allows more, /set max_tokens off as many as fit"
# The default model's end tokens, never taken: its answers go on until somebody ends them.
ENDLESS = (*GREEDY, "--logit-bias", "0=-100", "--logit-bias", "2=-100")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(stages=2) as made:
        yield made


def say(terminal: Terminal, text: str) -> list[str]:
    """Types a line; returns the lines that come, without what the line editor echoes."""
    terminal.type(text + ENTER)
    return answer(terminal)


def answer(terminal: Terminal) -> list[str]:
    shown = terminal.until_prompt().rpartition("\x1b[?2004l\r")[2].removesuffix("\x1b[?2004h> ")
    return shown.split("\r\n")[:-1]


def saved(terminal: Terminal, path: Path) -> list[dict[str, str]]:
    """What the chat has kept."""
    assert say(terminal, f"/save {path}") == [f"saved as {path}"]
    messages: list[dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    return messages


def test_answers_are_wrapped_at_the_terminals_width(cluster: LocalCluster, tmp_path: Path) -> None:
    """As it is when the answer comes: the window may have been made wider or narrower."""
    flags = ("--endpoint", cluster.endpoint, "--max-tokens", "80", *GREEDY)
    with on_terminal("chat", *flags, columns=40) as terminal:
        terminal.until_prompt()
        for columns in (40, 24, 100):
            terminal.resize(columns)
            say(terminal, "/reset")
            lines = say(terminal, "Tell me about the sea.")
            notice = lines.index(next(line for line in lines if line.startswith("(cut off")))
            lines, notices = lines[:notice], lines[notice:]
            assert " ".join(notices) == f"(cut off: after 80 tokens; {MORE})"
            terminal.resize(200)
            (_, kept) = saved(terminal, tmp_path / "x")
            assert len(lines) > 2 and max(map(len, [*lines, *notices])) <= columns
            assert " ".join(lines).split() == kept["content"].split()
            # No line is shorter than it must be: the next word would not have fitted.
            for line, following in pairwise(lines):
                assert not line or not following or len(line) + 1 + len(following.split(" ")[0]) > columns


def test_a_paste_of_several_lines_is_one_message(cluster: LocalCluster, tmp_path: Path) -> None:
    texts = ["one\ntwo\nthree", "def f():\n    return 'ü'", "first\n\n/quit"]
    with on_terminal("chat", "--endpoint", cluster.endpoint, "--max-tokens", "4") as terminal:
        terminal.until_prompt()
        for text in texts:
            terminal.paste(text)
            terminal.type(ENTER)
            answer(terminal)
        messages = saved(terminal, tmp_path / "x")
    assert [message["content"] for message in messages if message["role"] == "user"] == texts


NO_EDITOR = "import sys; sys.modules['readline'] = None; from stagewire.cli.main import main; sys.exit(main())"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "kind", "command"),
    [
        ("one\ntwo\nthree", "xterm", (sys.executable, "-c", NO_EDITOR)),
        ("ü\n\nlast", "xterm", (sys.executable, "-c", NO_EDITOR)),
        ("a\nb", "dumb", STAGEWIRE),
    ],
)
def test_a_paste_is_one_message_also_where_nobody_marks_it(
    cluster: LocalCluster, text: str, kind: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    """Python has no line editor, or the terminal cannot mark what is pasted."""
    flags = ("--endpoint", cluster.endpoint, "--max-tokens", "4")
    with on_terminal("chat", *flags, kind=kind, command=command) as terminal:
        terminal.until("\n> ")
        terminal.type(f"{text}\n")
        terminal.until(r"cut off: after 4 tokens[^\n]*\n> ")
        terminal.type(f"/save {tmp_path / 'x'}\n")
        terminal.until("saved as .*> ")
        terminal.type(CTRL_D)
        assert terminal.exit_code() == 0
    (asked, _) = json.loads((tmp_path / "x").read_text(encoding="utf-8"))
    assert asked["content"] == text


def test_ctrl_c_ends_an_answer_only_and_the_conversation_goes_on(cluster: LocalCluster, tmp_path: Path) -> None:
    with on_terminal("chat", "--endpoint", cluster.endpoint, *ENDLESS) as terminal:
        terminal.until_prompt()
        for question in ("Count from one to a thousand, in words.", "Tell me a very long story.", "List all cities."):
            terminal.type(question + ENTER)
            terminal.until(r"\x1b\[\?2004l\r\S+ ")
            terminal.type(CTRL_C)
            assert answer(terminal)[-1] == "[stopped]"
        deadline = time.monotonic() + 5
        while cluster.status().num_requests_running:
            assert time.monotonic() < deadline
        messages = saved(terminal, tmp_path / "x")
        assert [message["role"] for message in messages] == ["user", "assistant"] * 3
        say(terminal, "/set max_tokens 1")
        say(terminal, "/retry")
        again = saved(terminal, tmp_path / "x")
        assert again[:5] == messages[:5] and again[5] != messages[5]


def test_ctrl_c_at_the_prompt_asks_twice_and_ctrl_d_leaves(cluster: LocalCluster) -> None:
    with on_terminal("chat", "--endpoint", cluster.endpoint) as terminal:
        terminal.until_prompt()
        terminal.type("half a line" + CTRL_C)
        assert answer(terminal)[-1] == "Ctrl-C once more leaves, and so does Ctrl-D"
        assert say(terminal, "/reset") == ["forgotten"]
        terminal.type(CTRL_C)
        assert answer(terminal)[-1] == "Ctrl-C once more leaves, and so does Ctrl-D"
        terminal.type(CTRL_C)
        assert terminal.exit_code() == 130
    for end in (CTRL_D, "/quit" + ENTER, "/exit" + ENTER):
        with on_terminal("chat", "--endpoint", cluster.endpoint) as terminal:
            terminal.until_prompt()
            terminal.type(end)
            assert terminal.exit_code() == 0


def test_commands_are_obeyed_and_others_are_told(cluster: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "a chat.json"
    with on_terminal("chat", "--endpoint", cluster.endpoint, "--max-tokens", "5", *GREEDY) as terminal:
        assert "smollm2-135m: /help lists" in terminal.until_prompt()
        assert any(line.startswith("/retry") for line in say(terminal, "/help"))
        assert say(terminal, "/system You are a pirate.") == ["the system message counts from the next question on"]
        say(terminal, "//slash")
        assert say(terminal, "/set timings on") == ["timings on"]
        assert "tokens/s" in say(terminal, "hello")[-1]
        assert {"temperature 0.0", "top_k default", "max_tokens 5", "timings on"} <= set(say(terminal, "/set"))
        assert say(terminal, "/set temperature 900") == ["temperature=900.0 is not a number in [0, 100]"]
        assert "did you mean /save?" in say(terminal, "/sve x")[0]
        messages = saved(terminal, path)
        assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 2]
        assert messages[1]["content"] == "/slash"
        say(terminal, "/reset")
        assert len(saved(terminal, path)) == 1
        path.write_text(json.dumps(messages), encoding="utf-8")
        assert say(terminal, f"/load {path}") == ["loaded 2 turns and a system message"]
        assert say(terminal, "/load /no/such/file") == ["/no/such/file: No such file or directory"]
        assert saved(terminal, path) == messages


def byte_token(cluster: LocalCluster, byte: int) -> int:
    """The token of one byte, by what the model's tokenizer makes of it."""
    with cluster.client() as client:
        tokenizer: Tokenizer = client.tokenizer()
        return next(number for number in range(1000) if tokenizer.token_bytes(number) == bytes([byte]))


@pytest.mark.parametrize(("byte", "shown"), [(0x1B, r"\x1b"), (0x07, r"\x07"), (0x0D, r"\x0d"), (0x08, r"\x08")])
def test_what_a_terminal_would_obey_is_shown_by_chat_and_generate(cluster: LocalCluster, byte: int, shown: str) -> None:
    """The model is made to say it; a pipe gets it as it is."""
    forced = ("--logit-bias", f"{byte_token(cluster, byte)}=100", "--max-tokens", "3", *GREEDY)
    with on_terminal("generate", "hi", "--endpoint", cluster.endpoint, *forced) as terminal:
        assert terminal.exit_code() == 0
        assert terminal.shown.startswith(shown * 3 + "\r\ncut off: after 3 tokens")
    with on_terminal("chat", "--endpoint", cluster.endpoint, *forced) as terminal:
        terminal.until_prompt()
        assert say(terminal, "hi")[0] == shown * 3
    command = f"{sys.executable} -m stagewire generate hi --endpoint {cluster.endpoint} {' '.join(forced)} | od -c"
    with on_terminal("-c", command, command=("/bin/sh",)) as terminal:
        terminal.exit_code()
        assert len(re.findall({0x1B: " 033", 0x07: r" \\a", 0x0D: r" \\r", 0x08: r" \\b"}[byte], terminal.shown)) == 3


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_stage_that_dies_ends_the_turn_in_a_persons_words(tmp_path: Path) -> None:
    with LocalCluster(stages=2) as cluster, on_terminal("chat", "--endpoint", cluster.endpoint, *ENDLESS) as terminal:
        terminal.until_prompt()
        say(terminal, "/set max_tokens 3")
        say(terminal, "hello")
        say(terminal, "/set max_tokens off")
        terminal.type("Count from one to a thousand, in words." + ENTER)
        terminal.until(r"\x1b\[\?2004l\r\S+ ")
        cluster.pause(1)
        cluster.kill(1)
        *_, meaning, next_step, code = answer(terminal)
        assert meaning == "error: a part of the model went away while it answered"
        assert "/retry asks again" in next_step
        assert code.startswith("  (stage_lost: ")
        assert [message["content"] for message in saved(terminal, tmp_path / "x")][::2] == [
            "hello",
            "Count from one to a thousand, in words.",  # waits for /retry
        ]
        cluster.restart(1)
        cluster.wait_until_serving()
        say(terminal, "/set max_tokens 3")
        say(terminal, "/retry")
        assert len(saved(terminal, tmp_path / "x")) == 4


@pytest.mark.timeout(180)
def test_a_full_context_offers_to_drop_the_oldest_turns(tmp_path: Path) -> None:
    """How many is said before; the system message stays; without consent nothing changes."""
    flags = ("--system", "Be brief.", "--max-tokens", "16", *GREEDY)
    with (
        LocalCluster(stages=2, limits=StageLimits(kv_tokens=256)) as cluster,
        on_terminal("chat", "--endpoint", cluster.endpoint, *flags) as terminal,
    ):
        terminal.until_prompt()
        for number in range(4):
            say(terminal, f"{number}: " + "river " * 20)
        before = saved(terminal, tmp_path / "x")
        long = "Name a colour. " + "word " * 100
        for reply in ("n", "y"):
            terminal.type(long + ENTER)
            offer = terminal.until(r"\[Y/n\] ")
            found = re.search(r"too long .* drop the oldest (\d) of 4 turns and ask again", " ".join(offer.split()))
            assert found is not None
            dropped = int(found[1]) if reply == "y" else 0
            terminal.type(reply + ENTER)
            answer(terminal)
            after = saved(terminal, tmp_path / "x")
            assert after[0] == {"role": "system", "content": "Be brief."} == before[0]
            assert after[1 : len(before) - 2 * dropped] == before[1 + 2 * dropped :]
        assert 1 <= dropped < 4 and len(after) == len(before) - 2 * dropped + 2
        shown = say(terminal, "word " * 400)
        assert shown[0].startswith("error: the prompt and the answer that is wanted are longer")
        assert "(context_overflow:" in shown[-1] or "(context_overflow:" in shown[-2]


@pytest.mark.slow
def test_an_answer_that_fills_the_context_can_be_dropped_for_the_next_question(tmp_path: Path) -> None:
    """Which then finds room for an answer, though nobody said how long that may be."""
    with (
        LocalCluster(stages=1, limits=StageLimits(kv_tokens=160)) as cluster,
        on_terminal("chat", "--endpoint", cluster.endpoint, *ENDLESS) as terminal,
    ):
        terminal.until_prompt()
        assert "context" in say(terminal, "Tell me a story.")[-1]
        for reply in (CTRL_C, ENTER):
            terminal.type("Another one." + ENTER)
            assert "drop the only turn and ask again?" in terminal.until(r"\[Y/n\] ")
            terminal.idle()
            terminal.type(reply)
            shown = answer(terminal)
        assert "context" in shown[-1]
        (asked, told) = saved(terminal, tmp_path / "x")
        assert asked["content"] == "Another one." and len(told["content"].split()) > 20


def test_a_terminated_chat_leaves_the_terminal_as_it_was(cluster: LocalCluster) -> None:
    with on_terminal("chat", "--endpoint", cluster.endpoint) as terminal:
        terminal.until_prompt()
        assert not terminal.echoes()
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.exit_code() == 143
        assert terminal.echoes()
