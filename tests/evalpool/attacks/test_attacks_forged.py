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


def with_op(program: Program, name: str, *arguments: Any) -> Program:
    """The program with an operation behind its launch."""
    node = Op(name=name, arguments=arguments, results=(1,))
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


def with_storage(program: Program, num_bytes: int, origin: Origin, *, index: int = 0) -> Program:
    return more(program, Storage(num_bytes=num_bytes, origin=origin, index=index))[0]


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


def with_value(program: Program) -> Program:
    tensor = Tensor(storage=0, offset=0, shape=(), strides=(), dtype="float32")
    init = (Value(tensor=len(program.tensors), answer=1.0),)
    return replace(program, tensors=(*program.tensors, tensor), init=init)


def first_tensor(program: Program, **changes: Any) -> Program:
    return replace(program, tensors=(replace(program.tensors[0], **changes), *program.tensors[1:]))


def first_parameter(program: Program, *, name: str = "x", type: str = "*fp32") -> Program:
    own = Parameter(name=name, type=type)
    return with_kernel(program, parameters=(own, *program.kernels[0].parameters[1:]))


def with_options(program: Program, **changes: Any) -> Program:
    return with_kernel(program, options=replace(program.kernels[0].options, **changes))


def first_argument(program: Program, value: Any) -> Program:
    return with_launch(program, arguments=(value, *launch_of(program).arguments[1:]))


def mm_out(program: Program) -> Program:
    used, out = (T0, T0), {"out": T1}
    node = Op(name="aten.mm.out", arguments=used, keywords=out, results=(1,))
    return replace(program, forward=(*program.forward, node))


def output_in_init(program: Program) -> Program:
    made = Storage(num_bytes=BYTES, origin=Origin.ALLOCATION, section=Section.INIT)
    node = Op(name="aten.zero_.default", arguments=(T1,), results=(1,))
    return replace(program, storages=(program.storages[0], made), init=(node,))


def idle_kernel(program: Program) -> Program:
    made = Kernel(name="k", ttir="module {\n}\n", options=Options(), parameters=())
    return replace(program, kernels=(*program.kernels, made))


T0, T1 = TensorUse(tensor=0), TensorUse(tensor=1)
ADDRESS = 0x7F0000000000
CLOCK = "    %z = nvvm.read.ptx.sreg.globaltimer : i64\n    tt.return"
WARPS = 'module attributes {"ttg.num-warps" = 64 : i32} {'
FORGED: dict[str, dict[str, Callable[[Program], Program]]] = {
    "wire": {
        "init reads an input": relu_in_init,
        "init asks for a value of an input": with_value,
        "a second storage of an input": lambda p: with_storage(p, BYTES, Origin.INPUT),
        "a tensor beyond its storage": lambda p: first_tensor(p, offset=1),
        "a negative offset": lambda p: first_tensor(p, offset=-4),
        "a negative stride": lambda p: first_tensor(p, strides=(-256, 1)),
        "an allocation of a petabyte": lambda p: with_storage(p, 1 << 50, Origin.ALLOCATION),
        "a constant that is not there": lambda p: with_storage(p, BYTES, Origin.CONSTANT, index=3),
        "an address as a number": lambda p: first_argument(p, ADDRESS),
        "a pointer of another type": lambda p: first_parameter(p, type="*fp64"),
        "an argument too many": lambda p: with_launch(p, arguments=(*launch_of(p).arguments, 1)),
        "a grid beyond the card": lambda p: with_launch(p, grid=(1, 1 << 20, 1)),
        "an empty grid": lambda p: with_launch(p, grid=(0, 1, 1)),
        "an operation with a space in its name": lambda p: with_op(p, "aten.relu.default ", T0),
        "an option of the assembler": lambda p: with_options(
            p, default_dot_input_precision="tf32 -o /x"
        ),
        "warps that no card has": lambda p: with_options(p, num_warps=1 << 20),
        "a terminal's commands as a name": lambda p: first_parameter(p, name="\x1b[2J"),
    },
    "policy": {
        "a file as a tensor": lambda p: with_op(p, "aten.from_file.default", "/etc/passwd"),
        "another storage": lambda p: with_op(p, "aten.set_.source_Tensor", T1, T0),
        "a view beyond the storage": lambda p: with_op(
            p, "aten.as_strided.default", T0, (1 << 30,), (1,)
        ),
        "an operation of the compiler": lambda p: with_op(p, "prims.mul.default", T0, 2.0),
        "an operation of a library": lambda p: with_op(p, "attack.relu.default", T0),
        "heavy work by its out form": mm_out,
        "heavy work in place": lambda p: with_op(p, "aten.addmm_.default", T1, T0, T0),
        "torch's work in an alternative that is open": lambda p: relu_in_a_choice(p, None),
        "torch's work in the alternative that won": lambda p: relu_in_a_choice(p, 1),
        "an output that init allocates": output_in_init,
    },
    "check": {
        "an address as a number, by its type": lambda p: first_argument(
            first_parameter(p, type="i64"), ADDRESS
        ),
        "a kernel by another name": lambda p: with_kernel(p, name="other"),
        "a kernel that reads the clock": lambda p: with_text(p, "    tt.return", CLOCK),
        "a kernel with a comment": lambda p: with_text(
            p, "    tt.return", "    // nothing\n    tt.return"
        ),
        "a kernel that sets the compiler's attributes": lambda p: with_text(p, "module {", WARPS),
        "a kernel that nothing launches": idle_kernel,
    },
}
"""By the room that refuses them."""


@pytest.mark.parametrize(
    ("room", "name"), [(room, name) for room, forged in FORGED.items() for name in forged]
)
def test_a_forged_program_is_refused(tmp_path: Path, honest: Program, room: str, name: str) -> None:
    found = attack_program(tmp_path, FORGED[room][name](honest), RELU)
    assert found.room == room, found.words


def test_a_choice_whose_winner_is_honest_passes(tmp_path: Path, honest: Program) -> None:
    """Executors must run the winner that the policy looked at."""
    found = attack_program(tmp_path, relu_in_a_choice(honest, 0), RELU)
    assert found.room == "passed"
