"""A capture child that lies: programs made by hand, as a candidate that owns its child can send."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge.evalpool.judge.program.format import (
    Alternative,
    Choice,
    Kernel,
    Launch,
    Op,
    Options,
    Origin,
    Parameter,
    Program,
    Section,
    Storage,
    Tensor,
    TensorUse,
    Value,
)
from tests.evalpool.attacks.attacking import HEADER, RELU, attack_program, captured
from tests.evalpool.attacks.sources import model

replace: Any = dataclasses.replace
BYTES = 256 * 256 * 4
WHOLE = Tensor(storage=0, offset=0, shape=(256, 256), strides=(256, 1), dtype="float32")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """One launch from tensor 0, an input, to tensor 1, the output."""
    folder = tmp_path_factory.mktemp("honest")
    return captured(folder, HEADER + model("return relu(x)"), RELU.asked())


def test_the_honest_program_passes(tmp_path: Path, honest: Program) -> None:
    assert attack_program(tmp_path, honest, RELU).room == "passed"
    (launch,) = honest.forward
    assert isinstance(launch, Launch)
    assert launch.arguments[:2] == (TensorUse(tensor=0), TensorUse(tensor=1))


def launch_of(program: Program) -> Launch:
    (launch,) = program.forward
    assert isinstance(launch, Launch)
    return launch


def with_kernel(program: Program, **changes: Any) -> Program:
    return replace(program, kernels=(replace(program.kernels[0], **changes),))


def with_launch(program: Program, **changes: Any) -> Program:
    return replace(program, forward=(replace(launch_of(program), **changes),))


def with_op(program: Program, name: str, *arguments: Any, results: tuple[int, ...]) -> Program:
    """The program with an operation behind its launch."""
    node = Op(name=name, arguments=arguments, results=results)
    return replace(program, forward=(*program.forward, node))


def with_text(program: Program, before: str, after: str) -> Program:
    kernel = program.kernels[0]
    assert before in kernel.ttir
    return with_kernel(program, ttir=kernel.ttir.replace(before, after))


def more(program: Program, storage: Storage, tensor: Tensor = WHOLE) -> tuple[Program, int]:
    """The program with one more storage and a tensor over it; the tensor's number."""
    made = replace(tensor, storage=len(program.storages))
    return (
        replace(program, storages=(*program.storages, storage), tensors=(*program.tensors, made)),
        len(program.tensors),
    )


def workspace(program: Program) -> tuple[Program, int]:
    return more(program, Storage(num_bytes=BYTES, origin=Origin.ALLOCATION))


def relu_in_init(program: Program) -> Program:
    made, number = more(
        program, Storage(num_bytes=BYTES, origin=Origin.ALLOCATION, section=Section.INIT)
    )
    node = Op(name="aten.relu.default", arguments=(TensorUse(tensor=0),), results=(number,))
    return replace(made, init=(node,))


def relu_in_a_choice(program: Program, chosen: int | None) -> Program:
    made, number = workspace(program)
    torchs = Op(name="aten.relu.default", arguments=(TensorUse(tensor=0),), results=(number,))
    launch = launch_of(program)
    copies = replace(launch, arguments=(TensorUse(tensor=number), *launch.arguments[1:]))
    alternatives = (
        Alternative(label="honest", nodes=program.forward),
        Alternative(label="torch", nodes=(torchs, copies)),
    )
    return replace(made, forward=(Choice(alternatives=alternatives, chosen=chosen),))


def one_element(program: Program) -> tuple[Program, int]:
    tensor = Tensor(storage=0, offset=0, shape=(), strides=(), dtype="float32")
    return replace(program, tensors=(*program.tensors, tensor)), len(program.tensors)


def with_value(program: Program) -> Program:
    made, number = one_element(program)
    return replace(made, init=(Value(tensor=number, answer=1.0),))


