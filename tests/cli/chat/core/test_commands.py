"""What a line of a chat asks for."""

from __future__ import annotations

import pytest

from stagewire.cli.chat.core.commands import COMMANDS, HELP, Command, Say, Unknown, parsed, unquoted


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hello", Say("hello")),
        ("  hello /quit ", Say("hello /quit")),
        ("", None),
        (" \t \n ", None),
        ("/quit", Command("quit", "")),
        ("/EXIT", Command("quit", "")),
        (" /help ", Command("help", "")),
        ("/save my file.json", Command("save", "my file.json")),
        ("/system You rhyme.\nAlways.", Command("system", "You rhyme.\nAlways.")),
        ("/set   temperature  0.5", Command("set", "temperature  0.5")),
        ("/hlep", Unknown("/hlep", "help")),
        ("/retri now", Unknown("/retri", "retry")),
        ("/xyzzy", Unknown("/xyzzy", None)),
        ("/", Unknown("/", None)),
        ("/ help", Unknown("/", None)),
        ("/usr/bin/env: not found", Unknown("/usr/bin/env:", None)),
        ("//help", Say("/help")),
        ("//usr/bin", Say("/usr/bin")),
        ("///", Say("//")),
        ("//", Say("/")),
        ("def f():\n    return 1\n", Say("def f():\n    return 1")),
        ("\n    return 1\nx = 2", Say("    return 1\nx = 2")),
    ],
)
def test_a_line_is_a_command_a_text_or_nothing(line: str, expected: object) -> None:
    assert parsed(line) == expected


def test_help_names_every_command_and_how_to_send_a_slash() -> None:
    text = "\n".join(HELP)
    assert all(f"/{name}" in text for name in COMMANDS)
    assert "//TEXT" in text


@pytest.mark.parametrize(
    ("path", "expected"),
    [("a b.json", "a b.json"), ('"a b.json"', "a b.json"), ("'x'", "x"), ("'x", "'x"), ("''", "''"), ("x'", "x'")],
)
def test_a_file_name_may_be_quoted(path: str, expected: str) -> None:
    assert unquoted(path) == expected
