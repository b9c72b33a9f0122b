"""Steps of a small model with a checkpoint after each, on ranks that one process forks.

`python -u -m tests.train.saved`: a line of stdin is `RANKS STEP FUNCTION WORK_DIR`. The ranks
continue the newest whole checkpoint; its shards are FSDP2's if there are several. Rank 0 kills
itself where the save of STEP calls FUNCTION of `saving`. The answer is its exit code.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch._dynamo  # at the first step, by every optimizer
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from forge.process.environment import rank_envs
from forge.train.checkpoints import checkpoint_dir, find_resume_point
from forge.train.trainer.child import saving
from forge.train.trainer.child.parallel import SharedCard, World, end_rank

STEPS = 3


def small() -> saving.Trained:
    """A model of two layers, one of them frozen in part, with optimizer and schedule."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    model[0].bias.requires_grad_(False)
    if dist.is_initialized():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for unit in (model[0], model[2], model):
            fully_shard(unit, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return saving.Trained(model=model, optimizer=optimizer, schedule=schedule)


def train(trained: saving.Trained, *, step: int) -> None:
    draw = torch.Generator().manual_seed(step)
    loss = trained.model(torch.randn(5, 6, generator=draw)).square().mean()
    loss.backward()
    trained.optimizer.step()
    trained.optimizer.zero_grad()
    trained.schedule.step()


def whole(trained: saving.Trained) -> dict[str, torch.Tensor]:
    """All weights. Collective."""
    state: dict[str, Any] = trained.model.state_dict()
    return {n: t.full_tensor() if hasattr(t, "full_tensor") else t for n, t in state.items()}


def kill_in(function: str) -> None:
    """Let a function of `saving` kill this process."""
    setattr(saving, function, lambda *_: os.kill(os.getpid(), signal.SIGKILL))


def continue_training(work_dir: Path, fatal_step: int, fatal: str) -> NoReturn:
    """Train to the last step, from the newest checkpoint."""
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    world, trained = World(), small()
    checkpoints = saving.Checkpoints(world, SharedCard(None), is_sharded=world.size > 1)
    point = find_resume_point(work_dir)
    if point.path is not None:
        trained.load(point.path)
    for step in range(point.step + 1, STEPS + 1):
        train(trained, step=step)
        if step == fatal_step and world.is_main:
            checkpoints.wait()
            kill_in(fatal)
        checkpoints.save(
            checkpoint_dir(work_dir, step), trained, with_moments=True,
            add_files=lambda folder: (folder / "more").write_text("more"), announce=lambda: None,
        )  # fmt: skip
    checkpoints.wait()
    found = whole(trained)
    if world.is_main:
        torch.save(found, work_dir / "weights.pt")
    end_rank()


def fork_rank(env: dict[str, str], *given: Any) -> int:
    """Start a rank, which this process has imported everything for; returns its pid."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(100)
        os.environ.update(env)
        try:
            continue_training(*given)
        finally:
            os._exit(1)
    return pid


if __name__ == "__main__":
    for line in sys.stdin:
        ranks, step, function, folder = line.split(maxsplit=3)
        envs = rank_envs(int(ranks)) if ranks != "1" else [{}]
        pids = [fork_rank(env, Path(folder.strip()), int(step), function) for env in envs]
        code = os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1])
        for pid in pids[1:]:
            if code:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        sys.stdout.write(f"{code}\n")
    end_rank()