FORGED: dict[str, tuple[str, Callable[[Program], Program]]] = {
    # memory
    "init reads an input": ("wire", relu_in_init),
    "init asks for a value of an input": ("wire", with_value),
    "a second storage of an input": (
        "wire",
        lambda p: more(p, Storage(num_bytes=BYTES, origin=Origin.INPUT, index=0))[0],
    ),
    "a tensor beyond its storage": (
        "wire",
        lambda p: replace(p, tensors=(replace(p.tensors[0], offset=1), *p.tensors[1:])),
    ),
    "a negative offset": (
        "wire",
        lambda p: replace(p, tensors=(replace(p.tensors[0], offset=-4), *p.tensors[1:])),
    ),
    "a negative stride": (
        "wire",
        lambda p: replace(p, tensors=(replace(p.tensors[0], strides=(-256, 1)), *p.tensors[1:])),
    ),
    "an allocation of a petabyte": (
        "wire",
        lambda p: more(p, Storage(num_bytes=1 << 50, origin=Origin.ALLOCATION))[0],
    ),
    "a constant that is not there": (
        "wire",
        lambda p: more(p, Storage(num_bytes=BYTES, origin=Origin.CONSTANT, index=3))[0],
    ),
    # launches
    "an address as a number": (
        "wire",
        lambda p: with_launch(p, arguments=(0x7F0000000000, *launch_of(p).arguments[1:])),
    ),
    "an address as a number, by its type": (
        "check",
        lambda p: with_launch(
            with_kernel(
                p,
                parameters=(Parameter(name="x", type="i64"), *p.kernels[0].parameters[1:]),
            ),
            arguments=(0x7F0000000000, *launch_of(p).arguments[1:]),
        ),
    ),
    "a pointer of another type": (
        "wire",
        lambda p: with_kernel(
            p, parameters=(Parameter(name="x", type="*fp64"), *p.kernels[0].parameters[1:])
        ),
    ),
    "an argument too many": (
        "wire",
        lambda p: with_launch(p, arguments=(*launch_of(p).arguments, 1)),
    ),
    "a grid beyond the card": ("wire", lambda p: with_launch(p, grid=(1, 1 << 20, 1))),
    "an empty grid": ("wire", lambda p: with_launch(p, grid=(0, 1, 1))),
    # operations
    "an operation with a space in its name": (
        "wire",
        lambda p: with_op(p, "aten.relu.default ", TensorUse(tensor=0), results=(1,)),
    ),
    "a file as a tensor": (
        "policy",
        lambda p: with_op(p, "aten.from_file.default", "/etc/passwd", results=(1,)),
    ),
    "another storage": (
        "policy",
        lambda p: with_op(
            p, "aten.set_.source_Tensor", TensorUse(tensor=1), TensorUse(tensor=0), results=(1,)
        ),
    ),
    "a view beyond the storage": (
        "policy",
        lambda p: with_op(
            p, "aten.as_strided.default", TensorUse(tensor=0), (1 << 30,), (1,), results=(1,)
        ),
    ),
    "an operation of the compiler": (
        "policy",
        lambda p: with_op(p, "prims.mul.default", TensorUse(tensor=0), 2.0, results=(1,)),
    ),
    "an operation of a library": (
        "policy",
        lambda p: with_op(p, "attack.relu.default", TensorUse(tensor=0), results=(1,)),
    ),
    "heavy work by its out form": (
        "policy",
        lambda p: replace(
            p,
            forward=(
                *p.forward,
                Op(
                    name="aten.mm.out",
                    arguments=(TensorUse(tensor=0), TensorUse(tensor=0)),
                    keywords={"out": TensorUse(tensor=1)},
                    results=(1,),
                ),
            ),
        ),
    ),
    "heavy work in place": (
        "policy",
        lambda p: with_op(
            p,
            "aten.addmm_.default",
            TensorUse(tensor=1),
            TensorUse(tensor=0),
            TensorUse(tensor=0),
            results=(1,),
        ),
    ),
    "torch's work in an alternative that is open": (
        "policy",
        lambda p: relu_in_a_choice(p, None),
    ),
    "torch's work in the alternative that won": ("policy", lambda p: relu_in_a_choice(p, 1)),
    "an output that init allocates": (
        "policy",
        lambda p: replace(
            p,
            storages=(
                p.storages[0],
                Storage(num_bytes=BYTES, origin=Origin.ALLOCATION, section=Section.INIT),
            ),
            init=(Op(name="aten.zero_.default", arguments=(TensorUse(tensor=1),), results=(1,)),),
        ),
    ),
    # kernels
    "a kernel by another name": ("check", lambda p: with_kernel(p, name="other")),
    "a kernel that reads the clock": (
        "check",
        lambda p: with_text(
            p, "    tt.return", "    %z = nvvm.read.ptx.sreg.globaltimer : i64\n    tt.return"
        ),
    ),
    "a kernel with a comment": (
        "check",
        lambda p: with_text(p, "    tt.return", "    // nothing\n    tt.return"),
    ),
    "a kernel that sets the compiler's attributes": (
        "check",
        lambda p: with_text(p, "module {", 'module attributes {"ttg.num-warps" = 64 : i32} {'),
    ),
    "a kernel that nothing launches": (
        "check",
        lambda p: replace(
            p,
            kernels=(
                *p.kernels,
                Kernel(name="k", ttir="module {\n}\n", options=Options(), parameters=()),
            ),
        ),
    ),
    "an option of the assembler": (
        "wire",
        lambda p: with_kernel(
            p, options=replace(p.kernels[0].options, default_dot_input_precision="tf32 -o /x")
        ),
    ),
    "warps that no card has": (
        "wire",
        lambda p: with_kernel(p, options=replace(p.kernels[0].options, num_warps=1 << 20)),
    ),
    "a terminal's commands as a name": (
        "wire",
        lambda p: with_kernel(
            p,
            parameters=(
                Parameter(name="\x1b[2J", type="*fp32"),
                *p.kernels[0].parameters[1:],
            ),
        ),
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_program_is_refused(tmp_path: Path, honest: Program, name: str) -> None:
    room, forge = FORGED[name]
    found = attack_program(tmp_path, forge(honest), RELU)
    assert found.room != "passed"
    assert found.room == room, found.words


def test_a_choice_whose_winner_is_honest_passes(tmp_path: Path, honest: Program) -> None:
    """Executors must run the winner that the policy looked at."""
    found = attack_program(tmp_path, relu_in_a_choice(honest, 0), RELU)
    assert found.room == "passed"
