"""Runs on one GPU, as on a workstation: engine, judge and trainer share it, and each end frees it.

`FORGE_TEST_GPU_SETS` holds further `--set` items, separated by spaces: `serve.engine=vllm`, or the
interpreter of an engine outside our environment.
"""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from forge.errors import MachineError
from forge.process.devices import Gpu, inventory, occupancies
from tests.e2e.commands import children_of_run, forge, start, wait_for

pytestmark = [pytest.mark.gpu, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(500)]

EXPERIMENT = """\
name = "card"
[prompt]
preset = "tiny"
[model]
init = "tiny"
[model.tiny]
vocab_size = 512
[problems]
num_problems = 300
sft_by_level = [20, 20, 20, 20]
[data]
repair_share = 0.05
[devices]
gpus = ["{uuid}"]
train = "auto"
serve = "auto"
judge = "auto"
share = "auto"
[serve]
precision = "fast"
memory_share = 0.4
eager = true
[rollout]
group_size = 4
groups_per_step = 2
max_completion_tokens = 64
max_turns = 2
max_replacements = 0.0
[store]
texts = "plain"
[[stage]]
kind = "sft"
steps = {steps}
learning_rate = 3e-3
batch_size = 8
save_every = 10
[[stage]]
kind = "eval"
num_problems = 4
samples = 2
max_turns = 2
"""
HOLDS = """
import sys, time, torch
taken = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(600)
"""
SQUEEZES = """
import sys, time, torch
left, held, is_told = int(sys.argv[1]), [], False
while True:
    more = torch.cuda.mem_get_info()[0] - left
    if more > 32 << 20:
        held.append(torch.empty(more, dtype=torch.uint8, device="cuda"))
    elif not is_told:
        print("held", flush=True)
        is_told = True
    time.sleep(0.05)
"""
"""Also allocates memory that other processes free."""
FREE_WITHIN_S = 10
NOISE_BYTES = 300 << 20
"""Tolerance for the driver's own memory."""


def sets() -> list[str]:
    return [f"--set={item}" for item in os.environ.get("FORGE_TEST_GPU_SETS", "").split()]


def write(folder: Path, *, steps: int) -> Gpu:
    card = inventory()[0]
    (folder / "card.toml").write_text(EXPERIMENT.format(uuid=card.uuid, steps=steps))
    return card


def free_bytes(card: Gpu) -> int:
    return occupancies([card])[card.uuid].free_bytes


def trains(root: Path) -> bool:
    return any(root.glob("checkpoints/stage-0/checkpoint-*"))


def test_engine_judge_and_trainer_share_a_gpu_and_leave_it_free(tmp_path: Path) -> None:
    card = write(tmp_path, steps=20)
    before = free_bytes(card)
    ran = forge("run", "card.toml", *sets(), cwd=tmp_path)
    assert f"GPU {card.index} has serve, judge, train" in ran.stderr + ran.stdout
    wait_for(
        lambda: free_bytes(card) > before - NOISE_BYTES, timeout_s=FREE_WITHIN_S, what="the card"
    )


def test_a_second_run_is_refused_and_a_killed_run_leaves_the_gpu_free(tmp_path: Path) -> None:
    card = write(tmp_path, steps=100_000)
    before = free_bytes(card)
    root = tmp_path / "runs" / "card-1"
    first = start(tmp_path, "run", "card.toml", *sets())
    wait_for(lambda: trains(root) or first.poll() is not None, timeout_s=200, what="a checkpoint")
    assert first.poll() is None, first.communicate()[1]
    assert free_bytes(card) < before - NOISE_BYTES
    second = forge("run", "card.toml", *sets(), cwd=tmp_path, code=3)
    assert f"is used by run card-1, pid {first.pid}" in second.stderr
    assert not (tmp_path / "runs" / "card-2").exists()
    first.send_signal(signal.SIGKILL)
    first.communicate()
    wait_for(
        lambda: free_bytes(card) > before - NOISE_BYTES, timeout_s=FREE_WITHIN_S, what="the card"
    )
    assert not children_of_run(root)


