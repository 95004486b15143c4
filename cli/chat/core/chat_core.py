"""The chat's decisions: what a person does, and what becomes of it, in; what is to be done, out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stagewire.cli.chat.core.choices import Choices, WrongChoice
from stagewire.cli.chat.core.commands import HELP, Command, Say, Unknown, parsed, unquoted
from stagewire.cli.chat.core.conversation import Conversation, Message
from stagewire.cli.chat.core.events import (
    Answered,
    EndOfInput,
    Event,
    Failed,
    FileRead,
    FileTrouble,
    Interrupt,
    Line,
    NotText,
    Overflowed,
)
from stagewire.cli.chat.core.instructions import Ask, Instruction, Leave, ReadFile, Tell, WriteFile
from stagewire.cli.chat.core.saved import NotAConversation, from_text, to_text
from stagewire.cli.error_words import ERROR_WORDS
from stagewire.wire.errors import RETRYABLE, ErrorCode

EXIT_FAILURE, EXIT_INTERRUPTED = 1, 130
_PROMPT, _OFFER = "> ", "[Y/n] "
_NOT_TEXT = "that line is not valid text (UTF-8?); nothing was sent"


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked, in place of the last turn if it `replaces` that, and without the oldest `num_dropped`."""

    text: str
    replaces: bool = False
    num_dropped: int = 0


