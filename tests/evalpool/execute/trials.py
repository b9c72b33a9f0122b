"""The judge's side of a case on a card: a block of memory with inputs and slots, calls, answers."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from forge.evalpool.judge.driver import gpu_memory
from forge.evalpool.judge.execute.call import BLOCK_ALIGNMENT_BYTES, Call, RunReport
from forge.evalpool.judge.execute.executors import Executor
from forge.evalpool.judge.program.format import Origin
from tests.evalpool.execute.cases import Case
from tests.evalpool.execute.made_programs import data_of


@dataclass(slots=True)
class Laid:
    """A case in a block, `num_sets` times."""

    case: Case
    num_sets: int = 1
    block: gpu_memory.Block = field(init=False)
    sources: list[tuple[int, torch.Tensor]] = field(init=False)
    """Storages with their content."""

    def __post_init__(self) -> None:
        program = self.case.program
        self.sources = [
            (number, self.case.inputs[one.index])
            for number, one in enumerate(program.storages)
            if one.origin is Origin.INPUT
        ]
        self.block = gpu_memory.create_block(self.set_bytes * self.num_sets)
        for number in range(self.num_sets):
            self.write(number)

    @property
    def set_bytes(self) -> int:
        return self._places()[-1]

    def _places(self) -> list[int]:
        program = self.case.program
        sizes = [content.nbytes for _, content in self.sources]
        sizes += [self._like(number).nbytes for number in program.outputs]
        places = [0]
        for size in sizes:
            aligned = -(-max(size, 1) // BLOCK_ALIGNMENT_BYTES) * BLOCK_ALIGNMENT_BYTES
            places.append(places[-1] + aligned)
        return places

    def _like(self, number: int) -> torch.Tensor:
        tensor = self.case.program.tensors[number]
        return torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype), device="meta")

    def write(self, number: int) -> None:
        memory = self.block.bytes()
        for (_, content), place in zip(self.sources, self._places(), strict=False):
            start = number * self.set_bytes + place
            memory[start : start + content.nbytes].copy_(content.reshape(-1).view(torch.uint8))
        torch.cuda.synchronize()

    def call(self, number: int = 0, *, slack: int = 0xFF) -> Call:
        start = number * self.set_bytes
        places = [start + place for place in self._places()]
        fills = tuple(
            (storage, place) for (storage, _), place in zip(self.sources, places, strict=False)
        )
        slots = places[len(self.sources) :]
        takes = tuple(zip(self.case.program.outputs, slots, strict=False))
        return Call(fills=fills, takes=takes, intact=fills, seed=7, slack=slack)

    def outputs(self, number: int = 0) -> list[torch.Tensor]:
        memory = self.block.bytes()
        slots = self._places()[len(self.sources) :]
        found = []
        for tensor, place in zip(self.case.program.outputs, slots, strict=False):
            like = self._like(tensor)
            start = number * self.set_bytes + place
            flat = memory[start : start + like.nbytes].view(like.dtype)
            found.append(flat.view(like.shape).clone())
        return found

    def clear(self) -> None:
        """Puts zeros into all slots."""
        memory = self.block.bytes()
        for number in range(self.num_sets):
            first = self._places()[len(self.sources)]
            memory[number * self.set_bytes + first : (number + 1) * self.set_bytes].zero_()
        torch.cuda.synchronize()

    def load(self, executor: Executor, *, limit_s: float = 20.0) -> None:
        executor.load(
            self.case.program,
            data_of(self.case.program),
            self.case.made.binaries,
            deadline=time.monotonic() + limit_s,
            block_fd=self.block.fd,
            block_bytes=self.block.num_bytes,
        )

    def run(
        self, executor: Executor, call: Call | None = None, *, placement: str = "start"
    ) -> RunReport:
        """One call, in a placement; by itself the call on the first set."""
        placed = replace(call or self.call(), placement=placement)
        (report,) = executor.run([placed], deadline=seconds(60))
        return report

    def error(self, outputs: Sequence[torch.Tensor]) -> float:
        """Largest error over the root mean square of what is right."""
        want = self.case.expected(*self.case.inputs)
        return max(map(_error, outputs, want))

    def close(self) -> None:
        self.block.close()


def seconds(limit_s: float) -> Any:
    """A deadline."""
    return time.monotonic() + limit_s


CHUNK = 1 << 26
"""Elements that are compared at once."""


def _error(got: torch.Tensor, right: torch.Tensor) -> float:
    assert got.shape == right.shape
    flat, other = got.reshape(-1), right.reshape(-1)
    squares, worst = 0.0, 0.0
    for start in range(0, flat.numel(), CHUNK):
        a, b = flat[start : start + CHUNK].double(), other[start : start + CHUNK].double()
        squares += float(b.square().sum())
        differences = (a - b).abs()
        worst = max(worst, float(differences.nan_to_num(nan=float("inf")).max()))
    return worst / ((squares / flat.numel()) ** 0.5 + 1e-12)
