"""List the models that are known by name, or fetch one into the user's cache folder."""
# ruff: noqa: PLC0415  # imports wait until they are needed

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from stagewire.cli.terminal import interrupt_on_sigterm, progress_lines

if TYPE_CHECKING:
    from stagewire.model.catalogue import Entry

EXAMPLES = """\
examples:
  stagewire models
  stagewire models --json
  stagewire models fetch smollm2-135m

Everywhere a model is asked for, the path of a .gguf file will do too.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model of the catalogue; `path` is where it lies, None as long as it has not been fetched."""

    name: str
    description: str
    license: str
    size_bytes: int
    is_default: bool
    path: str | None


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=["fetch"], help="download a model, unless it is there already")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the model to fetch (default: the default model)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    return _fetch(options) if options.action == "fetch" else _list(options)


def _fetch(options: argparse.Namespace) -> int:
    from stagewire.model.catalogue import DEFAULT_MODEL, resolve

    interrupt_on_sigterm()  # so that nothing half fetched is left
    name = options.name or DEFAULT_MODEL
    with progress_lines() as progress:
        path = resolve(name, progress)
    print(json.dumps({"name": name, "path": str(path)}) if options.json else path)
    return 0


def _list(options: argparse.Namespace) -> int:
    models = _known_models()
    if options.json:
        print(json.dumps({"models": [asdict(model) for model in models]}))
        return 0
    for model in models:
        print(f"{model.name}{' (default)' if model.is_default else ''}: {model.description}")
        state = model.path or f"not fetched yet: stagewire models fetch {model.name}"
        print(f"  {model.size_bytes / 1e6:.{0 if model.size_bytes > 1e6 else 1}f} MB, {model.license}; {state}")
    return 0


def _known_models() -> list[KnownModel]:
    from stagewire.model.catalogue import CATALOGUE, DEFAULT_MODEL
    from stagewire.model.shipped import TINY_MODEL, tiny_model_path

    tiny = KnownModel(
        name=TINY_MODEL,
        description="random weights, for tests: takes text and chats, and says nothing",
        license="Apache-2.0",
        size_bytes=tiny_model_path().stat().st_size,
        is_default=False,
        path=str(tiny_model_path()),
    )
    fetched = [
        KnownModel(
            name=entry.name,
            description=entry.description,
            license=entry.license,
            size_bytes=entry.size_bytes,
            is_default=entry.name == DEFAULT_MODEL,
            path=_fetched_path(entry),
        )
        for entry in CATALOGUE.values()
    ]
    return [*fetched, tiny]


def _fetched_path(entry: Entry) -> str | None:
    """By its size only: to check all bytes of every model would take too long for a list."""
    from stagewire.wire.cache_folder import cache_folder

    found = (cache_folder() / "models").glob(f"{entry.name}-*.gguf")
    return next((str(path) for path in found if path.is_file() and path.stat().st_size == entry.size_bytes), None)