class ChatCore:
    """One conversation. Give each event to `handle`, and do what it returns, in order.

    `is_interactive`: a person sits there, who can be asked; else it is a pipe, in which a failure is told by the exit
    code, too.
    """

    def __init__(self, system: str | None, choices: Choices, *, is_interactive: bool) -> None:
        self._conversation = Conversation(system)
        self._choices = self._start = choices
        self._is_interactive = is_interactive
        self._question: _Question | None = None  # being asked, or the last one that failed
        self._offered: int | None = None
        self._is_warned = False
        self._exit_code = 0

    @property
    def prompt(self) -> str:
        """What stands before the next line."""
        return _PROMPT if self._offered is None else _OFFER

    @property
    def conversation(self) -> Conversation:
        """What has been said so far."""
        return self._conversation

    def handle(self, event: Event) -> list[Instruction]:
        """What follows from an event."""
        match event:
            case Line(text):
                self._is_warned = False
                return self._line(text) if self._offered is None else self._reply(text)
            case NotText():
                return self._wrong(_NOT_TEXT)
            case Interrupt():
                return self._interrupt()
            case EndOfInput():
                return [Leave(self._exit_code)]
            case Answered(text):
                return self._answered(text)
            case Failed(code, detail):
                return self._failed(code, detail)
            case Overflowed(num_turns, detail):
                return self._overflowed(num_turns, detail)
            case FileRead(path, text):
                return self._loaded(path, text)
            case FileTrouble(detail):
                return self._wrong(detail)

    # --- lines ---

    def _line(self, line: str) -> list[Instruction]:
        if any("\ud800" <= character <= "\udfff" for character in line):
            return self._wrong(_NOT_TEXT)
        match parsed(line):
            case Say(text):
                return self._ask(_Question(text))
            case Command(name, argument):
                return self._commands()[name](argument)
            case Unknown(word, meant):
                guess = f"did you mean /{meant}? " if meant else ""
                return self._wrong(f"there is no command {word[:40]}; {guess}/help lists them, //... sends such a text")
        return []

    def _commands(self) -> dict[str, Callable[[str], list[Instruction]]]:
        return {
            "help": lambda _ignored: [Tell(HELP)],
            "retry": lambda _ignored: self._retry(),
            "reset": lambda _ignored: self._reset(),
            "system": self._system,
            "set": self._set,
            "save": self._save,
            "load": lambda path: [ReadFile(unquoted(path))] if path else self._wrong("expected /load FILE"),
            "quit": lambda _ignored: [Leave(self._exit_code)],
        }

    def _retry(self) -> list[Instruction]:
        if self._question is not None:
            return self._ask(self._question)
        if self._conversation.turns:
            return self._ask(_Question(self._conversation.turns[-1].question, replaces=True))
        return self._wrong("nothing has been asked yet")

    def _reset(self) -> list[Instruction]:
        self._conversation, self._question = Conversation(self._conversation.system), None
        return [Tell(("forgotten",))]

    def _system(self, text: str) -> list[Instruction]:
        if not text:
            return [Tell((f"system message: {self._conversation.system or 'none'}",))]
        self._conversation = replace(self._conversation, system=None if text == "-" else text)
        return [Tell(("the system message counts from the next question on",))]

    def _set(self, text: str) -> list[Instruction]:
        if not text:
            return [Tell(tuple(self._choices.lines()))]
        try:
            self._choices, told = self._choices.changed(text, self._start)
        except WrongChoice as error:
            return self._wrong(str(error))
        return [Tell((told,))]

    def _save(self, path: str) -> list[Instruction]:
        if not path:
            return self._wrong("expected /save FILE")
        # A question that failed goes along, so that it can be asked when the conversation is loaded.
        waiting = self._question.text if self._question and not self._question.replaces else None
        return [WriteFile(unquoted(path), to_text(self._conversation, waiting))]

    def _loaded(self, path: str, text: str) -> list[Instruction]:
        try:
            self._conversation, question = from_text(text)
        except NotAConversation as error:
            return self._wrong(f"{path}: {error}")
        self._question = None if question is None else _Question(question)
        system = "a" if self._conversation.system is not None else "no"
        waiting = "" if question is None else ", and a question without an answer: /retry asks it"
        return [Tell((f"loaded {_turns(len(self._conversation.turns))} and {system} system message{waiting}",))]

    # --- asking ---

    def _ask(self, question: _Question) -> list[Instruction]:
        self._question = question
        return [Ask(self._before(question).messages(question.text), self._choices)]

    def _before(self, question: _Question) -> Conversation:
        """What the question follows."""
        conversation = self._conversation.without_last() if question.replaces else self._conversation
        return conversation.without_oldest(question.num_dropped)

    def _answered(self, text: str) -> list[Instruction]:
        """An answer without any text is none: the question waits for `/retry`."""
        if not text:
            return [Tell(("(no text; not kept: /retry asks again)",))]
        assert self._question is not None
        question, self._question = self._question, None
        self._conversation = self._before(question).with_turn(question.text, text)
        return []

    def _failed(self, code: ErrorCode, detail: str) -> list[Instruction]:
        self._exit_code = 0 if self._is_interactive else EXIT_FAILURE
        words = ERROR_WORDS[code]
        again = "; /retry asks again" if code in RETRYABLE else ""
        told = (f"error: {words.meaning}", f"  {words.next_step}{again}", f"  ({code.value}: {detail})")
        return [Tell(told)]

    # --- a conversation that is too long ---

    def fewest_dropped(self, fits: Callable[[tuple[Message, ...]], bool]) -> int | None:
        """How many of the oldest turns must go, beyond those that are gone, until the question that is asked `fits`."""
        assert self._question is not None
        before = replace(self._question, num_dropped=0)
        return self._before(before).fewest_dropped(before.text, self._question.num_dropped + 1, fits)

    def _overflowed(self, num_turns: int | None, detail: str) -> list[Instruction]:
        failed = self._failed(ErrorCode.CONTEXT_OVERFLOW, detail)
        if num_turns is None or not self._is_interactive:
            return failed
        assert self._question is not None
        self._offered = num_turns
        num_all = len(self._before(replace(self._question, num_dropped=0)).turns)
        which = "the only turn" if num_all == 1 else f"the oldest {num_turns} of {_turns(num_all)}"
        return [Tell((f"the conversation has become too long ({detail})", f"drop {which} and ask again?"))]

    def _reply(self, text: str) -> list[Instruction]:
        """To the offer."""
        word, num_turns = text.strip().lower(), self._offered
        if word not in ("", "y", "yes", "n", "no"):
            return [Tell(("answer y or n",))]
        self._offered = None
        assert self._question is not None
        if word.startswith("n") or num_turns is None:
            return [Tell(("nothing is dropped, and the question is not kept; /reset forgets all",))]
        return [Tell((f"dropped {_turns(num_turns)}",)), *self._ask(replace(self._question, num_dropped=num_turns))]

    # --- the end ---

    def _interrupt(self) -> list[Instruction]:
        if not self._is_interactive or self._is_warned:
            return [Leave(EXIT_INTERRUPTED)]
        self._offered, self._is_warned = None, True
        return [Tell(("Ctrl-C once more leaves, and so does Ctrl-D",))]

    def _wrong(self, told: str) -> list[Instruction]:
        self._exit_code = 0 if self._is_interactive else EXIT_FAILURE
        return [Tell((told,))]


def _turns(number: int) -> str:
    return "1 turn" if number == 1 else f"{number} turns"
