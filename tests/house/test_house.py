"""The rules of the tree: what may import what, what gets packaged, what every file keeps to."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
NOT_PACKAGES = {"tests", "bench", "docs", "src", "build", "dist"}
MAX_MODULE_LINES = 300
MONITORING_FILES = {".yml", ".yaml", ".json"}


class Arrows(NamedTuple):
    """What the modules of one room may import besides their own room and the standard library.

    `inside` are dotted names below `stagewire`: rooms, or single modules of them.
    """

    inside: set[str]
    third_party: set[str]


STEP = {"stage.executor", "stage.stage_epoch", "stage.instructions"}
# The longest prefix counts, so a room inside a folder has a row of its own; a row without one may use all its rooms.
ARROWS = {
    "wire": Arrows(set(), {"msgpack", "numpy"}),
    "model": Arrows({"wire"}, {"numpy", "gguf"}),
    "monitoring": Arrows(set(), {"prometheus_client"}),
    "sockets": Arrows({"wire"}, {"zmq"}),
    "broker": Arrows({"wire", "sockets", "monitoring"}, {"zmq"}),
    "stage": Arrows({"wire", "model", "monitoring", "sockets"}, {"zmq", "numpy"}),
    "stage.schedule": Arrows({"wire"}, set()),
    "stage.head": Arrows({"wire", "stage.schedule", "stage.timing", "stage.files", "stage.instructions"}, set()),
    "stage.tail": Arrows({"wire", "stage.timing", "stage.instructions"}, {"numpy"}),
    "stage.kv": Arrows({"wire"}, {"numpy"}),
    "stage.compute": Arrows({"wire", "model"}, {"numpy"}),
    "stage.native": Arrows({"wire", "model", "stage.compute", "stage.settings"}, {"numpy"}),
    "stage.pytorch": Arrows({"wire", "model", "stage.compute", "stage.settings"}, {"numpy", "torch"}),
    "stage.files": Arrows({"wire", "stage.kv", "stage.compute"}, {"numpy", "safetensors", "zmq"}),
    "stage.timing": Arrows({"wire", "monitoring", "sockets", "stage.kv", "stage.compute", *STEP}, {"zmq"}),
    "stage.links": Arrows({"wire", "sockets", "stage.instructions", "stage.settings", "stage.tail"}, {"zmq"}),
    "client": Arrows({"wire"}, {"typing_extensions"}),  # for type checkers alone
    "client.core": Arrows({"wire", "client.settings"}, set()),
    "client.links": Arrows({"wire", "sockets", "client.core", "client.settings", "client.delivery"}, {"zmq"}),
    "client.text": Arrows({"wire"}, {"tokenizers", "jinja2"}),
    "cluster": Arrows({"wire", "sockets", "model", "client"}, {"pytest"}),
    "cli": Arrows({"wire", "sockets", "model", "monitoring", "broker", "stage", "client", "cluster"}, {"rich"}),
    "cli.chat": Arrows({"wire", "client", "cli"}, set()),
    "cli.chat.core": Arrows({"wire", "cli.error_words"}, set()),
}
# Where only the base dependencies are installed, these import.
BASE_PACKAGES = ("wire", "sockets", "monitoring", "broker", "client", "cli")


def project() -> dict[str, Any]:
    parsed: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return parsed


def package_folders() -> list[str]:
    """Every folder that is a package, as a dotted name below `stagewire`."""
    tops = [top for top in ROOT.iterdir() if top.is_dir() and top.name not in NOT_PACKAGES]
    inits = (init for top in tops if not top.name.startswith(".") for init in top.rglob("__init__.py"))
    return sorted(".".join(init.parent.relative_to(ROOT).parts) for init in inits)


def top_packages() -> list[str]:
    return [package for package in package_folders() if "." not in package]


def modules() -> list[Path]:
    return sorted(path for package in top_packages() for path in (ROOT / package).rglob("*.py"))


def dotted(path: Path) -> str:
    """`broker/core.py` as `broker.core`, `broker/__init__.py` as `broker`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def repository_files() -> list[Path]:
    """The files that git tracks or would add; without git, all files outside hidden and built folders."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        every = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
        listed = [
            str(path)
            for path in every
            if not any(re.match(r"\.(?!ci$)|build$|dist$|__pycache__$|.*\.egg-info$", part) for part in path.parts)
        ]
    return [ROOT / name for name in listed if (ROOT / name).is_file() or (ROOT / name).is_symlink()]


def run_python(code: str, cwd: Path, python: str | Path = sys.executable, **environment: str) -> None:
    environment = dict(os.environ) | environment
    done = subprocess.run([python, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- Imports


def imported_names(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[str]:
    """Absolute dotted names of all that `tree` imports, at any depth, relative imports resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (node.module or "").split(".") if node.module else []
            if node.level:
                above = ("stagewire." + module).split(".")
                drop = node.level - 1 if is_package else node.level
                base = above[: len(above) - drop] + base
            name = ".".join(base)
            # `from stagewire import wire` and `from stagewire.client import text` name packages.
            inside = name.split(".")[0] == "stagewire"
            yield from (f"{name}.{alias.name}" if inside else name for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def row_of(name: str) -> str:
    """The key of `ARROWS` that governs a dotted name below `stagewire`."""
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in ARROWS), parts[0])


