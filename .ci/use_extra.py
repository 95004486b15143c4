"""Uses one extra where nothing else of Stagewire's extras is installed: `.ci/extras` runs it, with each one's Python.

`SERVER` is the command of another environment, which serves a model meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from stagewire import Client, LocalCluster, SamplingParams, StagewireError

PACKAGES = {"text": ["tokenizers", "jinja2"], "native": ["gguf", "safetensors"], "cli": ["rich"], "none": []}
PACKAGES["stage"] = [*PACKAGES["native"], "torch"]


def run(*arguments: str, code: int = 0) -> str:
    """What this environment's command says."""
    command = [str(Path(sys.executable).parent / "stagewire"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The endpoint of a cluster that runs meanwhile."""
    command = [os.environ["SERVER"], "up", "--frontend-port", "0", "--kv-tokens", "2048"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            line = process.stdout.readline()
            yield line.split(" at ")[1].partition(";")[0]
        finally:
            process.terminate()


def answer(client: Client) -> int:
    """The number of tokens of a short request, by ids alone."""
    generation = client.session().generate(
        prompt_token_ids=[504, 2240], sampling=SamplingParams(temperature=0), max_tokens=4, ignore_eos=True
    )
    return len(generation.wait(timeout_s=60).token_ids)


def use_as_client(extra: str) -> None:
    """A client of a server elsewhere."""
    with server() as endpoint:
        os.environ["STAGEWIRE_ENDPOINT"] = endpoint
        with Client() as client:
            assert answer(client) == 4
            if extra == "text":
                client.session().generate("Once upon a time", max_tokens=4).wait(timeout_s=60)
            else:
                refused(lambda: client.session().generate("Once upon a time"), "pip install 'stagewire[text]'")
        assert "kernels on cpu" in run("status")
        assert "compute" in run("top", "--once")
        if extra == "text":
            assert run("generate", "Name a river.", "--max-tokens", "4").strip()
        else:
            assert "pip install 'stagewire[text]'" in run("generate", "hi", code=1)


def use_as_stage(extra: str) -> None:
    """Two stages of its own; what the other extra would compute is named with it."""
    precision = "bf16" if extra == "stage" else None
    with LocalCluster(precision=precision) as cluster, cluster.client() as client:
        assert answer(client) == 4
        kernels = {stage.info.kernel for stage in cluster.status().stages}
        assert (kernels == {"torch"}) == (extra == "stage"), kernels
    if extra == "native":
        refused(LocalCluster(precision="bf16").start, "pip install 'stagewire[stage]'")


def refused(deed: Callable[[], object], words: str) -> None:
    try:
        deed()
    except StagewireError as error:
        if words not in error.detail:
            raise
    else:
        raise AssertionError(f"no word of {words}")


def main(extra: str) -> None:
    wanted = PACKAGES[extra]
    unwanted = {name for packages in PACKAGES.values() for name in packages} - {*wanted}
    assert [name for name in wanted if not find_spec(name)] == []
    assert [name for name in unwanted - {"jinja2"} if find_spec(name)] == [], "another extra came along"
    told = json.loads(run("doctor", "--json"))
    assert told["problems"] == []
    assert extra in ("none", *(one["name"] for one in told["extras"] if not one["missing"])), told["extras"]
    assert run("--version").startswith("stagewire ")
    if extra in ("native", "stage"):
        use_as_stage(extra)
    else:
        use_as_client(extra)
        refused(LocalCluster, "pip install 'stagewire[native]'")
        assert "pip install 'stagewire[native]'" in run("up", code=1)
    print(f"extras: {extra} works on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main(sys.argv[1])
