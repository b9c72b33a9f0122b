"""Two cards of one machine as two Ray nodes: a trainer on one, an engine and a judge on the other.

    PYTHONPATH=/path/with/ray python bench/cluster_cards.py --engine vllm --out cards.json

Trains `h200-from-scratch`'s model by SFT for a while, then evaluates it and trains it by GRPO twice
from the same weights: `home`, with both cards in one process tree, and `nodes`, where the second
card belongs to a Ray node and its engine and judge share it (`cluster.share_gpus`). Prints the
seconds of each stage, turns, publishes and results. Needs two GPUs and the package ray.
"""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import tomli_w

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.cluster.nodes import local_nodes  # noqa: E402

RECIPE = ROOT / "experiments" / "h200-from-scratch.toml"
HOME = {"gpus": "auto", "train": 1, "serve": 1, "judge": 1, "share": "auto"}
HEAD = {"gpus": ["0"], "train": 1, "serve": 0, "judge": 0}


def main() -> int:
    """Runs SFT and both arms; prints their figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--model", type=Path, help="weights to start from, in place of SFT")
    parser.add_argument("--sft-steps", type=int, default=400)
    parser.add_argument("--grpo-steps", type=int, default=6)
    parser.add_argument(
        "--store-mb", type=int, default=2048, help="size of each node's object store"
    )
    parser.add_argument("--arms", nargs="+", default=["nodes", "home"], choices=["nodes", "home"])
    parser.add_argument("--set", action="append", default=[], help="override of both arms")
    parser.add_argument("--out", type=Path, help="write the figures there as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = measure(given, folder)
    text = json.dumps(found, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    return 0


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Figures by arm."""
    recipe = tomllib.loads(RECIPE.read_text())
    sft, before, grpo, _ = recipe.pop("stage")
    sft = {**sft, "steps": given.sft_steps, "warmup_steps": 50, "save_every": 1000}
    model = given.model
    if model is None:
        model = folder / "model"
        data = {**recipe["data"], "repair_share": 0}
        forge(folder, "run", write(folder, "sft", {**recipe, "data": data, "stage": [sft]}))
        forge(folder, "export", "model", "cards-sft-1", "--merge", "--out", str(model))
    recipe |= {
        "model": {"path": str(model.resolve())},
        "serve": {**recipe["serve"], "engine": given.engine},
        "eval": {**recipe["eval"], "num_problems": 32, "samples": 1},
        "stage": [before, {**grpo, "steps": given.grpo_steps, "save_every": 1000}],
    }
    found: dict[str, Any] = {}
    for arm in given.arms:
        if arm == "home":
            found[arm] = run_arm(folder, arm, {**recipe, "devices": HOME}, given)
        else:
            with local_nodes(store_mb=given.store_mb) as nodes:
                nodes.add_card("work", gpu=1)
                cluster = {"address": nodes.address, "judges": 1, "serve": True, "share_gpus": True}
                there = {**recipe, "devices": HEAD, "cluster": cluster}
                found[arm] = run_arm(folder, arm, there, given)
        print(json.dumps({arm: found[arm]}, indent=1), flush=True)
    return found


def run_arm(
    folder: Path, arm: str, experiment: dict[str, Any], given: argparse.Namespace
) -> dict[str, Any]:
    """Runs an arm and reads its figures."""
    overrides = [f"--set={each}" for each in given.set]
    errors = forge(folder, "run", write(folder, arm, experiment), *overrides)
    run = folder / "runs" / f"cards-{arm}-1"
    log = (run / "logs" / "latest" / "supervisor.log").read_text()
    loads = [float(each) for each in re.findall(r"serves version \d+ \((\S+) s\)", log)]
    sent = [float(each) for each in re.findall(r"serve-\d+ has \S+ \((\S+) s\)", log)]
    waits = [float(each) for each in re.findall(r"(\S+) s of it until turns had ended", log)]
    with closing(sqlite3.connect(run / "run.db")) as db:
        db.row_factory = sqlite3.Row
        events = list(db.execute("SELECT at, kind, message FROM events ORDER BY at"))
        publishes = [row[0] for row in db.execute("SELECT publish_s FROM policies") if row[0]]
        turns = dict(db.execute("SELECT status, count(*) FROM v_turns GROUP BY status").fetchall())
        evaluated = db.execute("SELECT stage, pass_at_1 FROM evaluations").fetchall()
    return {
        "stages_s": {
            row["message"].partition(":")[0]: float(row["message"].split()[1])
            for row in events
            if row["kind"] == "stage_end"
        },
        "wall_s": round(events[-1]["at"] - events[0]["at"], 1),
        "turns": turns,
        "publish_s": round(statistics.median(publishes), 3) if publishes else None,
        "waits_s": round(statistics.median(waits), 3) if waits else None,
        "loads_s": round(statistics.median(loads), 3) if loads else None,
        "sent_s": round(statistics.median(sent), 3) if sent else None,
        "pass_at_1": {str(stage): value for stage, value in evaluated},
        "runs_on": [line for line in errors.splitlines() if "-0 runs on " in line],
    }


def write(folder: Path, name: str, experiment: dict[str, Any]) -> str:
    """Path of a new experiment file."""
    path = folder / f"{name}.toml"
    path.write_text(tomli_w.dumps({**experiment, "name": f"cards-{name}"}))
    return str(path)


def forge(folder: Path, *args: str) -> str:
    """Runs a command there and shows its stderr, which it returns. Exits if the command fails."""
    command = [sys.executable, "-m", "forge", *args]
    lines: list[str] = []
    with subprocess.Popen(command, cwd=folder, text=True, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            lines.append(line)
    if process.returncode:
        for log in folder.glob("runs/*/logs/latest/*.log"):
            print(f"== {log}\n{log.read_text()[-3000:]}", file=sys.stderr)
        sys.exit(f"{' '.join(command)}: exit {process.returncode}")
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
