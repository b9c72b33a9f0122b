# pyright: strict
"""Memory, descriptors, threads and files of every process of a real run, for an hour.

    .venv/bin/python bench/soak.py --out soak.json                  # 60 minutes, llama engine
    .venv/bin/python bench/soak.py --minutes 20 --engine hf --keep
    .venv/bin/python bench/soak.py --model runs/quickstart-1/weights/sft-001600    # without SFT

The run is the quickstart with a shorter SFT, then a GRPO stage without end: small batches, and a
learning rate at which the policy stays as good as it is, so that each step brings new candidates
and groups with a signal. Every 50 steps it is evaluated. The clock starts when the GRPO stage has
trained its first step; samples follow every 10 seconds.

A component passes if its memory grows by at most 2 % an hour after the warm-up (`soak_slope.py`),
and descriptors, threads and files do not become more. Memory is RSS, which no other program
changes, and PSS for a judge's children, which share their pages with each other. The weights of
every checkpoint are kept on purpose (`forge chat RUN@step`): those files are counted apart. Exit
code 1 if anything fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from soak_samples import sample_components, sample_files
from soak_slope import MAX_PERCENT_AN_HOUR, fit_growth, has_more

ROOT = Path(__file__).resolve().parents[1]
EVERY_S = 10.0
START_S = 1800.0
"""Maximum time until the first step is trained."""
STOP_S = 300.0
STEPS_A_LIFE = 1_000_000
EXPERIMENT = """\
name = "soak"
{model}
[problems]
num_heldout = 32
sft_by_level = [200, 300, 200, 100]
[data]
static_share = 0.6
repair_share = 0.15
[serve]
engine = "{engine}"
context_tokens = 1152
[judge]
workers = 1
[reward]
compiled = 0.05
correct = 0.75
[rollout]
sampler = "curriculum"
group_size = 6
groups_per_step = 2
max_turns = 2
max_replacements = 4.0
max_completion_tokens = 352
[eval]
every = 50
num_problems = 4
{sft}
[[stage]]
kind = "grpo"
steps = {steps}
learning_rate = 1e-7
micro_batch_tokens = 2048
save_every = 10
"""
"""[reward], [data], sizes: those of experiments/quickstart.toml."""
TINY = """\
[model]
init = "tiny"
[model.tiny]
hidden_size = 128
num_layers = 2
num_heads = 2
num_kv_heads = 1
head_dim = 64
intermediate_size = 256
vocab_size = 768
"""
SFT = """\
[[stage]]
kind = "sft"
steps = 800
batch_size = 8
learning_rate = 3e-3
warmup_steps = 20
schedule = "linear"
adam_beta2 = 0.95
threads = 2
"""


def main() -> int:
    """Runs, samples, fits, reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=60.0, help="after the first trained step")
    parser.add_argument("--warm-up", type=float, default=15.0, help="minutes that are not fitted")
    parser.add_argument("--engine", default="llama", choices=("llama", "hf"))
    parser.add_argument("--model", type=Path, help="a model that can answer already; no SFT")
    parser.add_argument("--out", type=Path, help="file for all samples and results, as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the run's directory")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        samples = soak(folder, asked)
        found = {
            "command": " ".join(sys.argv),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {sys.version[:6]}",
            "warm_up_s": asked.warm_up * 60,
            **judge_samples(samples, warm_up_s=asked.warm_up * 60),
        }
        if asked.out is not None:
            asked.out.write_text(json.dumps({**found, "samples": samples}) + "\n")
        show(found)
    finally:
        if not asked.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if found["passes"] else 1


