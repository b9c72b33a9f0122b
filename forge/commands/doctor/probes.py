# pyright: standard
"""`python -m forge.commands.doctor.probes CONFIG.json`: a child of `forge doctor` that tries one
thing a run needs, and reports in lines.

Started by `probe.py` with a deadline, `imports` also in the interpreter of an engine. Imports torch
and triton once the GPU's lease is held, and nothing of forge but `process` and parts of the judge.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from time import monotonic  # the real one: a capture replaces that of the module
from typing import Any

from forge.errors import Stalled
from forge.process.environment import RANKS_PARENT_VARIABLE, rank_envs
from forge.process.gpu_locks import GpuLease
from forge.process.lease import collector_paused, die_with_parent, hold_lease

LEASE_S = 20.0
"""Maximum wait for a judge that times kernels on the GPU."""
MAX_ERROR = 300
"""Characters of an error that are reported; the log has all."""
NUM_VALUES = 1 << 20
SIZE = 64
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def multiply(a, b, c, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    offsets = index[:, None] * SIZE + index[None, :]
    tl.store(c + offsets, tl.dot(tl.load(a + offsets), tl.load(b + offsets)))


def ModelNew(a, b):
    c = torch.empty_like(a)
    multiply[(1,)](a, b, c, SIZE=a.shape[0])
    return c
"""


class AnswerFile:
    """JSON lines in a file, which survive a crash of the process. A line with `doing` says what
    comes next, so that a crash or a hang has a place; one with `error` is the exception that ended
    the probe. Each line is one write, so several processes may share the file."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.doing = ""

    def begin(self, doing: str, **values: Any) -> None:
        """Append a line that says what this process does next."""
        self.doing = doing
        self.say(doing=doing, **values)

    def say(self, **values: Any) -> None:
        os.write(self._fd, f"{json.dumps(values)}\n".encode())


def import_all(config: Mapping[str, Any], answer: AnswerFile) -> None:
    """Import each target. Packages such as transformers load their parts on first use, so a target
    may name a part: `trl.trainer.grpo_trainer:GRPOTrainer`."""
    for name, target in config["targets"]:
        answer.begin(f"importing {name}", importing=name)
        module, _, attribute = target.partition(":")
        try:
            imported = importlib.import_module(module)
            if attribute:
                getattr(imported, attribute)
            version = getattr(importlib.import_module(name), "__version__", None)
            answer.say(name=name, version=str(version or _version(name) or "?"))
        except BaseException as error:  # a SystemExit or a Rust panic is a failed import too
            traceback.print_exc()
            is_missing = isinstance(error, ModuleNotFoundError) and error.name == name
            answer.say(name=name, fault=_describe(error), is_missing=is_missing)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def find_sandbox(_config: Mapping[str, Any], answer: AnswerFile) -> None:
    """Report the strongest level of the judges' sandbox, and what was refused above it. Each is
    tried in a process of one thread, as a judge's launcher does."""
    from forge.evalpool.judge.sandbox import enter

    answer.begin("trying the levels of the sandbox")
    try:
        level, refused = enter.find_level("auto")
    except OSError as error:
        answer.say(level=None, refused=[error.strerror])
    else:
        answer.say(level=level, refused=refused, serves_gpus=level in enter.ON_GPU)


def run_kernel(config: Mapping[str, Any], answer: AnswerFile) -> None:
    """Multiply two matrices with a Triton kernel, and compare. On the config's GPU it is compiled
    and run; without one it is captured, lowered to Triton's IR and evaluated, as in a judge. The
    inputs are small integers, so the sums are exact in any precision."""
    answer.begin("importing torch and triton")
    import numpy as np
    import torch

    numbers = np.arange(SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE)
    a, b = numbers % 7 - 3, numbers % 5 - 2
    gpus = [config["uuid"]] if config["uuid"] else []
    with gpus_held(gpus), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "candidate.py"
        if gpus:
            answer.begin("starting the GPU's driver")
            torch.cuda.init()
            from forge.evalpool.judge.driver.driver import Driver

            Driver("hip" if torch.version.hip else "cuda").require_calls()
            answer.begin("compiling and running a kernel")
            multiply = _multiply_on_gpu
        else:
            answer.begin("capturing and evaluating a kernel as a judge does")
            multiply = _multiply_as_judged
        started = monotonic()
        is_right = bool(np.array_equal(multiply(path, a, b), a @ b))
        answer.say(is_right=is_right, seconds=round(monotonic() - started, 2))


def _multiply_on_gpu(path: Path, a: Any, b: Any) -> Any:
    import torch

    path.write_text(KERNEL)
    sys.path.insert(0, str(path.parent))
    found = importlib.import_module(path.stem).ModelNew(
        torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    )
    return found.cpu().numpy()


def _multiply_as_judged(path: Path, a: Any, b: Any) -> Any:
    import numpy as np

    from forge.evalpool.judge.capture.session import capture
    from forge.evalpool.judge.execute.cpu import CpuExecutor

    request = {
        "entry_point": "ModelNew",
        "init": ["list", []],
        "state": [],
        "order": [],
        "inputs": ["list", [["tensor", 0], ["tensor", 1]]],
        "tensors": [["float32", [SIZE, SIZE], 0]] * 2,
    }
    program = capture(request, KERNEL, file=str(path))
    executor = CpuExecutor(program, [one.reshape(-1).view(np.uint8) for one in (a, b)], {})
    executor.init()
    executor.forward()
    return executor.tensors.read(program.outputs[0]).view(np.float32)


def add_up(config: Mapping[str, Any], answer: AnswerFile) -> None:
    """A sum over all GPUs by NCCL. Like a trainer (`forge/train/trainer/__main__.py`): this
    process, which holds the leases, starts one rank for each GPU in its own process group, under
    torchrun's environment variables."""
    with gpus_held(config["uuids"]):
        answer.begin("starting the ranks")
        argv, envs = [sys.executable, *sys.orig_argv[1:]], rank_envs(len(config["uuids"]))
        ranks = [subprocess.Popen(argv, env=env) for env in envs]
        failed = [rank.returncode for rank in ranks if rank.wait()]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(ranks)} ranks failed")


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


@contextmanager
def gpus_held(uuids: Iterable[str]) -> Generator[None]:
    """Share the GPUs with other work, so that no judge times a kernel meanwhile. Raises Stalled."""
    with ExitStack() as held:
        for uuid in uuids:
            held.enter_context(GpuLease(uuid).shared(timeout_s=LEASE_S))
        yield


PROBES = {"imports": import_all, "sandbox": find_sandbox, "kernel": run_kernel, "allreduce": add_up}


def main() -> None:
    """Hold the lease, run the config's probe, report its exception, and end this process without
    the interpreter's shutdown, in which CUDA and NCCL sometimes hang or crash."""
    parent = os.environ.pop(RANKS_PARENT_VARIABLE, None)
    if parent is not None:
        die_with_parent(int(parent))
    config, code = hold_lease(), 1
    answer = AnswerFile(config["answer_path"])
    try:
        with collector_paused():
            (PROBES[config["kind"]] if parent is None else be_rank)(config, answer)
        code = 0
    except Stalled as error:
        answer.say(busy=str(error))
    except Exception as error:  # boundary: any failure of the tried thing is the answer
        traceback.print_exc()
        answer.say(error=_describe(error), doing=answer.doing)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _describe(error: BaseException) -> str:
    """Class and first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:MAX_ERROR]


if __name__ == "__main__":
    main()
