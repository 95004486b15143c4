"""The rules of the tests' own tree: short files, folders like the packages', and nothing shared but in `support`."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
MAX_LINES = 400
# Not a package's: the bench's own tests, the rules of the tree, and the system as a whole.
OF_NO_PACKAGE = {"benchmarks", "house", "system"}
# What is no test: data, shared modules, and a link to the bench.
NOT_TESTS = {"bench", "data", "support"}


def python_files(*, shared: bool) -> list[Path]:
    """All of the tests, with or without what they share."""
    tops = {path.name for path in TESTS.iterdir()} - NOT_TESTS | ({"support"} if shared else set())
    return sorted(path for path in TESTS.rglob("*.py") if path.relative_to(TESTS).parts[0] in tops)


def named(path: Path) -> str:
    return str(path.relative_to(TESTS))


def test_no_file_of_tests_is_long() -> None:
    lengths = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files(shared=True)}
    assert len(lengths) > 80
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_every_folder_of_tests_is_a_packages() -> None:
    folders = {path.parent.relative_to(TESTS) for path in python_files(shared=False)} - {Path()}
    of_packages = {folder for folder in folders if folder.parts[0] not in OF_NO_PACKAGE}
    assert Path("stage/kv") in of_packages
    assert [str(folder) for folder in of_packages if not (TESTS.parent / folder / "__init__.py").is_file()] == []


def test_files_of_tests_share_through_support_alone() -> None:
    folders = {top.name for top in TESTS.iterdir() if top.is_dir()} - NOT_TESTS | {"", "tests", "conftest"}
    wrong = []
    for path in python_files(shared=True):
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        imported = ["." * node.level + (node.module or "") for node in nodes if isinstance(node, ast.ImportFrom)]
        imported += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        wrong += [f"{named(path)}: {name}" for name in imported if name.split(".")[0] in folders]
    assert wrong == []
