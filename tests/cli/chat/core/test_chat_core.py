"""What a chat does: whole instruction lists, for a person and for a pipe."""

from __future__ import annotations

import json

import pytest

from stagewire.cli.chat.core.chat_core import ChatCore
from stagewire.cli.chat.core.choices import Choices, Sampling
from stagewire.cli.chat.core.conversation import Conversation, Message, Turn
from stagewire.cli.chat.core.events import (
    Answered,
    EndOfInput,
    Failed,
    FileRead,
    FileTrouble,
    Interrupt,
    Line,
    NotText,
    Overflowed,
)
from stagewire.cli.chat.core.instructions import Ask, Leave, ReadFile, Tell, WriteFile
from stagewire.wire.errors import ErrorCode

CHOICES = Choices(1024, timings=False)
SYSTEM, Q1, A1, Q2 = (
    Message("system", "s"), Message("user", "q1"), Message("assistant", "a1"), Message("user", "q2"),
)  # fmt: skip
LOST = Failed(ErrorCode.STAGE_LOST, "stage s0 is lost")


def chat(*, is_interactive: bool = True, turns: int = 0, system: str | None = "s") -> ChatCore:
    core = ChatCore(system, CHOICES, is_interactive=is_interactive)
    for number in range(1, turns + 1):
        core.handle(Line(f"q{number}"))
        core.handle(Answered(f"a{number}"))
    return core


def told(core: ChatCore, event: object) -> str:
    (instruction,) = core.handle(event)  # type: ignore[arg-type]
    assert isinstance(instruction, Tell)
    return "\n".join(instruction.lines)


def test_each_question_is_asked_behind_what_was_said() -> None:
    core = chat()
    assert core.handle(Line("q1")) == [Ask((SYSTEM, Q1), CHOICES)]
    assert core.handle(Answered("a1")) == []
    assert core.handle(Line("q2")) == [Ask((SYSTEM, Q1, A1, Q2), CHOICES)]


@pytest.mark.parametrize("line", ["", "   ", "\n\n"])
def test_an_empty_line_asks_nothing(line: str) -> None:
    assert chat().handle(Line(line)) == []


@pytest.mark.parametrize("ended", [LOST, Failed(ErrorCode.UNREACHABLE, "nobody"), Answered("")])
def test_a_turn_that_failed_does_not_stay_and_can_be_asked_again(ended: Failed | Answered) -> None:
    core = chat(turns=1)
    core.handle(Line("q2"))
    core.handle(ended)
    assert core.conversation == Conversation("s", (Turn("q1", "a1"),))
    assert core.handle(Line("q3")) == [Ask((SYSTEM, Q1, A1, Message("user", "q3")), CHOICES)]
    core.handle(LOST)
    assert core.handle(Line("/retry")) == [Ask((SYSTEM, Q1, A1, Message("user", "q3")), CHOICES)]
    core.handle(Answered("a3"))
    assert core.conversation.turns == (Turn("q1", "a1"), Turn("q3", "a3"))


def test_retry_replaces_the_last_answer_once_there_is_another() -> None:
    core = chat(turns=1)
    assert core.handle(Line("/retry")) == [Ask((SYSTEM, Q1), CHOICES)]
    core.handle(LOST)
    assert core.conversation.turns == (Turn("q1", "a1"),)
    assert core.handle(Line("/retry")) == [Ask((SYSTEM, Q1), CHOICES)]
    core.handle(Answered("better"))
    assert core.conversation.turns == (Turn("q1", "better"),)


def test_retry_without_a_question_says_so() -> None:
    assert told(chat(), Line("/retry")) == "nothing has been asked yet"
    core = chat(turns=1)
    core.handle(Line("/reset"))
    assert told(core, Line("/retry")) == "nothing has been asked yet"


def test_reset_forgets_all_but_the_system_message() -> None:
    core = chat(turns=2)
    assert told(core, Line("/reset")) == "forgotten"
    assert core.handle(Line("q1")) == [Ask((SYSTEM, Q1), CHOICES)]


