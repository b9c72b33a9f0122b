"""Memory of a judgement on a CPU: nothing of one call is left for the next."""

from __future__ import annotations

import mmap

from forge.evalpool.judge.channel.shm import TensorSpec
from forge.evalpool.judge.trial.cpu_memory import CpuMemory
from forge.evalpool.judge.trial.references import InputSet, Reference

SPEC = TensorSpec("float32", (4,))
INPUT, SLOT, PARAMETER = 0, 1, 2
CONTENT = b"\1" * 16


def test_a_call_finds_parameters_as_the_reference_has_them() -> None:
    one = InputSet(
        tree=["list", [["tensor", INPUT]]],
        places=(INPUT,),
        contents=(CONTENT,),
        slots=(SLOT,),
        expected=(),
        changed={},
        variant="given",
    )
    reference = Reference(
        request={"state": [["mean", PARAMETER]]},
        image=b"\0" * 32 + b"\2" * 16,
        starts=[0, 16, 32],
        specs=[SPEC] * 3,
        sets=[one],
        is_sequence=False,
    )
    with mmap.mmap(-1, 48) as memory:
        mapped = CpuMemory(reference, memory)
        memory[:] = b"\7" * 48
        mapped.load(0)
        assert memory[:16] == CONTENT
        assert memory[32:] == b"\2" * 16