def test_ctrl_c_twice_leaves_the_gpu_free(tmp_path: Path) -> None:
    card = write(tmp_path, steps=100_000)
    before = free_bytes(card)
    root = tmp_path / "runs" / "card-1"
    run = start(tmp_path, "run", "card.toml", *sets())
    wait_for(lambda: trains(root) or run.poll() is not None, timeout_s=200, what="a checkpoint")
    run.send_signal(signal.SIGINT)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
    assert run.returncode == 130
    wait_for(
        lambda: free_bytes(card) > before - NOISE_BYTES, timeout_s=FREE_WITHIN_S, what="the card"
    )


@contextmanager
def somebody_else(code: str, num_bytes: int) -> Iterator[subprocess.Popen[bytes]]:
    holder = subprocess.Popen([sys.executable, "-c", code, str(num_bytes)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        yield holder
    finally:
        holder.kill()
        holder.wait(30)
        holder.stdout.close()


def test_a_gpu_filled_by_another_process_is_refused_with_numbers(tmp_path: Path) -> None:
    card = write(tmp_path, steps=1)
    with somebody_else(HOLDS, free_bytes(card) - (4 << 30)):
        refused = forge("run", "card.toml", *sets(), cwd=tmp_path, code=MachineError.exit_code)
    last = refused.stderr.strip().splitlines()[-1]
    assert " are free: " in last
    assert " GB" in last
    assert not (tmp_path / "runs" / "card-1").exists()


BIG = [
    "intermediate_size=3072",
    "hidden_size=1024",
    "num_layers=8",
    "num_heads=8",
    "num_kv_heads=8",
    "head_dim=128",
]
"""Settings of `model.tiny`: about 130 M parameters, for which a trainer in bf16 with Adam needs 1.5
GB.
"""
LEFT_BYTES = 3 << 29
"""Enough memory for a context, too little for the trainer."""


def events(root: Path, kind: str) -> list[str]:
    with closing(sqlite3.connect(f"file:{root}/run.db?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT message FROM events WHERE kind = ?", (kind,))
        return [message for (message,) in rows]


@pytest.mark.parametrize("is_freed", [True, False])
def test_a_trainer_on_a_full_gpu_is_retried_once_then_stopped_with_numbers(
    tmp_path: Path, is_freed: bool
) -> None:
    card = write(tmp_path, steps=20)
    root, before = tmp_path / "runs" / "card-1", free_bytes(card)
    tiny = [f"--set=model.tiny.{item}" for item in BIG]
    run = start(tmp_path, "run", "card.toml", *tiny, *sets())
    wait_for(
        lambda: run.poll() is not None or is_at(root, "sft-0"), timeout_s=200, what="the trainer"
    )
    with somebody_else(SQUEEZES, LEFT_BYTES) as holder:
        wait_for(
            lambda: run.poll() is not None or bool(events(root, "child_restart")),
            timeout_s=120, what="a full card",
        )  # fmt: skip
        assert run.poll() is None, run.communicate()[1]
        (told,) = events(root, "child_restart")
        assert re.search(r"GPU memory ran out in stage sft-0, step \d+ of 20: .* peak \d", told)
        assert told.endswith("restarted with half of that from its last checkpoint")
        if is_freed:
            holder.kill()
        said = run.communicate(timeout=200)[1]
    if is_freed:
        assert run.returncode == 0, said
        return
    assert run.returncode == MachineError.exit_code, said
    assert "ran out in stage sft-0, step 0 of 20, again after they were halved" in said
    wait_for(
        lambda: free_bytes(card) > before - NOISE_BYTES, timeout_s=FREE_WITHIN_S, what="the card"
    )
    forge("resume", "card-1", cwd=tmp_path)


def is_at(root: Path, stage: str) -> bool:
    with suppress(OSError, ValueError):
        return json.loads((root / "STATUS.json").read_text())["stage"] == stage
    return False


def test_torch_sees_the_gpu_that_is_named_by_uuid() -> None:
    card = inventory()[-1]
    code = (
        "import torch; from forge.process.devices import inventory;"
        "print(len(inventory()), inventory()[0].uuid, torch.cuda.device_count(),"
        "torch.cuda.get_device_properties(0).uuid)"
    )
    env = os.environ | {"CUDA_VISIBLE_DEVICES": card.uuid}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    bare = card.uuid.removeprefix("GPU-")
    assert done.stdout.split() == ["1", card.uuid, "1", bare]