def forbidden_imports(path: Path) -> list[str]:
    module = dotted(path)
    row = row_of(module)
    allowed = ARROWS[row]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    wrong = []
    for name in imported_names(tree, module, is_package=path.name == "__init__.py"):
        head, _, inside = name.partition(".")
        if head == "stagewire":
            fine = any(f"{inside}.".startswith(f"{room}.") for room in allowed.inside | {row})
        else:
            fine = head in allowed.third_party or head in sys.stdlib_module_names
        if not fine:
            wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    return wrong


def test_every_package_has_a_row_of_arrows() -> None:
    assert set(top_packages()) <= set(ARROWS), "add the new folder to ARROWS"


def test_the_page_on_architecture_shows_the_arrows() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("## Rooms and arrows")[2]
    rows = re.findall(r"^\| `([\w.]+)` \|[^|]+\|([^|]*)\|([^|]*)\|$", page, re.MULTILINE)
    shown = {room: Arrows(*(set(re.findall(r"`([\w.]+)`", cell)) for cell in cells)) for room, *cells in rows}
    assert shown == ARROWS


def test_imports_follow_the_arrows_lazy_ones_included() -> None:
    assert [wrong for path in modules() for wrong in forbidden_imports(path)] == []


def test_the_command_imports_only_wire_and_itself_until_it_knows_what_to_do() -> None:
    """`stagewire --help` answers at once, and in an installation without the extras."""
    wrong = []
    for path in (ROOT / "cli").rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        at_import = ast.Module([node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))], [])
        for name in imported_names(at_import, dotted(path), is_package=path.name == "__init__.py"):
            near = name.startswith(("stagewire.wire", "stagewire.cli", "stagewire.sockets.condition"))
            if not near and name.split(".")[0] not in sys.stdlib_module_names:
                wrong.append(f"{path.relative_to(ROOT)} imports {name} at module level")
    assert wrong == []


def base_modules() -> list[str]:
    """The modules that work where only the base dependencies are installed."""
    names = [dotted(path) for path in modules() if path.stem != "__main__"]
    base = [name for name in names if name.split(".")[0] in BASE_PACKAGES]
    return [f"stagewire.{name}" for name in base if not name.startswith("client.text")]


def test_client_broker_and_command_import_without_any_extra() -> None:
    assert_imports(base_modules(), extras=set())


def test_a_stage_on_the_native_kernels_imports_with_their_extra_alone() -> None:
    names = [f"stagewire.{dotted(path)}" for path in modules()]
    stage = [name for name in names if name.startswith("stagewire.stage") and "pytorch" not in name]
    assert_imports(stage, extras={"native"})


