"""What a reader can rely on to find: the files and names that the documents send them to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_OURS = {"build", "dist", "src", "tests"}


def map_rows(text: str) -> list[tuple[str, str]]:
    """`(file, name)` for each row `| what | `file` | `Name` |` of a page; the file may be a link."""
    row = re.compile(r"^\|[^|]+\|\s*\[?`([^`|]+)`(?:\]\([^)]+\))?\s*\|\s*`([^`|]+)`\s*\|\s*$", re.MULTILINE)
    return row.findall(text)


def defines(path: Path, name: str) -> bool:
    """Whether the module defines `name` at its top, or `Class.member`."""
    scope: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for part in name.removesuffix("()").split("."):
        found = next((node for node in scope if part in bound_names(node)), None)
        if found is None:
            return False
        scope = getattr(found, "body", [])
    return True


def bound_names(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


@pytest.mark.parametrize("page", ["README.md", "docs/request.md"])
def test_every_file_and_name_of_a_map_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    rows = map_rows(text)
    of_a_map = [line for line in text.splitlines() if line.startswith("|") and line.count("`") >= 4]
    assert len(rows) == len(of_a_map) >= 8, "a map has rows of the form | what | `file.py` | `Name` |"
    missing = []
    for file, name in rows:
        path = ROOT / file
        exists = path.is_file() and (defines(path, name) if path.suffix == ".py" else name in path.read_text("utf-8"))
        if not exists:
            missing.append(f"{name} in {file}")
    assert missing == []


def prose(page: Path) -> str:
    """The page without what is shown as typed or printed."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def classes() -> Iterator[tuple[str, set[str]]]:
    """Each class of the packages and the bench, with what its body defines."""
    tops = [top for top in ROOT.iterdir() if top.is_dir() and top.name not in NOT_OURS and top.name[0] != "."]
    for path in (path for top in tops for path in top.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield node.name, set().union(*map(bound_names, node.body))


def test_files_that_documents_name_exist() -> None:
    """In backticks, from the root of the tree; `*` may stand in a name. A file without its folder helps nobody."""
    path = re.compile(r"`([\w*]+(?:/[\w.*-]+)*\.(?:py|md|h|cpp|yml|yaml))`")
    named = {(page.name, name) for page in PAGES for name in path.findall(prose(page)) if name != "llama.cpp"}
    assert len(named) > 60
    assert [found for found in sorted(named) if not any(ROOT.glob(found[1]))] == []


def test_members_that_documents_name_exist() -> None:
    members: dict[str, set[str]] = {}
    for name, defined in classes():
        members.setdefault(name, set()).update(defined)
    named = [(page.name, *found) for page in PAGES for found in re.findall(r"`([A-Z]\w+)\.(\w+)`", prose(page))]
    assert len(named) > 30
    assert [found for found in named if found[2] not in members.get(found[1], set())] == []
