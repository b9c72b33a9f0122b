"""Seconds until a directory of weights has reached another Ray node.

    PYTHONPATH=/path/with/ray python bench/cluster_weights.py --mb 101 --store-mb 80

Two nodes on this machine (`ray.cluster_utils.Cluster`), whose object stores have the size
`--store-mb`. A judge on the second one stands for an engine; each round changes the weights and
sends them to its node, then a small directory, as compiled kernels are sent between publishes.
Prints the seconds of each round, without those of the small directory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import anyio

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from forge.cluster.cluster import open_cluster  # noqa: E402
from forge.cluster.order import Role  # noqa: E402
from forge.config.schema import ClusterTable, JudgeTable  # noqa: E402
from tests.cluster.nodes import local_nodes  # noqa: E402

SMALL_BYTES = 200_000
"""More than Ray sends without its object store."""
READY_S = 120.0


async def measure(address: str, folder: Path, given: argparse.Namespace) -> list[float]:
    """Seconds of each round."""
    weights, small = folder / "weights", folder / "small"
    weights.mkdir()
    small.mkdir()
    found = []
    async with (
        open_cluster(
            ClusterTable(address=address), run="weights", socket_dir=folder, log_dir=folder
        ) as cluster,
        cluster.host(
            "judge-0", role=Role.JUDGE, index=0, num_gpus=0, num_cpus=1, labels={"role": "work"},
            settings={"table": JudgeTable().model_dump(mode="json")}, ready_s=READY_S,
        ) as hosted,
    ):  # fmt: skip
        for _ in range(given.rounds):
            (weights / "model.safetensors").write_bytes(os.urandom(int(given.mb * 1e6)))
            (small / "kernels").write_bytes(os.urandom(SMALL_BYTES))
            began = time.monotonic()
            await hosted.bring(weights)
            found.append(time.monotonic() - began)
            await hosted.bring(small)
    return found


def main() -> int:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=float, default=101.0, help="size of the weights")
    parser.add_argument("--store-mb", type=int, default=2048, help="size of each object store")
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, local_nodes(store_mb=given.store_mb) as nodes:
        nodes.add("work", cpus=1)
        seconds = anyio.run(measure, nodes.address, Path(name), given)
    found = {
        "mb": given.mb, "store_mb": given.store_mb, "median_s": statistics.median(seconds),
        "seconds": seconds,
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
