"""The pytest plugin and the tiny model, as somebody has them who tests a program of their own."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.tiny_model import write_tiny_model

import stagewire
from stagewire import ClientSettings, LocalCluster, SamplingParams
from stagewire.model.shipped import TINY_MODEL, tiny_model_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[2]
GREEDY = SamplingParams(temperature=0)
PLUGIN = "stagewire.cluster.pytest_plugin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with nothing in it, and beside it the package's entry points as an installation records them."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]["pytest11"]
    info = tmp_path / "site" / "recorded-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: recorded\nVersion: 1.0\n")
    lines = ["[pytest11]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def run_pytest(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    source = Path(stagewire.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{source}:{project.parent / 'site'}"}
    environment |= {"STAGEWIRE_CACHE": str(project / "empty-cache"), "PIP_NO_INDEX": "1"}  # nothing can be fetched
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments],
        cwd=project, env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def examples(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def test_the_test_that_the_page_shows_passes_as_it_stands(project: Path) -> None:
    """In a fresh folder, without a download; its cluster is one, and gone afterwards."""
    first = examples(ROOT / "docs/testing.md")[0]
    first += "\n\ndef test_where(stagewire_cluster: LocalCluster) -> None:\n"
    first += "    print('PIDS', *stagewire_cluster.pids.values())\n"
    (project / "test_mine.py").write_text(first)
    done = run_pytest(project, "-q", "-s", "-W", "error")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    pids = re.search(r"PIDS ((?:\d+ ?)+)", done.stdout)
    assert pids is not None
    assert len(pids[1].split()) == 3
    assert not [pid for pid in pids[1].split() if Path("/proc", pid).exists()]


@pytest.mark.slow
def test_the_other_example_runs_as_it_stands() -> None:
    (example,) = examples(ROOT / "docs/testing.md")[1:]
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_session_that_does_not_use_it_loads_nothing_of_it(project: Path) -> None:
    (project / "test_other.py").write_text(
        "import sys\n\ndef test_other():\n    loaded = {name for name in sys.modules if name.startswith('stagewire')}\n"
        f"    assert loaded == {{'stagewire', 'stagewire.cluster', {PLUGIN!r}}}\n"
        "    assert not {'zmq', 'numpy', 'msgpack', 'torch'} & set(sys.modules)\n"
    )
    done = run_pytest(project, "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stagewire_cluster" in run_pytest(project, "--fixtures").stdout


def test_nobody_but_pytest_imports_the_plugin() -> None:
    code = "import sys; from stagewire import LocalCluster; assert 'pytest' not in sys.modules, 'pytest'"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- the tiny model ---


def test_the_tiny_model_is_what_its_script_makes(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == tiny_model_path().read_bytes()
    assert tiny_model_path().stat().st_size < 120_000


def ask(cluster: LocalCluster, prompt: str, **options: object) -> tuple[int, ...]:
    with cluster.client() as client:
        sampling = SamplingParams(**({"temperature": 0} | options))  # type: ignore[arg-type]
        return client.session().generate(prompt, sampling=sampling, max_tokens=24).wait(timeout_s=30).token_ids


@pytest.mark.parametrize("precision", ["stored", "f32"])
def test_the_tiny_model_is_served_by_both_kinds_of_layers(precision: str) -> None:
    """Answers depend on all of the prompt, are as long as was asked for, and the same for each cut."""
    prompts = ["Once upon a time", "twice upon a time", "Grüße, 世界"]
    by_cut = []
    for stages in (1, 4) if precision == "stored" else (2,):
        with LocalCluster(TINY_MODEL, stages=stages, precision=precision) as cluster:
            kernels = {stage.info.kernel for stage in cluster.status().stages}
            assert (kernels == {"torch"}) == (precision == "f32")
            answers = [ask(cluster, prompt) for prompt in prompts]
            assert {len(answer) for answer in answers} == {24}
            assert len(set(answers)) == len(prompts)
            assert all(len(set(answer)) > 3 for answer in answers), "more than one token again and again"
            assert ask(cluster, prompts[0], temperature=1, seed=1) != ask(cluster, prompts[0], temperature=1, seed=2)
            by_cut.append(answers)
    assert by_cut[0] == by_cut[-1]


def test_a_cluster_gives_both_clients_with_settings() -> None:
    """Of the given settings all counts but the endpoint, which is the cluster's."""
    settings = ClientSettings(client_id="mine", endpoint="tcp://127.0.0.1:1", max_requests=3)

    async def chat(cluster: LocalCluster) -> str:
        async with cluster.async_client(settings) as client:
            messages = [{"role": "user", "content": "Hello."}]
            generation = await client.session().generate(messages=messages, sampling=GREEDY, max_tokens=5)
            return (await generation.wait()).text

    def chat_in_threads(cluster: LocalCluster, wanted: ClientSettings | None, roles: Sequence[str]) -> str:
        with cluster.client(wanted) as client:
            assert client.settings.endpoint == cluster.endpoint
            assert (client.settings.client_id == "mine") == (wanted is not None)
            messages = [{"role": role, "content": "Hello."} for role in roles]
            return client.session().generate(messages=messages, sampling=GREEDY, max_tokens=5).wait().text

    with LocalCluster(TINY_MODEL, stages=2) as cluster:
        assert asyncio.run(chat(cluster)) == chat_in_threads(cluster, settings, ["user"])
        assert chat_in_threads(cluster, None, ["user"]) != chat_in_threads(cluster, None, ["system", "user"])
