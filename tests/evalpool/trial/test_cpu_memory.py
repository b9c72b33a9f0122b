"""Memory of a judgement on a CPU: two layouts over one draw, and nothing of a call for the next."""

from __future__ import annotations

import mmap
import struct
from typing import Any

import pytest

from forge.evalpool.judge.channel.shm import LayoutError, TensorSpec
from forge.evalpool.judge.trial.cpu_memory import CpuMemory
from forge.evalpool.judge.trial.draws.build import Builder
from forge.evalpool.judge.wide.compare import agrees

SPECS = [
    TensorSpec("float32", (4,)),
    TensorSpec("int64", (2,)),
    TensorSpec("float32", (4,)),
    TensorSpec("float32", (4,)),
    TensorSpec("float64", (4,)),
]
X, N, STATE, RESULT, WIDE = range(5)
DATA: list[Any] = [
    struct.pack("4f", 0.1, 2, float("nan"), 4),
    struct.pack("2q", 7, 8),
    struct.pack("4f", *[2.0] * 4),
    struct.pack("4f", 1, 2, 3, 4),
    struct.pack("4d", 1, 2, 3, 4),
]


def layout_of(*, state: dict[str, int] | None = None, **changes: Any) -> dict[str, Any]:
    """An oracle's layout of a problem with two inputs, a parameter and an output."""
    one = {
        "inputs": ["list", [["tensor", X], ["tensor", N]]],
        "outputs": [RESULT],
        "changed": [],
        "state": [[name, part] for name, part in (state or {}).items()],
        "wide": [WIDE],
        "plants": [[0, 3, "sign"]],
        "asks_real": True,
        **changes,
    }
    return {
        "init": ["list", []],
        "state": [[name, STATE] for name in (state or {"scale": 0})],
        "sets": [one],
        "order": [],
        "held": [],
        "form": "",
        "names": [],
        "flops": 0,
        "kinds": ["float32"],
    }


def memory_of(layout: dict[str, Any], *, is_wide: bool) -> CpuMemory:
    reference = Builder(SPECS, DATA, precision="fp32").build(layout)
    found = CpuMemory(reference, mmap.mmap(-1, reference.memory_bytes))
    found.lay(is_wide=is_wide)
    return found


def part(memory: CpuMemory, place: int) -> bytes:
    return bytes(memory.layout.part(memoryview(memory.memory), place))


@pytest.mark.parametrize("is_wide", [False, True])
def test_a_set_lies_in_both_layouts_under_the_same_numbers(is_wide: bool) -> None:
    memory = memory_of(layout_of(), is_wide=is_wide)
    memory.memory[:] = b"\7" * len(memory.memory)
    memory.load(0)
    (x, n), (slot,) = memory.reference.sets[0].places, memory.reference.sets[0].slots
    (_, scale) = memory.reference.request["state"][0]
    real = struct.unpack("4f", DATA[X])
    wanted = struct.pack("4d", *real) if is_wide else DATA[X]
    assert part(memory, x) == wanted
    assert part(memory, n) == DATA[N]
    assert part(memory, scale) == (struct.pack("4d", *[2.0] * 4) if is_wide else DATA[STATE])
    assert set(part(memory, slot)) == {0xFF}
    assert memory.are_inputs_kept(0)
    memory.memory[memory.layout.starts[x]] ^= 1
    assert not memory.are_inputs_kept(0)


@pytest.mark.parametrize(("is_wide", "lost", "is_right"), [
    (True, 1e-9, True), (True, 1e-5, False), (False, 1e-5, True), (False, 1e-3, False),
])  # fmt: skip
def test_each_layout_has_its_own_comparison(is_wide: bool, lost: float, is_right: bool) -> None:
    memory = memory_of(layout_of(), is_wide=is_wide)
    memory.load(0)
    (slot,) = memory.reference.sets[0].slots
    left = struct.pack("4d" if is_wide else "4f", *[one * (1 + lost) for one in (1, 2, 3, 4)])
    start = memory.layout.starts[slot]
    memory.memory[start : start + len(left)] = left
    memory.take()
    assert (memory.mismatch(0) is None) == is_right
    assert not memory.is_unwritten(0)


@pytest.mark.parametrize("name", ["bn.running_mean", "keys"])
@pytest.mark.parametrize("left", [2.0, 0.5, 0.6])
def test_a_changed_parameter_is_left_as_by_the_reference_and_statistics_may_stay(
    name: str, left: float
) -> None:
    halves = [*DATA, struct.pack("4f", *[0.5] * 4)]
    specs = [*SPECS, SPECS[X]]
    layout = layout_of(state={name: len(SPECS)}, outputs=[], wide=[])
    reference = Builder(specs, halves, precision="fp32").build(layout)
    memory = CpuMemory(reference, mmap.mmap(-1, reference.memory_bytes))
    memory.load(0)
    (_, place) = reference.request["state"][0]
    start = memory.layout.starts[place]
    memory.memory[start : start + 16] = struct.pack("4f", *[left] * 4)
    memory.take()
    is_right = left == 0.5 or (left == 2.0 and name != "keys")
    assert (memory.mismatch(0) is None) == is_right


@pytest.mark.parametrize("changes", [
    {"wide": [RESULT]}, {"wide": [N]}, {"wide": [WIDE, WIDE]}, {"plants": [[2, 0, "sign"]]},
    {"plants": [[0, 4, "sign"]]}, {"plants": [["0", 0, "sign"]]},
])  # fmt: skip
def test_a_layout_with_other_results_or_plants_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((LayoutError, ValueError)):
        Builder(SPECS, DATA, precision="fp32").build(layout_of(**changes))


def test_an_integer_may_be_that_of_float64_though_none_is_asked_in_it() -> None:
    made = layout_of(outputs=[N], wide=[], exact=[len(SPECS)]) | {"kinds": []}
    exact = struct.pack("2q", 7, 9)
    built = Builder([*SPECS, SPECS[N]], [*DATA, exact], precision="bf16").build(made)
    assert agrees(built.sets[0].expected[0], exact)
    assert not agrees(built.sets[0].expected[0], struct.pack("2q", 7, 10))
    with pytest.raises(LayoutError):
        Builder(SPECS, DATA, precision="bf16").build(
            layout_of(outputs=[N], wide=[], exact=[WIDE]) | {"kinds": []}
        )
