"""Holds the records of a parsed program against each other.

Afterwards every index is valid, every tensor lies in its storage, every launch's arguments fit its
kernel, and nothing is used before it can be known. Operations are checked by `ops.py`, TTIR by the
compiler's room.
"""

from __future__ import annotations

import math
from typing import NoReturn

from forge.evalpool.judge.program import limits
from forge.evalpool.judge.program.format import (
    ITEM_BYTES,
    Choice,
    Descriptor,
    InvalidProgram,
    Kernel,
    Launch,
    LaunchArgument,
    Node,
    Origin,
    Parameter,
    Program,
    Scalar,
    Section,
    Storage,
    Tensor,
    TensorUse,
    Value,
)
from forge.evalpool.judge.program.signature import (
    ByValue,
    Described,
    Pointer,
    fits_element,
    misfit,
    parse_type,
)
from forge.evalpool.judge.program.walk import Placed, places, tensors_of


def check(program: Program) -> None:
    """Raises InvalidProgram unless the records of the program fit together."""
    check_storages(program)
    for at, tensor in enumerate(program.tensors):
        check_tensor(program, tensor, f"tensors[{at}]")
    names: dict[str, str] = {}
    for at, kernel in enumerate(program.kernels):
        check_kernel(kernel, f"kernels[{at}]")
        if names.setdefault(kernel.ttir, kernel.name) != kernel.name:
            fail(f"kernels[{at}].name", "a text has one kernel, and another one is named")
    found = list(places(program))
    check_amount(found)
    for placed in found:
        check_node(program, placed)
    check_outputs(program)


# --- memory


def check_storages(program: Program) -> None:
    """Bounds of the number of inputs; no input, parameter or constant twice; each storage. Raises
    InvalidProgram, as all below."""
    num_inputs = sum(storage.origin == Origin.INPUT for storage in program.storages)
    if num_inputs > limits.MAX_INPUTS:
        fail("storages", f"{num_inputs} inputs, more than {limits.MAX_INPUTS}")
    inputs = [storage.index for storage in program.storages if storage.origin == Origin.INPUT]
    if max(inputs, default=0) >= limits.MAX_INPUTS:
        fail("storages", f"input {max(inputs)}, where there are {limits.MAX_INPUTS} at most")
    for origin in (Origin.INPUT, Origin.PARAMETER, Origin.CONSTANT):
        known: set[int | str] = set()
        for at, storage in enumerate(program.storages):
            if storage.origin == origin:
                identity = storage.name if origin == Origin.PARAMETER else storage.index
                if identity in known:
                    fail(f"storages[{at}]", f"a second storage of {origin.value} {identity}")
                known.add(identity)
    for at, storage in enumerate(program.storages):
        check_storage(program, storage, f"storages[{at}]")


def check_storage(program: Program, storage: Storage, path: str) -> None:
    """A parameter has a name, anything else has none."""
    if bool(storage.name) != (storage.origin == Origin.PARAMETER):
        fail(f"{path}.name", "a parameter has a name, and nothing else has one")
    if storage.origin != Origin.CONSTANT:
        return
    check_index(storage.index, len(program.constants), f"{path}.index", "constants")
    held = len(program.constants[storage.index])
    if held != storage.num_bytes:
        fail(f"{path}.num_bytes", f"{storage.num_bytes}, but its constant has {held} bytes")


def check_tensor(program: Program, tensor: Tensor, path: str) -> None:
    """A tensor lies within its storage."""
    check_index(tensor.storage, len(program.storages), f"{path}.storage", "storages")
    if len(tensor.shape) != len(tensor.strides):
        fail(path, f"{len(tensor.shape)} dimensions and {len(tensor.strides)} strides")
    end = tensor.offset + extent(tensor.shape, tensor.strides)
    held = program.storages[tensor.storage].num_bytes
    if end * ITEM_BYTES[tensor.dtype] > held:
        fail(path, f"ends at byte {end * ITEM_BYTES[tensor.dtype]} of a storage of {held}")


def extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first one to behind the last one."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


# --- kernels and launches


def check_kernel(kernel: Kernel, path: str) -> None:
    """Parameters with distinct names."""
    names = [parameter.name for parameter in kernel.parameters]
    if len(set(names)) != len(names):
        fail(f"{path}.parameters", "two of one name")


def check_launch(program: Program, launch: Launch, path: str) -> None:
    """As many arguments as the kernel has parameters, each of its type."""
    check_index(launch.kernel, len(program.kernels), f"{path}.kernel", "kernels")
    parameters = program.kernels[launch.kernel].parameters
    if len(launch.arguments) != len(parameters):
        fail(path, f"{len(launch.arguments)} arguments for {len(parameters)} parameters")
    for at, (argument, parameter) in enumerate(zip(launch.arguments, parameters, strict=True)):
        wrong = argument_misfit(program, argument, parameter)
        if wrong:
            fail(f"{path}.arguments[{at}]", f"{parameter.name}: {parameter.type}: {wrong}")


