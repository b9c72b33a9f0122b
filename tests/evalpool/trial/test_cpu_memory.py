"""Memory of a judgement on a CPU: two layouts over one draw, and nothing of a call for the next."""

import mmap
import struct
from collections.abc import Sequence
from typing import Any

import pytest

from forge.evalpool.judge.channel.shm import LayoutError, TensorSpec
from forge.evalpool.judge.trial.cpu_trial import CpuMemory
from forge.evalpool.judge.trial.draws import Builder, HostDraw
from forge.evalpool.judge.trial.judgement import Left, Results

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


def content_of(
    layout: dict[str, Any], specs: Sequence[TensorSpec] = SPECS, data: Sequence[Any] = DATA
) -> HostDraw:
    return HostDraw(Builder(specs, precision="fp32").build(layout), data)


def memory_of(content: HostDraw, *, is_wide: bool = False) -> CpuMemory:
    found = CpuMemory(content, mmap.mmap(-1, content.memory_bytes))
    found.lay(is_wide=is_wide)
    found.memory[:] = b"\7" * len(found.memory)
    found.load(0)
    return found


def part(memory: CpuMemory, place: int) -> bytes:
    return bytes(memory.layout.part(memoryview(memory.memory), place))


def left_by(memory: CpuMemory, place: int, content: bytes = b"") -> Left:
    """The result of a call that writes to a place."""
    start = memory.layout.starts[place]
    memory.memory[start : start + len(content)] = content
    return memory.left(0, returned=())


@pytest.mark.parametrize("is_wide", [False, True])
def test_a_set_lies_in_both_layouts_under_the_same_numbers(is_wide: bool) -> None:
    memory = memory_of(content_of(layout_of()), is_wide=is_wide)
    one = memory.content.draw.sets[0]
    (x, n), (slot,) = one.places, one.slots
    (_, scale) = memory.content.draw.request["state"][0]
    real = struct.unpack("4f", DATA[X])
    wanted = struct.pack("4d", *real) if is_wide else DATA[X]
    assert part(memory, x) == wanted
    assert part(memory, n) == DATA[N]
    assert part(memory, scale) == (struct.pack("4d", *[2.0] * 4) if is_wide else DATA[STATE])
    assert set(part(memory, slot)) == {0xFF}
    assert left_by(memory, slot).is_kept
    assert not left_by(memory, x, b"\1").is_kept


@pytest.mark.parametrize(("is_wide", "lost", "is_right"), [
    (True, 1e-9, True), (True, 1e-5, False), (False, 1e-5, True), (False, 1e-3, False),
])  # fmt: skip
def test_each_layout_has_its_own_comparison(is_wide: bool, lost: float, is_right: bool) -> None:
    memory = memory_of(content_of(layout_of()), is_wide=is_wide)
    results = Results(content=memory.content, is_wide=is_wide)
    (slot,) = memory.content.draw.sets[0].slots
    assert results.is_unwritten(left_by(memory, slot))
    written = struct.pack("4d" if is_wide else "4f", *[one * (1 + lost) for one in (1, 2, 3, 4)])
    left = left_by(memory, slot, written)
    assert (results.mismatch(left) is None) == is_right
    assert not results.is_unwritten(left)


@pytest.mark.parametrize("name", ["bn.running_mean", "keys"])
@pytest.mark.parametrize("left", [2.0, 0.5, 0.6])
def test_a_changed_parameter_is_left_as_by_the_reference_and_statistics_may_stay(
    name: str, left: float
) -> None:
    halves = [*DATA, struct.pack("4f", *[0.5] * 4)]
    layout = layout_of(state={name: len(SPECS)}, outputs=[], wide=[])
    memory = memory_of(content_of(layout, [*SPECS, SPECS[X]], halves))
    (_, place) = memory.content.draw.request["state"][0]
    is_right = left == 0.5 or (left == 2.0 and name != "keys")
    found = left_by(memory, place, struct.pack("4f", *[left] * 4))
    assert (Results(content=memory.content).mismatch(found) is None) == is_right


@pytest.mark.parametrize("changes", [
    {"wide": [RESULT]}, {"wide": [N]}, {"wide": [WIDE, WIDE]}, {"plants": [[2, 0, "sign"]]},
    {"plants": [[0, 4, "sign"]]}, {"plants": [["0", 0, "sign"]]},
])  # fmt: skip
def test_a_layout_with_other_results_or_plants_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(LayoutError):
        content_of(layout_of(**changes))


def test_an_integer_may_be_that_of_float64_though_none_is_asked_in_it() -> None:
    made = layout_of(outputs=[N], wide=[], exact=[len(SPECS)]) | {"kinds": []}
    exact = struct.pack("2q", 7, 9)
    content = content_of(made, [*SPECS, SPECS[N]], [*DATA, exact])
    for got, is_right in ((exact, True), (struct.pack("2q", 7, 10), False)):
        found = content.mismatch(got, N, None, name="output", operands=tuple)
        assert (found is None) == is_right
    with pytest.raises(LayoutError):
        content_of(layout_of(outputs=[N], wide=[], exact=[WIDE]) | {"kinds": []})