def test_the_system_message_is_set_shown_and_taken_away() -> None:
    core = chat(turns=1, system=None)
    assert told(core, Line("/system")) == "system message: none"
    core.handle(Line("/system s"))
    assert told(core, Line("/system")) == "system message: s"
    assert core.handle(Line("q2")) == [Ask((SYSTEM, Q1, A1, Q2), CHOICES)]
    core.handle(LOST)
    core.handle(Line("/system -"))
    assert core.handle(Line("/retry")) == [Ask((Q1, A1, Q2), CHOICES)]


def test_what_is_set_counts_from_the_next_question_on() -> None:
    core = chat()
    assert told(core, Line("/set temperature 0.25")) == "temperature 0.25"
    assert told(core, Line("/set timings on")) == "timings on"
    changed = Choices(1024, timings=True, sampling=(Sampling("temperature", 0.25),))
    assert core.handle(Line("q1")) == [Ask((SYSTEM, Q1), changed)]
    assert "temperature 0.25" in told(core, Line("/set"))
    assert "timings=loud" in told(core, Line("/set timings loud"))


@pytest.mark.parametrize(
    ("line", "words"),
    [("/hlep", "did you mean /help?"), ("/xyzzy", "no command /xyzzy"), ("/usr/bin", "//..."), ("/", "no command /;"),
     ("/save", "expected /save FILE"), ("/load", "expected /load FILE")],
)  # fmt: skip
def test_a_command_that_is_none_is_told_and_nothing_is_sent(line: str, words: str) -> None:
    core = chat(turns=1)
    assert words in told(core, Line(line))
    assert core.conversation.turns == (Turn("q1", "a1"),)


def test_a_text_that_begins_with_a_slash_can_be_sent() -> None:
    assert chat(system=None).handle(Line("//help me")) == [Ask((Message("user", "/help me"),), CHOICES)]


@pytest.mark.parametrize("event", [NotText(), Line("caf\udce9"), Line("/save \udcff")])
def test_what_is_no_text_is_not_sent(event: NotText | Line) -> None:
    assert "not valid text" in told(chat(), event)


# --- files ---


def test_a_conversation_is_written_and_read_again() -> None:
    core = chat(turns=2)
    (written,) = core.handle(Line("/save my chat.json"))
    assert isinstance(written, WriteFile) and written.path == "my chat.json"
    assert [item["content"] for item in json.loads(written.text)] == ["s", "q1", "a1", "q2", "a2"]
    other = chat(turns=1, system=None)
    assert other.handle(Line('/load "my chat.json"')) == [ReadFile("my chat.json")]
    assert told(other, FileRead("my chat.json", written.text)) == "loaded 2 turns and a system message"
    assert other.conversation == core.conversation


def test_a_question_without_an_answer_goes_into_the_file_and_can_be_asked_there() -> None:
    core = chat(turns=1)
    core.handle(Line("q2"))
    core.handle(LOST)
    (written,) = core.handle(Line("/save x"))
    assert isinstance(written, WriteFile)
    other = chat(system=None)
    assert told(other, FileRead("x", written.text)).endswith("a question without an answer: /retry asks it")
    assert other.handle(Line("/retry")) == [Ask((SYSTEM, Q1, A1, Q2), CHOICES)]


@pytest.mark.parametrize("text", ["", "{}", '[{"role": "user"}]', "[1]"])
def test_a_file_that_is_no_conversation_changes_nothing(text: str) -> None:
    core = chat(turns=1)
    assert told(core, FileRead("x.json", text)).startswith("x.json: ")
    assert told(core, FileTrouble("x.json: Permission denied")) == "x.json: Permission denied"
    assert core.conversation == Conversation("s", (Turn("q1", "a1"),))


# --- a conversation that is too long ---


