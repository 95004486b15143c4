"""A process that is asked in JSON: a request a line on its input, an answer a line on its output; waits are bounded."""

from __future__ import annotations

import contextlib
import json
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

_ROOT = Path(__file__).resolve().parent.parent
_KILLED_S = 5.0


class WorkerProcess:
    """Starts `python -m module` at the first question, and anew after its end.

    `failure` is the exception that says what went wrong; `timeout_s` is how long an answer may take, `end_s` how
    long the process may take to end when its input is closed, before it is killed.
    """

    def __init__(
        self,
        who: str,
        module: str,
        failure: Callable[[str], Exception],
        *,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 300.0,
        end_s: float = 0.0,
    ) -> None:
        self._who, self._failure = who, failure
        self._timeout_s, self._end_s = timeout_s, end_s
        self._command: Sequence[str] = (python, "-m", module)
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    def ask(self, method: str, **arguments: object) -> object:
        """The answer's value; raises `failure` when it refused, ended or took too long."""
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"method": method, **arguments}) + "\n")
            process.stdin.flush()
            line = self._read_line(process)
        except BrokenPipeError:
            line = ""
        if not line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_S)
            self.close()
            raise self._failure(f"{self._who}'s process ended in {method} (exit code {process.returncode})")
        given = json.loads(line)
        if "error" in given:
            raise self._failure(given["error"])
        value: object = given["value"]
        return value

    def close(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, with our last question unread
            process.stdin.close()
        try:
            process.wait(self._end_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_KILLED_S)
        process.stdout.close()

    def _read_line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(self._timeout_s):
                self.close()
                raise self._failure(f"{self._who} did not answer within {self._timeout_s:g} s; is the machine busy?")
        return process.stdout.readline()

    def _start(self) -> subprocess.Popen[str]:
        try:
            self._process = subprocess.Popen(
                self._command,
                cwd=_ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C reaches only us; it ends when its input does
            )
        except OSError as error:
            raise self._failure(f"{self._who}: {self._command[0]} cannot be run: {error.strerror}") from None
        return self._process


def serve(
    requests: Iterable[str],
    answers: TextIO,
    answer: Callable[[str, dict[str, object]], object],
    refusals: tuple[type[Exception], ...],
) -> None:
    """The other end: `answer` gets method and arguments; what it raises of `refusals` is the answer's error."""
    for line in requests:
        arguments = json.loads(line)
        try:
            given = {"value": answer(arguments.pop("method"), arguments)}
        except refusals as error:
            given = {"error": str(error) or type(error).__name__}
        answers.write(json.dumps(given) + "\n")
        answers.flush()
