# pyright: strict
"""Packs a launch's arguments for the driver and plans tensor maps. Pure, but for the encoding.

Called by `run.py` at load. A kernel's parameters are, in order: its arguments (a descriptor becomes
a tensor map), then the addresses of two scratch buffers. A descriptor's shape and strides, which
Triton passes behind it, are arguments of their own.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.driver.driver import Driver, LaunchConfig, MapSpec, aligned_map
from forge.evalpool.judge.program import signature
from forge.evalpool.judge.program.format import (
    ITEM_BYTES,
    Descriptor,
    Launch,
    LaunchArgument,
    Parameter,
    Program,
    TensorUse,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.compiler.binary import Binary
    from forge.evalpool.judge.compiler.binary import TensorMap as MapFacts
    from forge.evalpool.judge.driver.driver import TensorMap

HOST_TYPES = {8: 10, 9: 8, 10: 9}
"""Triton numbers the element types of a tensor map otherwise on the device than the driver does."""


class BadLaunch(Exception):
    """A launch whose arguments do not fit its kernel."""


@dataclass(slots=True)
class Address:
    """A pointer parameter: set before each launch."""

    tensor: int
    offset_bytes: int
    value: ctypes.c_uint64 = field(default_factory=ctypes.c_uint64)


@dataclass(slots=True)
class Mapped:
    """A tensor map parameter: encoded anew when its tensor moves."""

    tensor: int
    spec: MapSpec
    value: TensorMap
    buffer: Any
    """Holds the memory of `value`."""
    address: int = 0


@dataclass(slots=True)
class Packed:
    """Arguments of a launch in the driver's form."""

    pointers: Any
    """Array of `void *`, one for each parameter of the binary."""
    values: list[Any]
    """Memory that `pointers` refers to."""
    addresses: list[Address]
    maps: list[Mapped]
    scratch: ctypes.c_uint64

    def sizes(self) -> tuple[int, ...]:
        """Bytes of each parameter."""
        return tuple(ctypes.sizeof(value) for value in self.values)

    def encode(self, mapped: Mapped, address: int, driver: Driver) -> None:
        """Encodes a tensor map unless it is current."""
        if mapped.address != address:
            driver.encode_map(mapped.spec, address=address, target=mapped.value)
            mapped.address = address


def pack(program: Program, launch: Launch, binary: Binary) -> Packed:
    """Raises BadLaunch."""
    parameters = program.kernels[launch.kernel].parameters
    if len(parameters) != len(launch.arguments):
        raise BadLaunch(f"{len(launch.arguments)} arguments for {len(parameters)} parameters")
    packed = Packed(pointers=None, values=[], addresses=[], maps=[], scratch=ctypes.c_uint64())
    num_descriptors = 0
    for parameter, argument in zip(parameters, launch.arguments, strict=True):
        if isinstance(argument, Descriptor):
            facts = _facts_of(binary, num_descriptors)
            _add_descriptor(packed, program, argument, facts)
            num_descriptors += 1
        elif isinstance(argument, TensorUse) or parameter.type.startswith("*"):
            _add_pointer(packed, program, parameter, argument)
        else:
            packed.values.append(scalar(parameter, argument))
    packed.values += [packed.scratch, ctypes.c_uint64()]
    return packed


def finish(packed: Packed, sizes: Sequence[int] | None) -> None:
    """Builds the pointers. Raises BadLaunch where the binary's parameters are of other sizes; it
    may have fewer or more trailing scratch addresses."""
    if sizes is not None:
        own = packed.sizes()
        num = len(own) - 2
        if tuple(sizes[:num]) != own[:num] or any(one != 8 for one in sizes[num:]):
            raise BadLaunch(f"parameters of {list(own[:num])} bytes for a kernel of {list(sizes)}")
        packed.values[len(sizes) :] = []
        packed.values += [ctypes.c_uint64() for _ in range(len(sizes) - len(packed.values))]
    at = [ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in packed.values]
    packed.pointers = (ctypes.c_void_p * max(len(at), 1))(*at)


