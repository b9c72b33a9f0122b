"""A small problem with its kernel, and processes of judges that judge them."""

from pathlib import Path

import anyio

from forge.records.problem import Problem, Split

ROOT = Path(__file__).parents[2]
SOURCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1
def get_inputs():
    return [torch.randn(64)]
def get_init_inputs():
    return []
"""
CODE = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(1,)](x, y, x.numel(), BLOCK=64)
        return y
"""
PROBLEM = Problem(problem_id="p", source=SOURCE, family="f", level=1, split=Split.GRPO)


class Observer:
    """Remembers the pids of judges."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self._ended: set[int] = set()

    def started(self, name: str, *, pid: int, devices: str, log_path: Path) -> None:
        self.pids.append(pid)

    def ended(self, name: str, *, pid: int, reason: str) -> None:
        self._ended.add(pid)

    def alive(self) -> list[int]:
        return [pid for pid in self.pids if pid not in self._ended]


def descendants(pid: int) -> set[int]:
    """Processes below one, itself included, with their children's children."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            )
        except OSError:
            continue
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        found |= fresh
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
    return found


def alive(pids: set[int]) -> set[int]:
    """Processes that still run; zombies do not."""
    running = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z":
            running.add(pid)
    return running


async def wait_until_gone(pids: set[int]) -> None:
    with anyio.fail_after(5):
        while alive(pids):  # noqa: ASYNC110  # other processes set no event
            await anyio.sleep(0.02)
