"""What shells complete: every command, option and choice that there is, in shells that are here."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from stagewire.cli.main import COMMANDS, build_parser, main
from stagewire.cli.shells import SHELLS, words_of

pytestmark = pytest.mark.timeout(60)
Capture = pytest.CaptureFixture[str]
CASES = [
    ("gen", {"generate"}),
    ("", {*COMMANDS}),
    ("generate --max", {"--max-tokens"}),
    ("top --on", {"--once"}),
    ("cache ", {"stats", "clear"}),
    ("cache st", {"stats"}),
    ("up --precision ", {"auto", "stored", "int8", "int4", "bf16", "f32"}),
    ("broker --log-level w", {"warning"}),
    ("snapshot re", {"rename"}),
    ("completion ", {"bash", "zsh", "fish"}),
    ("models --json fe", {"fetch"}),
]


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    def script(shell: str) -> str:
        command = [sys.executable, "-m", "stagewire", "completion", shell]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return {shell: script(shell) for shell in SHELLS}


def installed(shell: str) -> str:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    return path


def said(command: list[str]) -> set[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return {*done.stdout.split()}


def completed(script: str, typed: str) -> str:
    """A program of bash that prints what `typed` behind `stagewire` is completed to."""
    words = ["stagewire", *typed.split(" ")]
    quoted = " ".join(shlex.quote(word) for word in words)
    ask = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _stagewire; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    return f"{script}\n{ask}"


@pytest.mark.parametrize(("typed", "offered"), CASES)
def test_bash_completes(scripts: dict[str, str], typed: str, offered: set[str]) -> None:
    found = said([installed("bash"), "--norc", "-c", completed(scripts["bash"], typed)])
    assert found - {"--help", "--version", "--json", "--endpoint"} >= offered - {"--json"}
    prefix = typed.rpartition(" ")[2]
    assert all(word.startswith(prefix) for word in found)
    if prefix or "--precision" in typed:
        assert found == offered


def test_bash_completes_files_where_only_the_user_knows(scripts: dict[str, str]) -> None:
    for typed in ("up --model /etc/host", "stage --disk-directory /etc/host", "generate --system /etc/host"):
        assert "/etc/hosts" in said([installed("bash"), "--norc", "-c", completed(scripts["bash"], typed)])


@pytest.mark.parametrize(("typed", "offered"), CASES)
def test_fish_completes(scripts: dict[str, str], typed: str, offered: set[str]) -> None:
    program = f"{scripts['fish']}\ncomplete -C 'stagewire {typed}'"
    done = subprocess.run([installed("fish"), "--no-config", "-c", program], capture_output=True, text=True, check=True)
    found = {line.partition("\t")[0] for line in done.stdout.splitlines()}
    assert found >= offered, done.stdout
    if typed.rpartition(" ")[2]:
        assert found == offered


def test_zsh_takes_the_script_as_it_is(scripts: dict[str, str]) -> None:
    """It asks bash's functions, which `bashcompinit` runs for it."""
    program = f"autoload -Uz compinit && compinit -D -u\n{scripts['zsh']}\n"
    program += "print -r -- ${_comps[stagewire]}; COMP_WORDS=(stagewire gen); COMP_CWORD=1"
    done = subprocess.run([installed("zsh"), "-f", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_stagewire" in done.stdout


def every_flag() -> Iterator[tuple[str, str]]:
    for command, summary in COMMANDS.items():
        for option in words_of(build_parser(command), command, summary).options:
            yield command, option.flag


def test_no_option_is_left_out(scripts: dict[str, str]) -> None:
    flags = [*every_flag()]
    assert len(flags) > 100 and ("up", "--frontend-port") in flags and ("chat", "--system") in flags
    for command, flag in flags:
        assert f"-l {flag.removeprefix('--')}" in scripts["fish"]
        line = next(line for line in scripts["bash"].splitlines() if line.startswith(f"    {command}) words="))
        assert flag in shlex.split(line.partition("words=")[2])[0].split()


def test_a_shell_that_is_not_known_is_refused(capsys: Capture) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err


def test_it_runs_as_a_module_and_tells_its_version() -> None:
    version = subprocess.run(
        [sys.executable, "-m", "stagewire", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert version.startswith("stagewire ") and version.split()[1][0].isdigit()