def launch_config(launch: Launch, binary: Binary, *, stream: int) -> LaunchConfig:
    """The driver's structure for a launch without attributes."""
    warp_size = int(binary.target.rsplit(":", 1)[1])  # 32 of `cuda:90:32`
    return LaunchConfig(
        grid=(ctypes.c_uint * 3)(*launch.grid),
        block=(ctypes.c_uint * 3)(binary.num_warps * warp_size, 1, 1),
        shared_bytes=binary.shared_bytes,
        stream=stream,
    )


def scratch_bytes(launch: Launch, binary: Binary) -> int:
    """Bytes of global scratch that a launch needs."""
    x, y, z = launch.grid
    return x * y * z * binary.global_scratch_bytes


def scalar(parameter: Parameter, value: Any) -> Any:
    """A number as the bytes of its parameter. Raises BadLaunch for a value that does not fit."""
    wrong = signature.misfit(parameter.type, value)
    if wrong:
        raise BadLaunch(f"{parameter.name}: {wrong}")
    packed = signature.pack(parameter.type, value)
    return (ctypes.c_ubyte * len(packed))(*packed)


def map_spec(descriptor: Descriptor, *, dtype: str, facts: MapFacts) -> MapSpec:
    """Parameters of a descriptor's tensor map. Raises BadLaunch."""
    rank = len(descriptor.shape)
    if not 1 <= rank <= 5 or len(descriptor.strides) != rank or len(facts.block_size) != rank:
        raise BadLaunch(f"a descriptor of {rank} dimensions")
    if descriptor.strides[-1] != 1:
        raise BadLaunch("a descriptor's last dimension must be contiguous")
    if facts.elem_size != ITEM_BYTES[dtype]:
        raise BadLaunch(f"a descriptor of {facts.elem_size}-byte elements over {dtype}")
    shape = list(descriptor.shape)
    if facts.fp4_padded:
        shape[-1] *= 2
    strides = [facts.elem_size * stride for stride in descriptor.strides[:-1]]
    return MapSpec(
        data_type=HOST_TYPES.get(facts.elem_type, facts.elem_type),
        shape=tuple(reversed(shape)),
        stride_bytes=tuple(reversed(strides)),
        box=tuple(reversed(facts.block_size)),
        swizzle=facts.swizzle,
        is_nan_filled=descriptor.padding == "nan",
    )


def _add_pointer(
    packed: Packed, program: Program, parameter: Parameter, argument: LaunchArgument
) -> None:
    if argument is None:
        packed.values.append(ctypes.c_uint64())
        return
    if not isinstance(argument, TensorUse):
        raise BadLaunch(f"{parameter.name}: an address must be of a tensor")
    if not parameter.type.startswith("*"):
        raise BadLaunch(f"{parameter.name}: a tensor for {parameter.type}")
    address = _address_of(program, argument.tensor)
    packed.addresses.append(address)
    packed.values.append(address.value)


def _add_descriptor(
    packed: Packed, program: Program, descriptor: Descriptor, facts: MapFacts | None
) -> None:
    if facts is None:
        _add_decomposed(packed, program, descriptor)
        return
    dtype = program.tensors[descriptor.tensor].dtype
    value, buffer = aligned_map()
    spec = map_spec(descriptor, dtype=dtype, facts=facts)
    packed.maps.append(Mapped(tensor=descriptor.tensor, spec=spec, value=value, buffer=buffer))
    packed.values.append(value)


def _add_decomposed(packed: Packed, program: Program, descriptor: Descriptor) -> None:
    """For targets without tensor maps: base, shape, strides and padding."""
    address = _address_of(program, descriptor.tensor)
    packed.addresses.append(address)
    packed.values.append(address.value)
    sizes = (*descriptor.shape, *descriptor.strides)
    packed.values += [ctypes.c_int64(size) for size in sizes]
    packed.values.append(ctypes.c_int8(descriptor.padding == "nan"))


def _facts_of(binary: Binary, number: int) -> MapFacts | None:
    if not binary.tensor_maps:
        return None
    if number >= len(binary.tensor_maps):
        raise BadLaunch(f"the kernel has {len(binary.tensor_maps)} descriptors")
    return binary.tensor_maps[number]


def _address_of(program: Program, number: int) -> Address:
    tensor = program.tensors[number]
    return Address(tensor=number, offset_bytes=tensor.offset * ITEM_BYTES[tensor.dtype])
