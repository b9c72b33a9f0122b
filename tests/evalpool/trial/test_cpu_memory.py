"""Memory of a judgement on a CPU: nothing of one call is left for the next."""

from __future__ import annotations

import mmap
import struct

import pytest

from forge.evalpool.judge.channel.shm import TensorSpec
from forge.evalpool.judge.numbers.compare import Expected
from forge.evalpool.judge.trial.cpu_memory import CpuMemory
from forge.evalpool.judge.trial.draws.reference import InputSet, Reference

SPEC = TensorSpec("float32", (4,))
INPUT, PARAMETER = 0, 2
CONTENT = b"\1" * 16
TWOS = struct.pack("4f", *[2.0] * 4)


def reference_of(state: dict[str, Expected]) -> Reference:
    """A reference with an input and a parameter of four floats, and a tensor between them."""
    one = InputSet(
        tree=["list", [["tensor", INPUT]]],
        places=(INPUT,),
        contents=(CONTENT,),
        slots=(),
        expected=(),
        changed={},
        variant="given",
        state=state,
    )
    return Reference(
        request={"state": [["mean", PARAMETER]], "num_bytes": 48},
        contents=[CONTENT, bytes(16), TWOS],
        starts=[0, 16, 32],
        specs=[SPEC] * 3,
        sets=[one],
        is_sequence=False,
    )


def test_a_call_finds_parameters_as_the_reference_has_them() -> None:
    reference = reference_of({})
    with mmap.mmap(-1, 48) as memory:
        mapped = CpuMemory(reference, memory)
        memory[:] = b"\7" * 48
        mapped.load(0)
        assert memory[:16] == CONTENT
        assert memory[32:] == TWOS


@pytest.mark.parametrize("name", ["bn.running_mean", "keys"])
@pytest.mark.parametrize("left", [2.0, 0.5, 0.6])
def test_a_changed_parameter_is_left_as_by_the_reference_and_statistics_may_stay(
    name: str, left: float
) -> None:
    of = struct.pack("4f", *[0.5] * 4)
    expected = Expected.make(SPEC, of, error=b"", precision="fp32")
    reference = reference_of({name: expected})
    reference.request["state"] = [[name, PARAMETER]]
    with mmap.mmap(-1, 48) as memory:
        mapped = CpuMemory(reference, memory)
        mapped.load(0)
        memory[32:] = struct.pack("4f", *[left] * 4)
        mapped.take()
        is_right = left == 0.5 or (left == 2.0 and name != "keys")
        assert (mapped.mismatch(0) is None) == is_right
