"""Compares variants of the GRPO trainer on the same samples: their cost, and that they learn the
same.

    python bench/trainers.py --shape tiny                          # this machine's CPU, a minute
    python bench/trainers.py --shape 0.6b --out trainers.json      # one H200, under 3 minutes

Groups of siblings that share a prompt, over several turns, each turn's prompt holding the turns
before it: what a GRPO step of forge trains. Random Qwen3 of the given shape, random tokens. A step
is one optimizer update over all samples; the first is left out of the times. Each arm is a separate
process, so that a failure or leftover memory does not affect the next. `same` says whether the
losses of all steps and the first gradient norm equal those of the first arm.

turns:N has micro-batches of N tokens, shared:N the same with `packing`. On several GPUs
(`--ranks 2 --arms turns:16384 ddp:16384 fsdp2:16384`) ddp and fsdp2 share each batch, ddp-shared
and fsdp2-shared with shared prefixes too. All losses must be those of turns.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainers_workload import LOADS, SHAPES, Load, make_model, make_step

from forge.train.trainer.child.parallel import join_process_group

ARM_TIMEOUT_S = 75.0
ARMS = ("turns:16384", "turns:65536", "shared:16384", "shared:65536")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One arm."""

    arm: str
    step_s: float
    """Median seconds of a step."""
    forward_tokens: float
    """Tokens per step, padding included, shared prefixes as often as they are forwarded."""
    sample_tokens: int
    """Tokens per step, prompts and completions as the engine saw them."""
    peak_bytes: int
    losses: list[float]
    """Loss of each step."""
    grad_norm: float
    """Gradient norm of the first step."""


def run_arm(name: str, load: Load, *, shape: str, model_dir: Path, at: Path, steps: int) -> Result:
    """Measures one arm in this process."""
    import torch

    kind, _, budget = name.partition(":")
    join_process_group()
    vocab = SHAPES[shape]["vocab_size"]
    batches = [make_step(load, vocab=vocab, seed=step) for step in range(steps)]
    clock = Clock()
    losses, grad_norm, forwarded = run_turns(
        batches, budget=int(budget), kind=kind, model_dir=model_dir, at=at, clock=clock
    )
    on_gpu = torch.cuda.is_available()
    return Result(
        arm=name,
        step_s=statistics.median(clock.seconds[1:]),
        forward_tokens=forwarded,
        sample_tokens=sum(len(s.prompt_ids) + len(s.completion_ids) for s in batches[0]),
        peak_bytes=torch.cuda.max_memory_allocated() if on_gpu else 0,
        losses=losses,
        grad_norm=grad_norm,
    )


