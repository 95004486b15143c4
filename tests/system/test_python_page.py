"""The programs of `docs/python.md`, as they stand there, against a real cluster."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stagewire.cluster.local import LocalCluster
from stagewire.cluster.spec import BrokerSpec

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

PAGE = Path(__file__).parents[2] / "docs/python.md"
ENDPOINT = "tcp://127.0.0.1:7070"
MS = r" +-?\d+\.\d\d ms\n"
SHARE = r"'.*' \d+\.\d%"
CACHED = r"\d+ of \d+ prompt tokens were there already\n"
NOTE = "snapshot 'rules': the prompt shares"
SAID = {
    "Stream": r".*\n(40 tokens, ended by length|\d+ tokens, ended by stop)\nthe first after 0\.\d+ s, all after .+ s\n",
    "Chat": rf"What is a river\? .+\n{CACHED}And a lake\? .+\n(?!0 of){CACHED}",
    "Many prompts": r"Name a river\. .+\nName a mountain\. .+\nName a lake\. .+\nName a city\. .+\n",
    "Sampling and log probabilities": rf"((?!' Paris'){SHARE}; of {SHARE}, {SHARE}, {SHARE}\n){{3}}",
    "Snapshots": rf"kept (\d+) tokens, used \1\n{NOTE} the first 0 of its \1 tokens\n\(\)\n",
    "Cancel": r"cancelled 5\ncancelled True\n",
    "Errors": r"True\ninvalid_request: text must be a str, not list: .+\nRequestRefused\('.+', context_overflow\)\n",
    "Where the time went": rf"return{MS}(.*{MS}){{13}}total{MS}",
    "Processes": r"\[[1-5], [1-5]\]\n",
}
"""What each program prints, by its heading."""


def programs() -> dict[str, str]:
    page = PAGE.read_text(encoding="utf-8")
    sections = [section.partition("\n") for section in page.split("\n## ")[1:]]
    return {title: "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)) for title, _, text in sections}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(stages=2, threads=1, broker=BrokerSpec(grace_s=0.2)) as running:
        yield running


@pytest.mark.parametrize("title", SAID)
def test_a_program_of_the_page_runs_and_prints_what_it_promises(
    cluster: LocalCluster, tmp_path: Path, title: str
) -> None:
    """Without a warning, and in the time that somebody who tries it has."""
    program = programs()[title]
    assert ENDPOINT in program
    path = tmp_path / "program.py"
    path.write_text(program.replace(ENDPOINT, cluster.endpoint), encoding="utf-8")
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(SAID[title], done.stdout, re.DOTALL if title in ("Stream", "Chat") else 0), done.stdout


def test_every_program_of_the_page_is_run() -> None:
    """A new section belongs into the table above."""
    assert [title for title, program in programs().items() if program] == list(SAID)
