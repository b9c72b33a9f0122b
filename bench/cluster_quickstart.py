"""The quickstart with judges on one Ray node and the engine on another, beside the one at home.

    PYTHONPATH=/path/with/ray python bench/cluster_quickstart.py --arms nodes home --out found.json

Trainer, supervisor and store stay on the head. The nodes are processes of this machine, so its
cores are shared as at home. Prints the seconds of each stage, turns, publishes and results by arm.
Needs the package ray.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from cluster_cards import ROOT, run_arm

from tests.cluster.nodes import local_nodes

QUICKSTART = ROOT / "experiments" / "quickstart.toml"
CLUSTER = {
    "judges": 2,
    "judge_on": "cpu",
    "judge_labels": {"role": "judge"},
    "serve": True,
    "serve_on": "cpu",
    "serve_labels": {"role": "serve"},
}
ARMS = ("nodes", "home")


def main() -> int:
    """Runs the arms; prints their figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--set", action="append", default=[], help="override of both arms")
    parser.add_argument("--out", type=Path, help="write the figures there as JSON")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for arm in given.arms:
            found[arm] = measure(arm, Path(name), given)
            print(json.dumps({arm: found[arm]}, indent=1), flush=True)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def measure(arm: str, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Figures of one arm."""
    experiment = tomllib.loads(QUICKSTART.read_text())
    if arm == "home":
        return run_arm(folder, arm, experiment, given)
    with local_nodes({"RAY_worker_niceness": "0"}) as nodes:
        nodes.add("judge", cpus=2)
        nodes.add("serve", cpus=2)
        cluster = {"address": nodes.address, **CLUSTER}
        return run_arm(folder, arm, {**experiment, "cluster": cluster}, given)


if __name__ == "__main__":
    sys.exit(main())
