"""Say what is here: extras, kernels, compiler, PyTorch, models, ports, limits, memory, and what is wrong with them.

The exit code is 1 if something that is here cannot work; what is merely not installed is named with its `pip install`.
"""
# ruff: noqa: PLC0415  # imports wait until they are needed

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from stagewire.wire.counted import counted

if TYPE_CHECKING:
    from stagewire.cli.checkup import Checkup, Extra

EXAMPLES = """\
examples:
  stagewire doctor
  stagewire doctor --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print all facts and problems as JSON")


def run(options: argparse.Namespace) -> int:
    from stagewire.cli.checkup import look

    checkup = look()
    found = problems(checkup)
    if options.json:
        print(json.dumps(asdict(checkup) | {"problems": found}))
    else:
        print("\n".join([*describe(checkup), *(f"problem: {problem}" for problem in found)]))
    return 1 if found else 0


def problems(checkup: Checkup) -> list[str]:
    """What cannot work as it is, each with what to do."""
    found = [f"{one.name}: {', '.join(one.missing)} is missing: {one.install}" for one in _half_installed(checkup)]
    if checkup.kernels.problem:
        found.append(f"kernels: {checkup.kernels.problem}")
    has_native = not next(one for one in checkup.extras if one.name == "native").missing
    if has_native and not checkup.kernels.problem and not checkup.kernels.runnable and checkup.torch is None:
        torch = next(one for one in checkup.extras if one.name == "stage").install
        found.append(f"nothing can compute layers: install again where there is a C++ compiler, or {torch}")
    if not checkup.models.is_writable:
        found.append(f"models: {checkup.models.folder} cannot be written; STAGEWIRE_CACHE names another folder")
    if checkup.broker.problem:
        found.append(f"broker: {checkup.broker.problem}")
    if not checkup.descriptors.num_clients:
        found.append(f"files: a stage cannot work with {checkup.descriptors.hard} open files; `ulimit -n 1024`")
    return found


def _half_installed(checkup: Checkup) -> list[Extra]:
    """Extras whose first package is there and another is not; the others, and PyTorch, have users of their own."""
    meant = [one for one in checkup.extras if one.name != "stage" and one.packages[0] not in one.missing]
    return [one for one in meant if one.missing]


def describe(checkup: Checkup) -> list[str]:
    """The facts in lines for people."""
    rows = {
        "extras": _extras(checkup),
        "kernels": _kernels(checkup),
        "compiler": checkup.compiler or "none; where one is, installing compiles the kernels",
        "PyTorch": checkup.torch or "not installed",
        "models": _models(checkup),
        "ports": _ports(checkup),
        "broker": f"{checkup.broker.endpoint}: {checkup.broker.answer}" if checkup.broker.answer else "see below",
        "files": f"{checkup.descriptors.hard} may be open; a stage serves {_clients(checkup)} with them",
        "memory": _memory(checkup),
    }
    head = f"stagewire {checkup.version}, Python {checkup.python}, {checkup.system}"
    return [head, *(f"  {name:9} {text}" for name, text in rows.items())]


def _extras(checkup: Checkup) -> str:
    here = [one.name for one in checkup.extras if not one.missing]
    lacking = [f"{one.name}: {one.install}" for one in checkup.extras if one.missing]
    return "; ".join([", ".join(here) or "none", *(["not here are " + ", ".join(lacking)] if lacking else [])])


def _kernels(checkup: Checkup) -> str:
    runnable, chosen = checkup.kernels.runnable, checkup.kernels.chosen
    if not runnable:
        return "none; PyTorch computes" if checkup.torch else "none"
    return f"{chosen or 'none chosen'}, of {', '.join(runnable)}"


def _models(checkup: Checkup) -> str:
    models = checkup.models
    size = f"{models.num_bytes / 1e6:.0f} MB in {models.folder}"
    return f"{counted(len(models.names), 'model')}, {size}"


def _ports(checkup: Checkup) -> str:
    taken = [f"{one.port} ({one.purpose}) is taken by {one.holder}" for one in checkup.ports if one.holder]
    free = [str(one.port) for one in checkup.ports if not one.holder]
    return "; ".join([*taken, *([f"{', '.join(free)} free"] if free else [])])


def _clients(checkup: Checkup) -> str:
    return counted(checkup.descriptors.num_clients, "client")


def _memory(checkup: Checkup) -> str:
    memory = checkup.memory
    sizes = f"{memory.available_bytes / 1e9:.1f} of {memory.total_bytes / 1e9:.1f} GB available"
    return f"{sizes}, {counted(memory.num_cpus, 'processor')}"
