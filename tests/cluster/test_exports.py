"""An unchanged snapshot makes the same files each time: real stages, real directories."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from stagewire import Client, ClientSettings, LocalCluster, SamplingParams
from stagewire.cluster.spec import StageLimits
from stagewire.model.shipped import TINY_MODEL

pytestmark = pytest.mark.processes
PROMPTS = {"whole-blocks": [5 + n for n in range(32)], "half-a-block": [9 + n for n in range(41)], "one-token": [7]}
NUM_STAGES = 3


def contents(directory: Path, file: str) -> dict[str, str]:
    """Digests of an export's files, by what their names say besides its own."""
    return {
        path.name.removeprefix(file): sha256(path.read_bytes()).hexdigest()
        for path in directory.iterdir()
        if path.name.startswith(f"{file}.")
    }


def work(client: Client) -> None:
    """Something else in between, which takes the blocks that nobody holds."""
    sampling = SamplingParams(temperature=0)
    for first in range(40, 60):
        prompt = [first + n % 50 for n in range(60)]
        client.session().generate(prompt_token_ids=prompt, sampling=sampling, max_tokens=8, ignore_eos=True).wait()


@pytest.mark.slow
def test_an_unchanged_snapshot_exported_again_is_the_same_bytes(tmp_path: Path) -> None:
    """Under another name, after other work, and from a new cluster that has imported it."""
    limits = StageLimits(kv_tokens=512, snapshot_directory=str(tmp_path))
    settings = ClientSettings(client_id="me")
    first: dict[str, dict[str, str]] = {}
    with LocalCluster(TINY_MODEL, stages=NUM_STAGES, limits=limits) as cluster, cluster.client(settings) as client:
        for name, prompt in PROMPTS.items():
            client.session().snapshot(name, prompt_token_ids=prompt)
            client.export_snapshot(name, f"{name}-1")
            first[name] = contents(tmp_path, f"{name}-1")
            assert len(first[name]) == NUM_STAGES + 1
        work(client)
        for name in PROMPTS:
            client.export_snapshot(name, f"{name}-2")
            client.export_snapshot(name, f"{name}-1")
            assert contents(tmp_path, f"{name}-2") == contents(tmp_path, f"{name}-1") == first[name]
    with LocalCluster(TINY_MODEL, stages=NUM_STAGES, limits=limits) as cluster, cluster.client(settings) as client:
        for name in PROMPTS:
            client.session().import_snapshot(name, f"{name}-1")
            client.export_snapshot(name, f"{name}-3")
            assert contents(tmp_path, f"{name}-3") == first[name]
