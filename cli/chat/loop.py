"""The chat's loop: it reads lines, has them answered, and does what the core says."""

from __future__ import annotations

import argparse
from collections import deque
from typing import TYPE_CHECKING

from stagewire.cli.answer_limit import AnswerLimit, LimitedAnswer
from stagewire.cli.chat import files
from stagewire.cli.chat.context import Context
from stagewire.cli.chat.core.chat_core import ChatCore
from stagewire.cli.chat.core.choices import SAMPLING_NAMES, Choices, Sampling
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
from stagewire.cli.chat.keyboard import Keyboard
from stagewire.cli.chat.screen import Screen
from stagewire.cli.notices import cut_notice, speed
from stagewire.cli.sampling import sampling_of
from stagewire.cli.visible import visible_line
from stagewire.wire.errors import ErrorCode, StagewireError
from stagewire.wire.sampling import SamplingParams

if TYPE_CHECKING:
    from stagewire.client import Client, Generation, Result


class ChatLoop:
    """One conversation over one client."""

    def __init__(self, client: Client, options: argparse.Namespace) -> None:
        self._client, self._session, self._options = client, client.session(), options
        self._keyboard, self._screen = Keyboard(), Screen()
        choices = Choices(options.limit.max_tokens, options.timings, _given(options))
        self.core = ChatCore(options.system or None, choices, is_interactive=self._keyboard.is_terminal)

    def greet(self, model_name: str) -> None:
        """A person learns whom they talk with, and how."""
        if self._keyboard.is_terminal:
            name = visible_line(model_name)
            self._screen.tell([f"{name}: /help lists the commands; Ctrl-C ends an answer, Ctrl-D leaves"])

    def run(self) -> int:
        """Until somebody leaves; returns the exit code."""
        while True:
            try:
                exit_code = self._follow(self._read())
            except KeyboardInterrupt:
                exit_code = self._follow(Interrupt())
            if exit_code is not None:
                return exit_code

    def _read(self) -> Event:
        try:
            return Line(self._keyboard.read(self.core.prompt))
        except UnicodeDecodeError:
            return NotText()
        except EOFError:
            if self._keyboard.is_terminal:
                self._screen.tell([""])  # behind the prompt
            return EndOfInput()
        except KeyboardInterrupt:
            self._screen.tell([""])
            return Interrupt()

    def _follow(self, event: Event) -> int | None:
        """An event and all that comes of it; an exit code if that is the end."""
        instructions = deque(self.core.handle(event))
        while instructions:
            instruction = instructions.popleft()
            if isinstance(instruction, Leave):
                return instruction.exit_code
            if (next_event := self._perform(instruction)) is not None:
                instructions.extend(self.core.handle(next_event))
        return None

    def _perform(self, instruction: Instruction) -> Event | None:
        match instruction:
            case Tell(lines):
                self._screen.tell(lines)
            case Ask():
                return self._ask(instruction)
            case ReadFile(path):
                return self._read_file(path)
            case WriteFile(path, text):
                return self._write_file(path, text)
        return None

    @staticmethod
    def _read_file(path: str) -> Event:
        try:
            return FileRead(path, files.read(path))
        except files.FileError as error:
            return FileTrouble(str(error))

    def _write_file(self, path: str, text: str) -> Event | None:
        try:
            self._screen.tell([f"saved as {files.write(path, text)}"])
        except files.FileError as error:
            return FileTrouble(str(error))
        return None

    # --- an answer ---

    def _ask(self, asked: Ask) -> Event:
        """Stream an answer; Ctrl-C ends that alone."""
        said: list[str] = []
        result = None
        try:
            try:
                result = self._stream(asked, said)
            finally:
                if said:
                    self._screen.end_answer()
        except KeyboardInterrupt:
            self._screen.tell(["[stopped]"])
        except StagewireError as error:
            return self._failure(asked, error)
        if result is not None:
            self._remark(result, asked.choices)
        return Answered("".join(said))

    def _stream(self, asked: Ask, said: list[str]) -> Result:
        sampling = self._sampling(asked.choices)
        messages = [{"role": message.role, "content": message.content} for message in asked.messages]

        def start(max_tokens: int | None) -> Generation:
            return self._session.generate(
                messages=messages, sampling=sampling, max_tokens=max_tokens, stop=self._options.stop
            )

        with LimitedAnswer(start, self._limit(asked.choices)) as answer:
            for token in answer:
                if token.text:
                    said.append(token.text)
                    self._screen.show(token.text)
            return answer.result

    def _sampling(self, choices: Choices) -> SamplingParams | None:
        """What was chosen, and of the flags what cannot be set here."""
        chosen = {one.name: one.value for one in choices.sampling}
        options = {name: value for name, value in vars(self._options).items() if name not in SAMPLING_NAMES}
        return sampling_of(argparse.Namespace(**(options | chosen | {"greedy": False})), self._of_model)

    def _of_model(self) -> SamplingParams:
        return self._client.card().sampling

    def _limit(self, choices: Choices) -> AnswerLimit:
        """What nobody has asked for gives way, where less fits."""
        started = self._options.limit
        return AnswerLimit(choices.max_tokens, started.is_default and choices.max_tokens == started.max_tokens)

    def _failure(self, asked: Ask, error: StagewireError) -> Event:
        if error.code is not ErrorCode.CONTEXT_OVERFLOW:
            return Failed(error.code, error.detail)
        try:
            limit = self._limit(asked.choices)
            is_open = limit.max_tokens is None or limit.is_default
            context = Context.of(self._client, None if is_open else limit.max_tokens)
            num_turns = self.core.fewest_dropped(context.fits)
            if num_turns is None and is_open:
                num_turns = self.core.fewest_dropped(context.at_its_end().fits)
        except StagewireError:  # gone meanwhile
            num_turns = None
        return Overflowed(num_turns, error.detail)

    def _remark(self, result: Result, choices: Choices) -> None:
        notices = [cut_notice(result, choices.max_tokens, "/set max_tokens")]
        notices += [speed(result)] if choices.timings else []
        self._screen.tell([f"({notice})" for notice in notices if notice])


def _given(options: argparse.Namespace) -> tuple[Sampling, ...]:
    """What the flags say, of what can be set; --greedy is temperature 0."""
    given = {name: getattr(options, name) for name in SAMPLING_NAMES if hasattr(options, name)}
    given |= {"temperature": 0.0} if options.greedy else {}
    return tuple(Sampling(name, value) for name, value in given.items())
