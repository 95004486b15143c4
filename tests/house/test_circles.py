"""No module imports itself, over whatever detour."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/stagewire"


def imports(path: Path) -> Iterator[str]:
    """Modules of ours that are imported while `path` is; not those for types alone, nor inside functions."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("stagewire"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if file_of(inner) else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("stagewire"))


def file_of(module: str) -> Path | None:
    path = SOURCE.joinpath(*module.split(".")[1:])
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one circle; none if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circle_among_modules() -> None:
    files = [file for package in SOURCE.iterdir() if package.is_dir() for file in package.rglob("*.py")]
    names = {file: "stagewire." + ".".join(file.relative_to(SOURCE).with_suffix("").parts) for file in files}
    graph = {name.removesuffix(".__init__"): set(imports(file)) for file, name in names.items()}
    assert len(graph) > 150
    assert circle(graph) == []


@pytest.mark.parametrize(
    ("graph", "expected"), [({"a": {"b"}, "b": {"c"}}, []), ({"a": {"b"}, "b": {"a"}}, ["a", "b", "a"])]
)
def test_a_circle_would_be_found(graph: dict[str, set[str]], expected: list[str]) -> None:
    assert sorted(circle(graph)) == sorted(expected)