@pytest.mark.parametrize(("reply", "kept"), [("", True), ("y", True), ("YES ", True), ("n", False), ("No", False)])
def test_the_oldest_turns_are_dropped_if_the_person_wants_it(reply: str, kept: bool) -> None:
    core = chat(turns=3)
    core.handle(Line("q4"))
    offer = told(core, Overflowed(2, "prompt of 99 tokens"))
    assert "drop the oldest 2 of 3 turns and ask again?" in offer and "prompt of 99 tokens" in offer
    assert core.prompt == "[Y/n] "
    assert told(core, Line("perhaps")) == "answer y or n"
    instructions = core.handle(Line(reply))
    assert core.prompt == "> "
    q3, a3, q4 = Message("user", "q3"), Message("assistant", "a3"), Message("user", "q4")
    if kept:
        assert instructions == [Tell(("dropped 2 turns",)), Ask((SYSTEM, q3, a3, q4), CHOICES)]
        core.handle(Answered("a4"))
        assert core.conversation == Conversation("s", (Turn("q3", "a3"), Turn("q4", "a4")))
    else:
        assert len(instructions) == 1 and core.conversation.turns == chat(turns=3).conversation.turns


def test_it_can_turn_out_that_more_turns_must_go() -> None:
    core = chat(turns=3)
    core.handle(Line("q4"))
    assert core.fewest_dropped(lambda messages: len(messages) < 100) == 1
    core.handle(Overflowed(1, "too long"))
    core.handle(Line("y"))
    assert core.fewest_dropped(lambda messages: len(messages) < 100) == 2
    assert "drop the oldest 2 of 3 turns" in told(core, Overflowed(2, "too long"))


def test_dropping_does_not_stay_if_the_answer_fails() -> None:
    core = chat(turns=2)
    core.handle(Line("q3"))
    core.handle(Overflowed(1, "too long"))
    core.handle(Line("y"))
    core.handle(LOST)
    assert core.conversation.turns == chat(turns=2).conversation.turns


def test_the_only_turn_is_called_so() -> None:
    core = chat(turns=1)
    core.handle(Line("q2"))
    assert "drop the only turn" in told(core, Overflowed(1, "too long"))


def test_where_dropping_does_not_help_or_nobody_can_be_asked_it_is_an_error() -> None:
    core = chat(turns=2)
    core.handle(Line("q3"))
    assert "context_overflow: too long" in told(core, Overflowed(None, "too long"))
    assert core.prompt == "> "
    piped = chat(turns=2, is_interactive=False)
    piped.handle(Line("q3"))
    assert "context_overflow: too long" in told(piped, Overflowed(1, "too long"))
    assert piped.handle(EndOfInput()) == [Leave(1)]


# --- the end ---


def test_ctrl_c_at_the_prompt_asks_and_the_second_leaves() -> None:
    core = chat()
    assert "Ctrl-C once more leaves" in told(core, Interrupt())
    assert core.handle(Interrupt()) == [Leave(130)]


def test_a_line_in_between_takes_the_first_ctrl_c_back() -> None:
    core = chat()
    for line in ("", "/help", "q1"):
        core.handle(Interrupt())
        core.handle(Line(line))
    assert "Ctrl-C once more leaves" in told(core, Interrupt())


def test_ctrl_c_at_an_offer_declines_it() -> None:
    core = chat(turns=1)
    core.handle(Line("q2"))
    core.handle(Overflowed(1, "too long"))
    core.handle(Interrupt())
    assert core.prompt == "> "
    assert core.conversation.turns == (Turn("q1", "a1"),)


@pytest.mark.parametrize("event", [EndOfInput(), Line("/quit"), Line("/exit")])
def test_leaving_is_no_failure_for_a_person(event: EndOfInput | Line) -> None:
    core = chat()
    core.handle(Line("q1"))
    core.handle(LOST)
    assert core.handle(event) == [Leave(0)]


@pytest.mark.parametrize("failed", [LOST, NotText(), Line("/nope"), FileTrouble("x: no such file")])
def test_a_pipe_learns_of_a_failure_by_the_exit_code(failed: Failed | NotText | Line | FileTrouble) -> None:
    core = chat(is_interactive=False)
    core.handle(Line("q1"))
    core.handle(Answered("a1"))
    core.handle(failed)
    core.handle(Line("q2"))
    core.handle(Answered("a2"))
    assert core.handle(EndOfInput()) == [Leave(1)]
    assert chat(is_interactive=False, turns=1).handle(EndOfInput()) == [Leave(0)]


def test_ctrl_c_ends_a_pipes_chat_at_once() -> None:
    assert chat(is_interactive=False).handle(Interrupt()) == [Leave(130)]
