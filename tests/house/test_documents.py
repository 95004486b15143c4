"""What the documents tell people to type is accepted as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from stagewire.cli.main import COMMANDS, parsed

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def typed_commands() -> list[str]:
    """Every line of a shell block that begins with `stagewire`, without its comment."""
    found: list[str] = []
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            lines = [line.partition("  #")[0].strip() for line in block.splitlines()]
            found += [line for line in lines if line.startswith("stagewire ")]
    return found


@pytest.mark.parametrize("line", typed_commands())
def test_a_command_in_the_documents_is_accepted(line: str) -> None:
    """Its options exist, and their values can be read."""
    arguments = shlex.split(line)[1:]
    assert arguments[0] in COMMANDS
    parsed(arguments, arguments[0])


def test_the_documents_show_how_to_start_each_kind_of_process() -> None:
    """Otherwise the test above would pass on nothing."""
    shown = {line.split()[1] for line in typed_commands()}
    assert {"up", "broker", "stage", "generate", "chat", "status"} <= shown


def test_links_between_documents_lead_somewhere() -> None:
    """Every relative link of a page names a file."""
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