def assert_imports(names: list[str], extras: set[str]) -> None:
    """An import of another extra's package, made to fail as if it were not installed, is never reached."""
    packages = {
        extra: {re.split(r"[^\w-]", spec)[0] for spec in project()["project"]["optional-dependencies"][extra]}
        for extra in ("text", "stage", "native", "cli")
    }
    blocked = set[str]().union(*packages.values()).difference(*(packages[extra] for extra in extras))
    code = f"import sys, importlib; sys.modules.update(dict.fromkeys({blocked}))\n"
    code += f"for name in {names}: importlib.import_module(name)"
    run_python(code, cwd=Path("/"))


# ---- Packaging


def test_every_folder_with_modules_is_a_package_and_linked_into_the_source_folder() -> None:
    without_init = {path.parent for path in modules() if not (path.parent / "__init__.py").exists()}
    assert without_init == set(), "a folder with modules needs an __init__.py"
    links = {link.name: link.resolve() for link in (ROOT / "src/stagewire").iterdir() if link.is_symlink()}
    assert links == {package: ROOT / package for package in top_packages()}


def test_public_names_are_lazy_and_all_there() -> None:
    """`import stagewire` loads nothing; each name of `__all__` can be had."""
    code = "import sys, stagewire\n"
    code += "assert not [name for name in sys.modules if name.startswith('stagewire.')], sys.modules\n"
    code += "for name in stagewire.__all__: assert getattr(stagewire, name).__name__ == name, name"
    run_python(code, cwd=Path("/"))


def test_a_users_program_sees_the_types(tmp_path: Path) -> None:
    """mypy, far from this tree and its settings, knows what the installed package's names are."""
    program = tmp_path / "program.py"
    program.write_text(
        "import stagewire.client\n"
        "from stagewire import Client\n"
        'Client("tcp://127.0.0.1:7070").misspelt()\n'
        'stagewire.client.Client("tcp://127.0.0.1:7070").misspelt()\n'
    )
    command = [sys.executable, "-m", "mypy", "--config-file=", "--no-error-summary", program.name]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert found.count('"Client" has no attribute "misspelt"') == len(found.splitlines()) == 2, found


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive and the wheel, and in `again` the wheel made from the source archive.

    All built from a copy: setuptools writes into its tree. As where there is no compiler: that takes less long, and
    the package must be whole without its kernels.
    """
    tree = tmp_path_factory.mktemp("tree")
    for path in repository_files():
        target = tree / path.relative_to(ROOT)
        if path.is_relative_to(ROOT / "tests"):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target, follow_symlinks=False)
    dist = tree / "dist"
    build = f"import setuptools.build_meta as b; b.build_sdist({str(dist)!r}); b.build_wheel({str(dist)!r})"
    run_python(build, cwd=tree, CC="false", CXX="false")
    (source,) = dist.glob("*.tar.gz")
    subprocess.run(["tar", "-xf", source, "-C", dist], check=True)
    (unpacked,) = (folder for folder in dist.iterdir() if folder.is_dir())
    build = f"import setuptools.build_meta as b; b.build_wheel({str(dist / 'again')!r})"
    run_python(build, cwd=unpacked, CC="false", CXX="false")
    return dist


def test_the_wheel_names_the_command_and_the_pytest_plugin(archives: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
        lines = archive.read(name).decode().splitlines()
    assert lines[lines.index("[pytest11]") + 1] == "stagewire = stagewire.cluster.pytest_plugin"
    assert lines[lines.index("[console_scripts]") + 1] == "stagewire = stagewire.cli.main:main"


def wheel_files(folder: Path) -> dict[str, int]:
    """What the folder's wheel holds: each file and its size."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info.file_size for info in archive.infolist()}