class Clock:
    """Seconds of each step, including the GPU's work."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._at = 0.0

    def start(self) -> None:
        self._at = time.monotonic()

    def tick(self) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.monotonic()
        self.seconds.append(now - self._at)
        self._at = now


def run_turns(
    batches: list[Any], *, budget: int, kind: str, model_dir: Path, at: Path, clock: Clock
) -> tuple[list[float], float, float]:
    """Trains without publishing. Returns losses, the first gradient norm, tokens forwarded per
    step.
    """
    from types import SimpleNamespace

    from transformers import TrainerCallback

    from forge.config.schema import GrpoStage, ModelTable, RolloutTable
    from forge.train.batch import write_batch
    from forge.train.trainer.child.settings import TrainerSettings
    from forge.train.trainer.grpo import make_trainer

    for step, samples in enumerate(batches):
        write_batch(at / f"{step}.npz", samples)

    def take(*, step: int) -> Any:
        return SimpleNamespace(step=step + 1, samples_path=at / f"{step}.npz", wait_s=0.0)

    class Tick(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock.tick()
            seen.append(trainer.stats.metrics(trainer.world))

    stage = GrpoStage(
        kind="grpo", steps=len(batches), learning_rate=1e-6, micro_batch_tokens=budget,
        save_every=10**6, parallel="fsdp2" if kind.startswith("fsdp2") else "ddp",
        packing=kind.endswith("shared"),
    )  # fmt: skip
    settings = TrainerSettings(
        stage=stage.model_dump(mode="json"), rollout=RolloutTable().model_dump(mode="json"),
        model=ModelTable(path=str(model_dir)).model_dump(mode="json"), model_dir=model_dir,
        rows_path=None, work_dir=at / "work", weights_dir=at, control_socket=at / "none", seed=0,
        num_ranks=int(os.environ.get("WORLD_SIZE", "1")),
    )  # fmt: skip
    server: Any = SimpleNamespace(take=take)
    trainer = make_trainer(settings, client=server)
    trainer.args.save_strategy = "no"
    seen: list[dict[str, float]] = []
    trainer.add_callback(Tick())
    clock.start()
    trainer.train()
    return (
        [each["train/loss/mean"] for each in seen],
        seen[0]["train/grad_norm/value"],
        statistics.median(each["train/forward_tokens/sum"] for each in seen),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--arms", nargs="+", default=ARMS)
    parser.add_argument("--ranks", type=int, default=1, help="of ddp and fsdp2")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    load = LOADS[given.shape]
    if given.one:
        at = given.folder / given.one.replace(":", "-") / os.environ.get("RANK", "0")
        at.mkdir(parents=True)
        result = run_arm(given.one, load, shape=given.shape, model_dir=given.folder / "model",
                         at=at, steps=given.steps)  # fmt: skip
        if os.environ.get("RANK", "0") == "0":
            (given.folder / f"{given.one}.json").write_text(json.dumps(asdict(result)))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_model(given.shape, Path(folder, "model"))
        results = [measure(arm, given, Path(folder)) for arm in given.arms]
    found = [each for each in results if each is not None]
    show(load, found)
    if given.out:
        given.out.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    raise SystemExit(len(found) < len(results))


def measure(arm: str, given: argparse.Namespace, folder: Path) -> Result | None:
    """Runs an arm in a separate process; None if it failed, with its last lines printed."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={given.ranks}"]
    is_shared = arm.startswith(("ddp", "fsdp2"))
    command = [
        *(sys.executable, *(launcher if is_shared else []), __file__, "--shape", given.shape),
        *("--steps", str(given.steps), "--one", arm, "--folder", str(folder)),
    ]
    # With a second visible GPU transformers would use both by itself. Ours may not be number 0.
    first, _, _ = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")
    env = dict(os.environ) if is_shared else os.environ | {"CUDA_VISIBLE_DEVICES": first}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ARM_TIMEOUT_S, check=False, env=env
        )
        words = done.stderr[-2000:]
    except subprocess.TimeoutExpired:
        words = f"not done after {ARM_TIMEOUT_S:.0f} s"
    path = folder / f"{arm}.json"
    if path.is_file():
        return Result(**json.loads(path.read_text()))
    print(f"{arm}: failed\n{words}", file=sys.stderr)
    return None


def show(load: Load, results: list[Result]) -> None:
    print(f"{load.num_samples} samples a step: {asdict(load)}")
    print(f"{'arm':>14} {'s/step':>8} {'tok/s':>8} {'forwarded':>10} {'peak GB':>8} same")
    for each in results:
        first = results[0]
        is_same = math.isclose(each.grad_norm, first.grad_norm, rel_tol=0.02) and all(
            math.isclose(a, b, rel_tol=0.02, abs_tol=2e-3)
            for a, b in zip(each.losses, first.losses, strict=True)
        )
        print(
            f"{each.arm:>14} {each.step_s:8.3f} {each.sample_tokens / each.step_s:8.0f} "
            f"{each.forward_tokens:10.0f} {each.peak_bytes / 1e9:8.2f} "
            f"{is_same} (last loss {each.losses[-1]:.5f}, grad norm {each.grad_norm:.4f})"
        )


if __name__ == "__main__":
    main()
