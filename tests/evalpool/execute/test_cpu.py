"""A program on a CPU: results, memory errors with their places, poison, restored storages."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.shm import shared_memory
from forge.evalpool.judge.execute import child_cpu
from forge.evalpool.judge.execute.cpu import CpuExecutor, Poison
from forge.evalpool.judge.execute.outcome import ExecutionFailed
from forge.evalpool.judge.program import format as form
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.walk import alternative
from tests.evalpool.execute.made_programs import REQUEST, copy_kernel, launch, program

X = np.arange(256, dtype=np.float32)


def executor(one: form.Program) -> CpuExecutor:
    found = CpuExecutor(one, [X.copy().view(np.uint8)], {})
    found.init()
    return found


def test_an_access_out_of_bounds_is_reported_with_element_and_line() -> None:
    one = executor(program(launch(300, size=300)))
    with pytest.raises(ExecutionFailed) as caught:
        one.forward()
    assert caught.value.kind == "out_of_bounds"
    assert caught.value.line == 112
    assert "load of element 256 of x (input 0, 256)" in caught.value.message
    assert "program 4" in caught.value.message


def test_an_output_that_is_partly_unwritten_is_reported() -> None:
    (fault,) = executor(program(launch(200))).forward().faults
    assert fault.kind == "unwritten"
    assert "56 of 256 elements of output" in fault.message
    assert "output[200:] (the last 56 elements)" in fault.message
    assert "ends at 200 of 256" in fault.message
    assert fault.line == 115


def test_an_uninitialised_read_counts_if_the_output_depends_on_it() -> None:
    nodes = (launch(200, target=2), launch(256, source=2))
    outcome = executor(program(*nodes, num_temporaries=1)).forward()
    assert [one.kind for one in outcome.faults] == ["uninitialised"]
    assert "element 200 of x (temporary" in outcome.faults[0].message


def test_an_uninitialised_read_that_no_output_depends_on_is_no_fault() -> None:
    nodes = (launch(200, target=2), launch(256, source=2, target=3), launch(256))
    assert executor(program(*nodes, num_temporaries=2)).forward().faults == []


COUNT = """
module {
  tt.func public @copy(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>, %n: i32) attributes {noinline = false} {
    %true = arith.constant true
    %one = arith.constant 1.000000e+00 : f32
    %pid = tt.get_program_id x : i32
    %value = arith.sitofp %pid : i32 to f32
    %old = tt.atomic_rmw fadd, acq_rel, gpu, %x, %one, %true : (!tt.ptr<f32>, f32, i1) -> f32
    %place = arith.fptosi %old : f32 to i32
    %at = tt.addptr %y, %place : !tt.ptr<f32>, i32
    tt.store %at, VALUE : !tt.ptr<f32>
    tt.return
  }
}
"""
"""Each instance takes the next element of y, and writes a value there."""


@pytest.mark.parametrize(("value", "kinds"), [("%value", ["order"]), ("%one", [])])
def test_an_order_of_atomics_counts_if_the_output_depends_on_it(
    value: str, kinds: list[str]
) -> None:
    kernel = replace(copy_kernel(), ttir=COUNT.replace("VALUE", value), lines=())
    counted = replace(program(launch(0, size=64 * 256)), kernels=(kernel,))
    one = CpuExecutor(counted, [np.zeros(256, np.float32).view(np.uint8)], {})
    one.init()
    assert [fault.kind for fault in one.forward().faults] == kinds


def test_a_view_takes_no_memory_of_its_own() -> None:
    one = program(launch(256))
    wide = replace(one.tensors[0], shape=(1 << 40, 256), strides=(0, 1))
    found = executor(replace(one, tensors=(*one.tensors, wide))).tensors.torch(2)
    assert found.shape == (1 << 40, 256)


def test_op_nodes_run_by_torch_and_initialise_their_results() -> None:
    uses = (form.TensorUse(tensor=0), form.TensorUse(tensor=0))
    nodes = (form.Op(name="aten.add.Tensor", arguments=uses, results=(2,)), launch(256, source=2))
    one = executor(program(*nodes, num_temporaries=1))
    assert one.forward().faults == []
    assert np.array_equal(one.tensors.read(1).view(np.float32), 2 * X)


def test_an_operation_beyond_the_table_is_refused() -> None:
    node = form.Op(name="aten.from_file.default", arguments=("/etc/passwd",), results=(2,))
    with pytest.raises(ExecutionFailed, match="not allowed"):
        executor(program(node, num_temporaries=1)).forward()


def test_a_value_that_differs_from_its_answer_ends_the_call() -> None:
    uses = (form.TensorUse(tensor=0),)
    total = form.Op(name="aten.sum.default", arguments=uses, results=(2,))
    one = program(total, form.Value(tensor=2, answer=1.0, line=9), num_temporaries=1)
    scalar = replace(one.tensors[2], shape=(), strides=())
    with pytest.raises(ExecutionFailed, match="program was made for") as caught:
        executor(replace(one, tensors=(*one.tensors[:2], scalar))).forward()
    assert caught.value.line == 9


def test_the_child_serves_calls_and_failures_until_the_judge_hangs_up() -> None:
    ours, theirs = socket.socketpair()
    child = threading.Thread(target=_serve, args=(theirs,))
    child.start()
    with ours, shared_memory(2048) as (fd, memory):
        memory[:1024] = X.tobytes()
        with sealed(wire.dumps(program(launch(256)))) as right:
            frames.send(ours, Kind.CANDIDATE, REQUEST, fds=(fd, right))
            done = receive(ours)
        assert (done.kind, done.body["num_bytes"]) == (Kind.DONE, 2048)
        assert memory[1024:] == X.tobytes()
        with sealed(wire.dumps(program(launch(300, size=300)))) as wrong:
            frames.send(ours, Kind.CALL, {"set": 0, "slots": [1]}, fds=(wrong,))
            failed = receive(ours)
        assert (failed.kind, failed.body["type"]) == (Kind.FAILED, "out_of_bounds")
        assert failed.body["line"] == 112
    child.join(10)
    assert not child.is_alive()


def _serve(sock: socket.socket) -> None:
    with sock, pytest.raises(frames.PeerGone):
        child_cpu.main(sock)


def receive(sock: socket.socket) -> frames.Frame:
    return frames.receive(sock, deadline=time.monotonic() + 10, expected=(Kind.DONE, Kind.FAILED))


@contextmanager
def sealed(data: bytes) -> Iterator[int]:
    """A memfd with this content."""
    with shared_memory(len(data)) as (fd, memory):
        memory[:] = data
        yield fd


def test_every_alternative_of_a_choice_runs_in_as_many_turns() -> None:
    for shift in (0, 1, 5):
        found = [alternative(5, turn, shift) for turn in range(5)]
        assert found[0] == 0
        assert sorted(found) == list(range(5))
    assert alternative(1, 7, 3) == 0
    assert alternative(5, 2, 1) != alternative(5, 2, 0)


def test_the_init_of_a_program_with_choices_in_it_runs_in_each_turn() -> None:
    nodes = tuple(launch(256, target=2) for _ in range(2))
    choice = form.Choice(
        alternatives=tuple(form.Alternative(label="", nodes=(one,)) for one in nodes)
    )
    assert executor(program(launch(256), init=(choice,), num_temporaries=1)).reruns_init
    assert not executor(program(launch(256))).reruns_init


def test_an_init_that_writes_to_a_parameter_runs_before_each_call() -> None:
    made = program(launch(256, source=2), init=(launch(256, target=2),), num_temporaries=1)
    storages = list(made.storages)
    storages[2] = form.Storage(num_bytes=1024, origin=form.Origin.PARAMETER, name="w")
    weights = np.zeros(1024, np.uint8)
    one = CpuExecutor(replace(made, storages=tuple(storages)), [X.view(np.uint8)], {"w": weights})
    one.init()
    assert one.reruns_init
    assert np.array_equal(weights.view(np.float32), X)


ATOMIC = """
module {
  tt.func public @copy(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>, %n: i32) attributes {noinline = false} {
    %true = arith.constant true
    %zero = arith.constant 0.000000e+00 : f32
    %old = tt.atomic_rmw fadd, acq_rel, gpu, %x, %zero, %true : (!tt.ptr<f32>, f32, i1) -> f32
    tt.store %y, %old : !tt.ptr<f32>
    tt.return
  }
}
"""


def test_an_atomic_on_uninitialised_memory_counts_if_the_output_depends_on_it() -> None:
    kernel = replace(copy_kernel(), ttir=ATOMIC, lines=())
    made = program(launch(256), launch(1, source=2, size=1), num_temporaries=1)
    nodes = (made.forward[0], replace(made.forward[1], kernel=1))
    made = replace(made, kernels=(copy_kernel(), kernel), forward=nodes)
    assert [fault.kind for fault in executor(made).forward().faults] == ["uninitialised"]


def test_an_operation_on_uninitialised_memory_counts_if_the_output_depends_on_it() -> None:
    clone = form.Op(
        name="aten.clone.default", arguments=(form.TensorUse(tensor=2),), results=(3,), line=9
    )
    read = program(clone, launch(256, source=3), num_temporaries=2)
    (fault,) = executor(read).forward().faults
    assert (fault.kind, fault.line) == ("uninitialised", 9)
    assert executor(program(clone, launch(256), num_temporaries=2)).forward().faults == []


def test_an_uninitialised_read_of_init_counts_if_an_output_depends_on_it() -> None:
    made = program(
        launch(256, source=3), init=(launch(256, source=2, target=3),), num_temporaries=2
    )
    of_init = [replace(one, section=form.Section.INIT) for one in made.storages[2:]]
    one = executor(replace(made, storages=(*made.storages[:2], *of_init)))
    for _ in range(2):
        assert [fault.kind for fault in one.forward().faults] == ["uninitialised"]
        assert np.isnan(one.tensors.read(1).view(np.float32)).all()


KEEP = """
module {
  tt.func public @keep(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>, %s: !tt.ptr<f32>) {
    %mark = arith.constant 12345.0 : f32
    %one = arith.constant 1 : i32
    %t = tt.addptr %s, %one : !tt.ptr<f32>, i32
    %found = tt.load %s : !tt.ptr<f32>
    %old = tt.load %t : !tt.ptr<f32>
    %new = tt.load %x : !tt.ptr<f32>
    %is_kept = arith.cmpf oeq, %found, %mark : f32
    %v = arith.select %is_kept, %old, %new : f32
    tt.store %y, %v : !tt.ptr<f32>
    tt.store %s, %mark : !tt.ptr<f32>
    tt.store %t, %v : !tt.ptr<f32>
    tt.return
  }
}
"""
"""Copies an element, unless the memory behind `s` holds that of an earlier call."""


@pytest.mark.parametrize("section", form.Section)
def test_a_kernel_that_keeps_a_result_in_memory_without_content_is_seen(
    section: form.Section,
) -> None:
    kinds = dict.fromkeys("xys", "*fp32")
    parameters = tuple(form.Parameter(name=name, type=kind) for name, kind in kinds.items())
    keep = replace(copy_kernel(), name="keep", ttir=KEEP, parameters=parameters, lines=())
    uses = tuple(form.TensorUse(tensor=number) for number in range(3))
    node = form.Launch(kernel=0, grid=(1, 1, 1), arguments=uses)
    made = program(node, num_temporaries=1, size=2)
    storages = (*made.storages[:2], replace(made.storages[2], section=section))
    outputs = [replace(made.tensors[1], shape=(1,), strides=(1,))]
    tensors = (made.tensors[0], *outputs, made.tensors[2])
    made = replace(made, kernels=(keep,), storages=storages, tensors=tensors)
    x = np.array([1.0, 2.0], np.float32)
    found: set[str] = set()
    for _ in range(120):  # two elements change places once in eight draws
        one = CpuExecutor(made, [x.view(np.uint8)], {})
        one.init()
        found |= {fault.kind for fault in one.forward().faults}
        assert x.tolist() == [1.0, 2.0]
    assert found == {"uninitialised"}


@pytest.mark.parametrize("poison", [one for one in Poison if one is not Poison.LEFT])
def test_poisons_differ_and_fill_any_number_of_bytes(poison: Poison) -> None:
    data = np.full(1003, 7, np.uint8)
    poison.fill(data)
    assert not (data == 7).all()
    assert len(np.unique(data)) > 100 or poison in (Poison.SAME, Poison.ZEROS)
