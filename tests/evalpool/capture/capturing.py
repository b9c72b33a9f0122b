"""Captures candidates in the test's own process, which answers as before afterwards."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge.evalpool.judge.capture.session import capture
from forge.evalpool.judge.capture.stage import Stage
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import Choice, Launch, Node, Op, Program, TensorUse

HEADER = "import torch\nimport triton\nimport triton.language as tl\n"
SCALE = (
    HEADER
    + """
@triton.jit
def scale(x, y, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)

def scaled(x, factor=2.0):
    y = torch.empty_like(x)
    scale[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), factor, BLOCK=64)
    return y

"""
)
"""A kernel and a wrapper; candidates add their class."""
_numbers = itertools.count()
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # as in the zygote


def request(
    *,
    inputs: list[Any],
    init: list[Any] | None = None,
    state: dict[str, list[int]] | None = None,
    entry_point: str = "ModelNew",
    **more: Any,
) -> dict[str, Any]:
    """The judge's request.

    Args:
        inputs: Shapes of float32 tensors, or `(dtype, shape)`; anything else is a plain value.
        state: Shapes of the reference's float32 parameters, by name, in the order of their making.
    """
    tensors: list[Any] = []

    def tree(value: Any) -> list[Any]:
        if isinstance(value, list):
            tensors.append(["float32", value, 0])
            return ["tensor", len(tensors) - 1]
        if isinstance(value, tuple):
            tensors.append([value[0], value[1], 0])
            return ["tensor", len(tensors) - 1]
        return ["value", value]

    names = [[name, tree(shape)[1]] for name, shape in (state or {}).items()]
    return {
        "entry_point": entry_point,
        "init": ["list", [["value", one] for one in init or []]],
        "state": names,
        "order": [name for name, _ in names],
        "inputs": ["list", [tree(one) for one in inputs]],
        "tensors": tensors,
        **more,
    }


def captured(folder: Path, code: str, *, ask: Any = None, **asked: Any) -> Program:
    """The program of a candidate, through its bytes. Raises CaptureFailed."""
    file = folder / f"candidate{next(_numbers)}.py"
    try:
        program = capture(request(**asked), code, ask=ask, file=str(file))
        return wire.loads(wire.dumps(program))
    finally:
        Stage.get().end()


def launches(program: Program) -> list[Launch]:
    return launches_in(program.forward)


def launches_in(nodes: Sequence[Node]) -> list[Launch]:
    return [node for node in nodes if isinstance(node, Launch)]


def choices(program: Program) -> list[Choice]:
    return [node for node in program.forward if isinstance(node, Choice)]


def uses(launch: Launch) -> list[int]:
    """Numbers of the tensors among a launch's arguments."""
    return [one.tensor for one in launch.arguments if isinstance(one, TensorUse)]


def ops(program: Program) -> list[str]:
    """Names of the operations of forward."""
    return [node.name for node in program.forward if isinstance(node, Op)]
