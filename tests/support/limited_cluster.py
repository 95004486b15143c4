"""A cluster whose processes may open few files: in a process of its own, since what it may is inherited by all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 120.0
_SERVE = """
import json, resource, sys
limit, log_dir = int(sys.argv[1]), sys.argv[2]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
from pathlib import Path
from stagewire.cluster.local import LocalCluster
from stagewire.cluster.spec import BrokerSpec, StageLimits
limits = StageLimits(kv_tokens=16384)
with LocalCluster(split="0:13,13:30", limits=limits, broker=BrokerSpec(grace_s=0.2), log_dir=Path(log_dir)) as cluster:
    print(json.dumps(cluster.endpoint), flush=True)
    sys.stdin.read()
"""


@contextmanager
def limited_cluster(num_files: int, log_dir: Path) -> Iterator[str]:
    """The endpoint of two stages and a broker, each of which may have `num_files` open."""
    command = [sys.executable, "-c", _SERVE, str(num_files), str(log_dir)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None and server.stdout is not None
    try:
        yield json.loads(server.stdout.readline())
    finally:
        server.stdin.close()
        server.wait(START_S)
        server.stdout.close()
    assert server.returncode == 0
