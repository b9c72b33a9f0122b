"""`python -m forge.train.trainer CONFIG.json`: the trainer child of an `[[stage]]`.

With one rank this process trains. With several it starts one process for each of this machine,
under torchrun's environment variables; ranks of other machines meet them at `meeting`:

    trainer child ── starts ──▶ rank 0 (control.sock, files) ◀─ gloo, NCCL ─▶ rank 1 ... n-1
         └── waits; passes SIGTERM to rank 0 and SIGUSR1 to all; one that fails ends all

torchrun itself gives every rank a session of its own, which our lease would not reach when we are
killed, and 30 s to end after SIGTERM, in which no large checkpoint is written. So the ranks are
started here, in our own process group. The process that starts them only waits: no torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from forge.process.environment import RANKS_PARENT_VARIABLE, Rendezvous, rank_envs
from forge.process.lease import collector_paused, die_with_parent, hold_lease

FAILURE_LOG_S = 2.0
"""Time for the other ranks to log the failure of one."""


def main() -> None:
    config = hold_lease()
    if is_parent_of_ranks(config):
        run_ranks(config, config_path=sys.argv[1])
        return
    # After the lease: these imports take seconds in which our owner may die.
    with collector_paused():
        from forge.train.trainer.child.parallel import end_rank
        from forge.train.trainer.child.settings import TrainerSettings, start_logging

        start_logging()
        if config["stage"]["kind"] == "sft":
            from forge.train.trainer.sft import train_answers as train
        else:
            from forge.train.trainer.grpo import train_turns as train
    train(TrainerSettings.load(config))
    end_rank()


def is_parent_of_ranks(config: Mapping[str, Any]) -> bool:
    """True if this process starts ranks instead of training. A rank ties itself to its parent."""
    parent = os.environ.pop(RANKS_PARENT_VARIABLE, None)
    if parent is not None:
        die_with_parent(int(parent))
    return config["num_ranks"] > 1 and "RANK" not in os.environ


def run_ranks(config: Mapping[str, Any], *, config_path: str) -> None:
    """Start one process for each rank of this machine and wait. Returns when all have succeeded;
    else ends like the first that failed."""
    meeting = config["meeting"] and Rendezvous(**config["meeting"])
    ranks = [
        subprocess.Popen([sys.executable, "-m", "forge.train.trainer", config_path], env=env)
        for env in rank_envs(config["num_ranks"], meeting=meeting)
    ]
    signal.signal(signal.SIGTERM, lambda *_: ranks[0].send_signal(signal.SIGTERM))
    signal.signal(signal.SIGUSR1, lambda *_: [rank.send_signal(signal.SIGUSR1) for rank in ranks])
    failed = _wait(ranks)
    if failed is not None:
        time.sleep(FAILURE_LOG_S)
        for rank in ranks:
            rank.kill()
            rank.wait()
        _end_as(failed)


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all ranks. Returns None, or the exit code of the first that failed, negative for a
    signal."""
    for _ in ranks:
        _, status = os.wait()
        if code := os.waitstatus_to_exitcode(status):
            return code
    return None


def _end_as(code: int) -> None:
    if code > 0:
        raise SystemExit(code)
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main()