def soak(folder: Path, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs the experiment in `folder`; returns a sample every EVERY_S."""
    model, sft = TINY, SFT
    if asked.model is not None:
        model, sft = f'[model]\npath = "{asked.model.absolute()}"\n', ""
    text = EXPERIMENT.format(engine=asked.engine, model=model, sft=sft, steps=STEPS_A_LIFE)
    (folder / "soak.toml").write_text(text)
    temporary, root = folder / "tmp", folder / "runs" / "soak-1"
    temporary.mkdir()
    with (folder / "output").open("wb") as output:
        run = subprocess.Popen(
            [sys.executable, "-m", "forge", "run", "soak.toml"],
            cwd=folder, stdout=output, stderr=output,
            start_new_session=True,  # Ctrl-C ends the samples, then the run
            env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    try:
        return follow(run, root, temporary=temporary, minutes=asked.minutes)
    except BaseException:
        sys.stderr.write((folder / "output").read_text(errors="replace")[-2000:])
        raise
    finally:
        stop(run)


def follow(
    run: subprocess.Popen[bytes], root: Path, *, temporary: Path, minutes: float
) -> list[dict[str, Any]]:
    """Waits for the first trained step, then samples until the time is over, or Ctrl-C.

    Raises:
        RuntimeError: the run ended.
    """
    deadline = time.monotonic() + START_S
    while not trained_steps(root):
        if run.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no step was trained; exit code {run.poll()}")
        time.sleep(1.0)
    supervisor, began = psutil.Process(run.pid), time.monotonic()
    samples: list[dict[str, Any]] = []
    with suppress(KeyboardInterrupt):
        while (now := time.monotonic() - began) < minutes * 60:
            if run.poll() is not None:
                raise RuntimeError(f"the run ended after {now:.0f} s: exit code {run.returncode}")
            components = sample_components(supervisor)
            samples.append(
                {
                    "s": round(now, 1),
                    "step": trained_steps(root),
                    "files": sample_files(root, temporary=temporary),
                    "components": {name: asdict(each) for name, each in components.items()},
                }
            )
            time.sleep(max(0.0, EVERY_S - (time.monotonic() - began - now)))
    return samples


def trained_steps(root: Path) -> int:
    """Trained steps of the GRPO stage; 0 before it."""
    try:
        status = json.loads((root / "STATUS.json").read_text())
    except (OSError, ValueError):
        return 0
    return int(status["done"]) if str(status["stage"]).startswith("grpo") else 0


def stop(run: subprocess.Popen[bytes]) -> None:
    """Ends the run as Ctrl-C does: the step is finished and saved."""
    if run.poll() is None:
        run.send_signal(signal.SIGINT)
    try:
        run.wait(STOP_S)
    except subprocess.TimeoutExpired:
        run.kill()
        run.wait()


def judge_samples(samples: Sequence[dict[str, Any]], *, warm_up_s: float) -> dict[str, Any]:
    """Growth of each component after the warm-up, and whether it passes."""
    late = [each for each in samples if each["s"] >= warm_up_s]
    components: dict[str, Any] = {}
    for name in sorted(set[str]().union(*(each["components"] for each in late))):
        rows = [
            (each["s"], each["components"][name]) for each in late if name in each["components"]
        ]
        series = {key: [row[key] for _, row in rows] for key in rows[0][1]}
        is_group = name.endswith(" children")
        growth = fit_growth([at for at, _ in rows], series["pss_mb" if is_group else "rss_mb"])
        more = [key for key in ("num_fds", "num_threads") if has_more(series[key])]
        components[name] = {
            **{key: round(value, 3) for key, value in asdict(growth).items()},
            "rss_mb": series["rss_mb"][-1],
            "pss_mb": series["pss_mb"][-1],
            "uss_mb": series["uss_mb"][-1],
            "num_fds": (series["num_fds"][0], series["num_fds"][-1]),
            "num_threads": (series["num_threads"][0], series["num_threads"][-1]),
            "more": more,
            "passes": growth.is_within and not more,
        }
    files = {key: [each["files"][key] for each in late] for key in late[0]["files"]}
    more = [key for key in ("run_directory", "temporary", "dev_shm") if has_more(files[key])]
    return {
        "steps": (late[0]["step"], late[-1]["step"]),
        "seconds": round(late[-1]["s"] - late[0]["s"]),
        "components": components,
        "files": {key: (values[0], values[-1]) for key, values in files.items()},
        "more_files": more,
        "passes": not more and all(each["passes"] for each in components.values()),
    }


def show(found: dict[str, Any]) -> None:
    """Prints a table."""
    first, last = found["steps"]
    print(f"{found['seconds'] / 60:.0f} minutes after the warm-up, steps {first} to {last}")
    print(f"{'':20} {'MB':>8} {'to':>8}   % an hour (95 %)        fds       threads")
    for name, each in found["components"].items():
        interval = f"{each['percent_an_hour']:+6.2f} ({each['low']:+.2f} to {each['high']:+.2f})"
        fds, threads = each["num_fds"], each["num_threads"]
        counts = f"{fds[0]:4} {fds[1]:4}   {threads[0]:4} {threads[1]:4}"
        verdict = "" if each["passes"] else "  FAILS " + " ".join(each["more"])
        print(
            f"{name:20} {each['level']:8.1f} {each['last']:8.1f}   {interval:24} {counts}{verdict}"
        )
    for name, (before, after) in found["files"].items():
        print(f"{name:20} {before:8} {after:8}")
    verdict = "pass" if found["passes"] else f"FAIL {' '.join(found['more_files'])}"
    print(f"{verdict}: at most {MAX_PERCENT_AN_HOUR:g} % an hour each")


if __name__ == "__main__":
    sys.exit(main())