def test_the_wheel_and_the_source_archive_hold_every_module(archives: Path) -> None:
    wanted = {str(path.relative_to(ROOT)) for path in modules()}
    wanted |= {"py.typed", "__main__.py", "wire/PROTOCOL.md", "model/tiny-random.gguf"}
    shown = {path.relative_to(ROOT) for path in (ROOT / "monitoring").rglob("*.*") if path.suffix in MONITORING_FILES}
    assert len(shown) > 8
    wanted |= {str(path) for path in shown}
    in_wheel = {name.removeprefix("stagewire/") for name in wheel_files(archives)}
    (source,) = archives.glob("*.tar.gz")
    with tarfile.open(source) as unpacked:
        in_source = {name.partition("/")[2] for name in unpacked.getnames()}
    assert wanted - in_wheel == set()
    native = {str(path.relative_to(ROOT)) for path in (ROOT / "stage/native/src").iterdir()}
    assert ({f"src/stagewire/{name}" for name in wanted} | native) - in_source == set()


def test_archives_hold_files_once_and_a_wheel_from_the_source_archive_holds_the_same(archives: Path) -> None:
    (source,) = archives.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        members = archive.getmembers()
    assert [member.name for member in members if not (member.isfile() or member.isdir())] == []
    files = [member.name.partition("/")[2].removeprefix("src/stagewire/") for member in members if member.isfile()]
    assert sorted(files) == sorted(set(files))
    assert wheel_files(archives / "again") == wheel_files(archives)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_plain_install_has_the_command_the_client_and_the_broker(archives: Path, tmp_path: Path) -> None:
    """The wheel in a fresh virtual environment, with no extra: everything of the base imports."""
    (wheel,) = archives.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    constraints = ROOT / "constraints.txt"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel, "-c", constraints], check=True)
    code = f"import importlib\nfor name in {base_modules()}: importlib.import_module(name)"
    run_python(code, cwd=tmp_path, python=python)
    answer = subprocess.run([python.with_name("stagewire"), "--help"], capture_output=True, text=True, check=True)
    assert "generate" in answer.stdout


# ---- What every file keeps to


@pytest.mark.parametrize("path", [*modules(), *sorted((ROOT / "bench").glob("*.py"))], ids=dotted)
def test_a_module_says_what_it_is_and_stays_readable(path: Path) -> None:
    """It opens with a docstring; beyond 300 lines a comment `# Over 300 lines: <reason>` says why."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    if not path.stem.startswith("_") or path.stem == "__init__":
        assert ast.get_docstring(tree), f"{dotted(path)} has no docstring"
    num_lines = len(text.splitlines())
    excused = re.search(rf"^# Over {MAX_MODULE_LINES} lines: \S.+", text, re.MULTILINE)
    assert num_lines <= MAX_MODULE_LINES or excused, f"{dotted(path)}: {num_lines} lines and no reason"
    names = [
        path.stem,
        path.parent.name,
        *(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)),
    ]
    vague = [name for name in names if re.search(r"^_?(utils?|helpers?|common)$|(Manager|Mixin)$", name)]
    assert vague == [], "name the thing by what it is"


def test_no_file_names_one_machines_paths_or_a_package_registry() -> None:
    """The tree works anywhere: which registry serves a machine is that machine's own setting."""
    folders = "|".join(("work", "root", "opt/wheels", r"home/\w+", r"Users/\w+"))
    hosts = "|".join(host + r"\." + "(org|io|com)" for host in ("pypi", "pythonhosted", "npmjs", "deb.debian"))
    options = "|".join(("index", "extra-index")) + ")-url"
    pattern = re.compile(rf"(?<![\w.~$}}/-])/({folders})/|\b({hosts})|--({options}")
    named = []
    for path in repository_files():
        if path.name == "LICENSE" or path.is_symlink():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a binary fixture
            continue
        named += [f"{path.relative_to(ROOT)}: {match[0]}" for match in pattern.finditer(text)]
    assert named == []
