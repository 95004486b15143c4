"""Completion scripts of bash, zsh and fish, made from the parsers: what can be completed has one description."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    """A flag: what may follow it, if anything; without choices a value is whatever the shell offers, files at least."""

    flag: str
    takes_value: bool
    choices: tuple[str, ...]
    help: str

    @property
    def takes_any(self) -> bool:
        """A value that only its user knows."""
        return self.takes_value and not self.choices


@dataclass(frozen=True, slots=True)
class CommandWords:
    """What can stand behind `stagewire NAME`."""

    name: str
    summary: str
    options: tuple[Option, ...]
    choices: tuple[str, ...]


def words_of(parser: argparse.ArgumentParser, name: str, summary: str) -> CommandWords:
    """Reads a command's own parser out of the whole one."""
    commands = next(one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    actions = commands.choices[name]._actions
    options = [_option(flag, one) for one in actions for flag in one.option_strings if flag.startswith("--")]
    positional = [str(choice) for one in actions if not one.option_strings for choice in one.choices or ()]
    return CommandWords(name, summary, tuple(options), tuple(positional))


def _option(flag: str, action: argparse.Action) -> Option:
    summary = (action.help or "").partition(";")[0].replace("%%", "%").partition("(default")[0].strip()
    return Option(flag, action.nargs != 0, tuple(map(str, action.choices or ())), summary)


def bash(commands: Sequence[CommandWords]) -> str:
    """For bash; with `bashcompinit` for zsh, too."""
    words = [f"    {one.name}) words={shlex.quote(' '.join(_all_words(one)))} ;;" for one in commands]
    values = [
        f"    {one.name}{option.flag}) values={shlex.quote(' '.join(option.choices))} ;;"
        for one in commands
        for option in one.options
        if option.choices
    ]
    free = "|".join([one.name + option.flag for one in commands for option in one.options if option.takes_any])
    cases = [*values, f'    {free}) COMPREPLY=($(compgen -f -- "$current")); return ;;']
    script = _BASH.replace("@NAMES@", " ".join(one.name for one in commands))
    return script.replace("@VALUES@", "\n".join(cases)).replace("@WORDS@", "\n".join(words))


def _all_words(command: CommandWords) -> list[str]:
    return [*(option.flag for option in command.options), *command.choices]


def zsh(commands: Sequence[CommandWords]) -> str:
    """For zsh, which understands what bash does."""
    return f"autoload -Uz bashcompinit && bashcompinit\n{bash(commands)}"


def fish(commands: Sequence[CommandWords]) -> str:
    """For fish, with the words of `--help` beside what it offers."""
    lines = [
        "complete -c stagewire -f",
        *(_fish("__fish_use_subcommand", f"-a {one.name}", one.summary) for one in commands),
    ]
    for command in commands:
        seen = f"__fish_seen_subcommand_from {command.name}"
        if command.choices:
            lines.append(_fish(seen, f"-a {shlex.quote(' '.join(command.choices))}", ""))
        lines += [_fish(seen, _fish_option(one), one.help) for one in command.options]
    return "\n".join(lines)


def _fish(condition: str, what: str, summary: str) -> str:
    told = f" -d {_fish_quoted(summary)}" if summary else ""
    return f"complete -c stagewire -n {_fish_quoted(condition)} {what}{told}"


def _fish_option(option: Option) -> str:
    values = f" -x -a {_fish_quoted(' '.join(option.choices))}" if option.choices else " -r -F"
    return f"-l {option.flag.removeprefix('--')}{values if option.takes_value else ''}"


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_BASH = """\
_stagewire() {
  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" command= words= values= word
  COMPREPLY=()
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$word" in -*) ;; *) command="$word"; break ;; esac
  done
  if [ -z "$command" ]; then
    COMPREPLY=($(compgen -W "@NAMES@ --help --version" -- "$current"))
    return
  fi
  case "$command$before" in
@VALUES@
  esac
  if [ -n "$values" ]; then
    COMPREPLY=($(compgen -W "$values" -- "$current"))
    return
  fi
  case "$command" in
@WORDS@
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- "$current"))
}
complete -F _stagewire stagewire"""

SHELLS: dict[str, Callable[[Sequence[CommandWords]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
