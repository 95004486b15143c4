"""Print what makes a shell complete commands, options and choices: for bash, zsh or fish."""

from __future__ import annotations

import argparse

from stagewire.cli.shells import SHELLS

EXAMPLES = """\
examples:
  eval "$(stagewire completion bash)"                      # in ~/.bashrc
  eval "$(stagewire completion zsh)"                       # in ~/.zshrc, behind compinit
  stagewire completion fish > ~/.config/fish/completions/stagewire.fish
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=[*SHELLS], help="for which shell")


def run(options: argparse.Namespace) -> int:
    from stagewire.cli.main import COMMANDS, build_parser  # noqa: PLC0415  that module imports this one
    from stagewire.cli.shells import words_of  # noqa: PLC0415  used with the above

    words = [words_of(build_parser(name), name, summary) for name, summary in COMMANDS.items()]
    print(SHELLS[options.shell](words))
    return 0
