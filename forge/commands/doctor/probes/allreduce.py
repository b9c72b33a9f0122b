# pyright: standard
"""`python -m forge.commands.doctor.probes.allreduce CONFIG.json`: a sum over all GPUs by NCCL.

Like a trainer (`forge/train/trainer/__main__.py`): a process that holds the leases starts one rank
for each GPU, in its own process group, under torchrun's environment variables.

    parent ── starts ──▶ rank 0 ◀─ gloo, NCCL ─▶ rank 1 ... n-1
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from forge.commands.doctor.probes.answer import AnswerFile, end_with, gpus_held, run_probe
from forge.process.environment import RANKS_PARENT_VARIABLE, rank_envs
from forge.process.lease import die_with_parent, hold_lease

if TYPE_CHECKING:
    from collections.abc import Mapping

NUM_VALUES = 1 << 20


def run_ranks(config: Mapping[str, Any], answer: AnswerFile) -> None:
    """Start the ranks and wait for all."""
    with gpus_held(config["uuids"]):
        answer.begin("starting the ranks")
        num_ranks = len(config["uuids"])
        ranks = [
            subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env=env)
            for env in rank_envs(num_ranks)
        ]
        failed = [rank.returncode for rank in ranks if rank.wait()]
    if failed:
        raise RuntimeError(f"{len(failed)} of {num_ranks} ranks failed")


def be_rank(config: Mapping[str, Any], answer: AnswerFile) -> None:
    """Add up one number of each rank, on the CPU and on the GPUs, and report both sums."""
    rank = int(os.environ["RANK"])
    answer.begin("importing torch")
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    answer.begin("joining the ranks over 127.0.0.1")
    timeout = timedelta(seconds=config["timeout_s"])
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timeout)
    for backend, device in (("gloo", "cpu"), ("NCCL", "cuda")):
        answer.begin(f"adding up over {backend}")
        values = torch.full((NUM_VALUES,), rank + 1.0, device=device)
        dist.all_reduce(values)
        answer.say(rank=rank, backend=backend, sums=values.unique().tolist()[:4])


def main() -> None:
    """Be the parent, or the rank that the environment names."""
    parent = os.environ.pop(RANKS_PARENT_VARIABLE, None)
    if parent is None:
        run_probe(run_ranks)
        return
    die_with_parent(int(parent))
    config = hold_lease()
    end_with(be_rank, config, AnswerFile(config["answer_path"]))


if __name__ == "__main__":
    main()