def argument_misfit(program: Program, argument: LaunchArgument, parameter: Parameter) -> str | None:
    """The reason why an argument cannot stand for a kernel's parameter; None if it can."""
    match parse_type(parameter.type), argument:
        case Pointer(element=element), TensorUse(tensor=tensor):
            dtype = program.tensors[tensor].dtype
            return None if fits_element(element, dtype) else f"a tensor of {dtype}"
        case Pointer(), None:
            return None
        case Described() as described, Descriptor():
            return descriptor_misfit(program, argument, described)
        case ByValue() as passed, bool() | int() | float() | None:
            return misfit(passed.type, argument)
        case _:
            return f"{type(argument).__name__} does not fit"


def descriptor_misfit(program: Program, made: Descriptor, type: Described) -> str | None:
    """The reason why a descriptor does not fit a parameter; None if it does."""
    tensor = program.tensors[made.tensor]
    if not fits_element(type.element, tensor.dtype):
        return f"a tensor of {tensor.dtype}"
    if made.block_shape != type.block_shape:
        return f"blocks of {made.block_shape}"
    if not len(made.shape) == len(made.strides) == len(made.block_shape) > 0:
        return "shape, strides and block differ in rank"
    if math.prod(made.block_shape) > limits.MAX_BLOCK:
        return "a block of more than 2**20 elements"
    if any(size & (size - 1) for size in made.block_shape):
        return "a block that is no power of two"
    if made.strides[-1] != 1:
        return "the last dimension is not contiguous"
    end = (tensor.offset + extent(made.shape, made.strides)) * ITEM_BYTES[tensor.dtype]
    held = program.storages[tensor.storage].num_bytes
    return f"ends at byte {end} of a storage of {held}" if end > held else None


# --- nodes


def check_amount(found: list[Placed]) -> None:
    """Bounds of the number of nodes, and of the nodes of all variants together with the tensors
    that they name."""
    if len(found) > limits.MAX_NODES:
        fail("program", f"{len(found)} nodes, more than {limits.MAX_NODES}")
    choices = [placed.node for placed in found if isinstance(placed.node, Choice)]
    widest = max((len(choice.alternatives) for choice in choices), default=1)
    inside = sum(len(a.nodes) for choice in choices for a in choice.alternatives)
    longest = sum(max((len(a.nodes) for a in c.alternatives), default=0) for c in choices)
    if widest * (len(found) - inside + longest) > limits.MAX_VARIANT_NODES:
        fail("program", f"{len(found)} nodes beside a choice of {widest} alternatives are too many")
    outside = (one.node for one in found if ".alternatives[" not in one.path)
    most = sum(num_tensors(node) for node in outside)
    most += sum(
        max((sum(map(num_tensors, a.nodes)) for a in c.alternatives), default=0) for c in choices
    )
    if widest * most > limits.MAX_VARIANT_TENSORS:
        fail("program", f"{most} tensors named beside a choice of {widest} alternatives")


def num_tensors(node: Node) -> int:
    """Tensors that a node names, each as often as it does."""
    return sum(1 for _ in tensors_of(node))


def check_node(program: Program, placed: Placed) -> None:
    """A node names tensors of the program, and is allowed where it stands."""
    for tensor in tensors_of(placed.node):
        check_index(tensor, len(program.tensors), placed.path, "tensors")
        if placed.section == Section.INIT:
            check_known_in_init(program, tensor, placed.path)
    match placed.node:
        case Launch() as launch:
            check_launch(program, launch, placed.path)
        case Value() as value:
            check_value(program.tensors[value.tensor], value.answer, placed.path)
        case Choice() as choice:
            check_choice(choice, placed.path)
        case _:
            pass


def check_known_in_init(program: Program, tensor: int, path: str) -> None:
    """A tensor that `__init__` uses is no input."""
    storage = program.storages[program.tensors[tensor].storage]
    if storage.origin == Origin.INPUT:
        fail(path, f"tensor {tensor} is an input, which init does not know")
    if storage.origin == Origin.ALLOCATION and storage.section == Section.FORWARD:
        fail(path, f"tensor {tensor} is allocated in forward")


def check_value(tensor: Tensor, answer: Scalar, path: str) -> None:
    """A value that the host read is one element of its tensor's type."""
    if math.prod(tensor.shape) != 1:
        fail(path, f"reads a tensor of shape {tensor.shape} as one element")
    if answer is None:
        return
    allowed = bool if tensor.dtype == "bool" else float if "float" in tensor.dtype else int
    if type(answer) is not allowed:
        fail(f"{path}.answer", f"{type(answer).__name__} for {tensor.dtype}")


def check_choice(choice: Choice, path: str) -> None:
    """A choice has alternatives; the chosen one, if any, is one of them."""
    if not choice.alternatives:
        fail(path, "a choice without alternatives")
    if choice.chosen is not None:
        check_index(choice.chosen, len(choice.alternatives), f"{path}.chosen", "alternatives")


def check_outputs(program: Program) -> None:
    """Outputs are tensors of the program."""
    for at, output in enumerate(program.outputs):
        check_index(output, len(program.tensors), f"outputs[{at}]", "tensors")
    if program.returned == "tensor" and len(program.outputs) != 1:
        fail("outputs", f"{len(program.outputs)} where one tensor was returned")


def check_index(index: int, count: int, path: str, of: str) -> None:
    """An index is one of `count` things named `of`."""
    if not 0 <= index < count:
        fail(path, f"{index} is no index of {count} {of}")


def fail(path: str, message: str) -> NoReturn:
    """Raises InvalidProgram with the path."""
    raise InvalidProgram(f"{path}: {message}")
