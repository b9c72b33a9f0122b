"""A program on a CPU: results, memory errors with their places, poison, restored storages."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest

from forge.evalpool.judge.execute.child_cpu import Session
from forge.evalpool.judge.execute.cpu import CpuExecutor
from forge.evalpool.judge.execute.outcome import ExecutionFailed
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import Op, Program, TensorUse, Value
from tests.evalpool.execute.programs import launch, program

X = np.arange(256, dtype=np.float32)


def executor(one: Program) -> CpuExecutor:
    found = CpuExecutor(one, [X.copy().view(np.uint8)], {})
    found.init()
    return found


def test_a_launch_computes_and_its_costs_are_counted() -> None:
    one = executor(program(launch(256)))
    outcome = one.forward()
    assert np.array_equal(one.read(1).view(np.float32), X)
    (cost,) = outcome.launches
    assert (cost.bytes_loaded, cost.bytes_stored, cost.flops) == (1024, 1024, 0)
    assert outcome.faults == []


def test_an_access_out_of_bounds_is_reported_with_element_and_line() -> None:
    one = executor(program(launch(300, size=300)))
    with pytest.raises(ExecutionFailed) as caught:
        one.forward()
    assert caught.value.kind == "out_of_bounds"
    assert caught.value.line == 112
    assert "load of element 256 of x (input 0, float32 256)" in caught.value.message
    assert "program 4" in caught.value.message


def test_an_output_that_is_partly_unwritten_is_reported() -> None:
    (fault,) = executor(program(launch(200))).forward().faults
    assert fault.kind == "unwritten"
    assert "56 of 256 elements of the output" in fault.message
    assert "(200,)" in fault.message


def test_an_uninitialised_read_counts_if_the_output_depends_on_it() -> None:
    nodes = (launch(200, target=2), launch(256, source=2))
    outcome = executor(program(*nodes, num_temporaries=1)).forward()
    assert [one.kind for one in outcome.faults] == ["uninitialised"]
    assert "element 200 of x (temporary" in outcome.faults[0].message


def test_an_uninitialised_read_that_no_output_depends_on_is_no_fault() -> None:
    nodes = (launch(200, target=2), launch(256, source=2, target=3), launch(256))
    assert executor(program(*nodes, num_temporaries=2)).forward().faults == []


def test_op_nodes_run_by_torch_and_initialise_their_results() -> None:
    uses = (TensorUse(tensor=0), TensorUse(tensor=0))
    nodes = (Op(name="aten.add.Tensor", arguments=uses, results=(2,)), launch(256, source=2))
    one = executor(program(*nodes, num_temporaries=1))
    assert one.forward().faults == []
    assert np.array_equal(one.read(1).view(np.float32), 2 * X)


def test_an_operation_beyond_the_table_is_refused() -> None:
    node = Op(name="aten.from_file.default", arguments=("/etc/passwd",), results=(2,))
    with pytest.raises(ExecutionFailed, match="not allowed"):
        executor(program(node, num_temporaries=1)).forward()


def test_a_value_that_differs_from_its_answer_ends_the_call() -> None:
    uses = (TensorUse(tensor=0),)
    total = Op(name="aten.sum.default", arguments=uses, results=(2,))
    one = program(total, Value(tensor=2, answer=1.0, line=9), num_temporaries=1)
    tensors = (
        *one.tensors[:2],
        type(one.tensors[2])(storage=2, offset=0, shape=(), strides=(), dtype="float32"),
    )
    with pytest.raises(ExecutionFailed, match="program was made for") as caught:
        executor(Program(**{**_fields(one), "tensors": tensors})).forward()
    assert caught.value.line == 9


def _fields(one: Program) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


def test_a_session_answers_with_forms_and_fills_the_slots() -> None:
    memory = mmap.mmap(-1, 2048)
    memory[:1024] = X.tobytes()
    request = {
        "tensors": [["float32", [256], 0], ["float32", [256], 1024]],
        "state": [],
        "init": ["list", []],
        "sets": [["list", [["tensor", 0]]]],
        "slots": [1],
    }
    session = Session(request=request, memory=memory)
    done = session.call({}, program=wire.dumps(program(launch(256))))
    assert done["outputs"] == [["Tensor", "float32", [256]]]
    assert done["num_launches"] == 1
    assert memory[1024:] == X.tobytes()
    memory[:4] = np.float32(-1).tobytes()
    session.call({"set": 0, "slots": [1]})
    assert memory[1024:1028] == np.float32(-1).tobytes()
