"""Runs TTIR texts on numpy arrays. Texts in `texts/` are Triton's; others are written here."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.ttir.evaluate import Address, Order, Report, launch
from forge.evalpool.judge.ttir.memory.storages import Memory, Storage
from forge.evalpool.judge.ttir.plan import plan_of

TEXTS = Path(__file__).parent / "texts"
KINDS = {"f4": "f32", "f2": "f16", "i4": "i32", "i8": "i64", "f8": "f64", "i1": "i8"}


def text(name: str) -> str:
    """A kernel as Triton 3.9 prints it."""
    return (TEXTS / f"{name}.mlir").read_text()


def memory_of(*arrays: NDArray[Any]) -> Memory:
    """A storage for each array, over its own bytes."""
    return Memory(
        [Storage(data=array.reshape(-1).view(np.uint8), granule=array.itemsize) for array in arrays]
    )


def run(
    source: str,
    grid: int | tuple[int, int, int],
    *arguments: Any,
    name: str = "k",
    order: Order = Order.NATURAL,
    memory: Memory | None = None,
    **options: Any,
) -> Report:
    """Launches a kernel; arrays among the arguments are passed by address, and are the storages
    unless there is a `memory`."""
    arrays = [one for one in arguments if isinstance(one, np.ndarray)]
    memory = memory or memory_of(*arrays)
    numbers = iter(range(len(arrays)))
    values = [Address(next(numbers)) if isinstance(one, np.ndarray) else one for one in arguments]
    shape = (grid, 1, 1) if isinstance(grid, int) else grid
    return launch(plan_of(source), name, shape, values, memory, order=order, **options)


def kernel(parameters: str, body: str) -> str:
    """A module with one kernel `k`; `%pid`, `%lane` (16 lanes) and `%i` (pid * 16 + lane) exist."""
    head = """
    %c16 = arith.constant 16 : i32
    %pid = tt.get_program_id x : i32
    %base = arith.muli %pid, %c16 : i32
    %lane = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32>
    %bases = tt.splat %base : i32 -> tensor<16xi32>
    %i = arith.addi %bases, %lane : tensor<16xi32>
"""
    lines = f"module {{\n  tt.func public @k({parameters}) attributes {{noinline = false}} {{"
    return f"{lines}{head}{body}\n    tt.return\n  }}\n}}\n"


def pointers(name: str, index: str = "%i", kind: str = "f32", lanes: int = 16) -> str:
    """`%name.at`: addresses of elements of `%name`."""
    block, numbers = f"tensor<{lanes}x!tt.ptr<{kind}>>", f"tensor<{lanes}xi32>"
    return f"""
    %{name}.all = tt.splat %{name} : !tt.ptr<{kind}> -> {block}
    %{name}.at = tt.addptr %{name}.all, {index} : {block}, {numbers}
"""
