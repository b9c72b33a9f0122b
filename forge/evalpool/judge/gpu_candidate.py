"""What one candidate shares with the judge on a GPU: inputs, parameters and output slots.

Called by `gpu_trial.py`. One block of memory a candidate, which it sees at the same address in
every call; the contents come from a draw that it never maps (`gpu_layout.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.gpu_layout import dtype_name, spec_of, view
from forge.evalpool.judge.gpu_memory import create_block
from forge.evalpool.judge.shm import offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.gpu_layout import GpuReference

MANY, MIX_BLOCK = 65_536, 256
"""Above so many elements coins are thrown for blocks of this many, not for each."""


class CandidateMemory:
    """What one candidate shares with the judge: inputs, parameters, output slots, in one block."""

    def __init__(self, reference: GpuReference) -> None:
        self._reference = reference
        first = reference.sets[0]
        chosen = [*first.inputs, *reference.state, *first.outputs]
        likes = [reference.tensors[index] for index in chosen]
        starts, num_bytes = offsets([spec_of(tensor) for tensor in likes])
        self.block = create_block(num_bytes)
        try:
            self._arrange(likes, starts)
        except BaseException:
            self.block.close()
            raise

    def _arrange(self, likes: list[torch.Tensor], starts: Sequence[int]) -> None:
        reference = self._reference
        first = reference.sets[0]
        memory = self.block.bytes()
        tensors = [
            view(memory, spec_of(like), start) for like, start in zip(likes, starts, strict=True)
        ]
        num_inputs, num_state = len(first.inputs), len(reference.state)
        self.inputs = tensors[:num_inputs]
        self.state = tensors[num_inputs : num_inputs + num_state]
        self.slots = tensors[num_inputs + num_state :]
        self.layout = [
            [dtype_name(tensor), list(tensor.shape), start]
            for tensor, start in zip(tensors, starts, strict=True)
        ]
        for target, index in zip(self.state, reference.state, strict=True):
            target.copy_(reference.tensors[index])

    def load(self, number: int) -> None:
        """Puts input set `number` in place, and NaN into the slots."""
        for target, index in zip(self.inputs, self._reference.sets[number].inputs, strict=True):
            target.copy_(self._reference.tensors[index])
        self._clear()

    def load_mixed(self, first: int, second: int) -> None:
        """The same with blocks of two sets, by fresh coins: contents that nobody has seen, yet of
        the same values. Right outputs are not known."""
        sets, tensors = self._reference.sets, self._reference.tensors
        for target, a, b in zip(self.inputs, sets[first].inputs, sets[second].inputs, strict=True):
            mix(tensors[a].view(-1), tensors[b].view(-1), out=target.view(-1))
        self._clear()

    def _clear(self) -> None:
        for slot in self.slots:
            slot.view(-1).view(torch.uint8).fill_(0xFF)

    def are_inputs_same(self, number: int) -> bool:
        """Whether inputs and parameters are as they were loaded."""
        one = self._reference.sets[number]
        changed = {change.number for change in one.changed}
        pairs = [
            *(
                pair
                for at, pair in enumerate(zip(self.inputs, one.inputs, strict=True))
                if at not in changed
            ),
            *zip(self.state, self._reference.state, strict=True),
        ]
        return all(_same_bytes(ours, self._reference.tensors[index]) for ours, index in pairs)

    def close(self) -> None:
        self.block.close()


def mix(first: torch.Tensor, second: torch.Tensor, *, out: torch.Tensor) -> None:
    """Blocks of either, [n] each; what is left over is of the first."""
    block = 1 if out.numel() <= MANY else MIX_BLOCK
    whole = out.numel() // block * block
    coins = torch.rand(whole // block, 1, device=out.device) < 0.5
    a, b, mixed = (one[:whole].view(-1, block) for one in (first, second, out))
    torch.where(coins, a, b, out=mixed)
    out[whole:].copy_(first[whole:])


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    wide = torch.int64 if a.nbytes % 8 == 0 else torch.uint8  # torch.equal makes a bool a number
    return torch.equal(a.reshape(-1).view(wide), b.reshape(-1).view(wide))
