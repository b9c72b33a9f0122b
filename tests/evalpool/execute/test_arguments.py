"""Arguments of a launch in the driver's form, and the parameters of tensor maps."""

import ctypes
from dataclasses import replace
from typing import Any

import pytest

from forge.evalpool.judge.compiler.binary import Binary, TensorMap
from forge.evalpool.judge.execute.gpu import run as arguments
from forge.evalpool.judge.execute.gpu.run import BadLaunch
from forge.evalpool.judge.program.format import (
    Descriptor,
    Kernel,
    Launch,
    Options,
    Origin,
    Parameter,
    Program,
    Storage,
    Tensor,
    TensorUse,
)
from tests.evalpool.execute.host_judge import binary

BINARY = binary(name="kernel", shared_bytes=1024, num_warps=8)
MAP = TensorMap(swizzle=3, elem_size=2, elem_type=6, block_size=(64, 32))
DESCRIPTOR = Descriptor(tensor=1, shape=(128, 96), strides=(100, 1), block_shape=(64, 32))


def program(**types: str) -> Program:
    parameters = tuple(Parameter(name=name, type=kind) for name, kind in types.items())
    kernel = Kernel(name="kernel", ttir="", options=Options(), parameters=parameters)
    return Program(
        target="cuda:90:32",
        storages=(Storage(num_bytes=1 << 20, origin=Origin.INPUT),),
        tensors=(
            Tensor(storage=0, offset=3, shape=(4,), strides=(1,), dtype="float32"),
            Tensor(storage=0, offset=0, shape=(128, 96), strides=(100, 1), dtype="float16"),
        ),
        kernels=(kernel,),
        init=(),
        forward=(),
        outputs=(),
    )


def launch(*values: Any, grid: tuple[int, int, int] = (2, 1, 1)) -> Launch:
    return Launch(kernel=0, grid=grid, arguments=values)


def packed(values: tuple[Any, ...], binary: Binary = BINARY, **types: str) -> arguments.Packed:
    return arguments.pack(program(**types), launch(*values), binary)


def test_parameters_stand_in_order_before_two_scratch_addresses() -> None:
    found = packed((TensorUse(tensor=0), 7, 0.5, None), x="*fp32", n="i32", eps="fp64", y="*i8")
    assert found.sizes() == (8, 4, 8, 8, 8, 8)
    (address,) = found.addresses
    assert (address.tensor, address.offset_bytes) == (0, 12)
    address.value.value = 4096
    arguments.finish(found, (8, 4, 8, 8, 8, 8))
    at = ctypes.cast(found.pointers[0], ctypes.POINTER(ctypes.c_uint64))
    assert at.contents.value == 4096
    at = ctypes.cast(found.pointers[1], ctypes.POINTER(ctypes.c_int32))
    assert at.contents.value == 7


@pytest.mark.parametrize(("num_scratch", "sizes"), [(0, (8,)), (1, (8, 8)), (3, (8, 8, 8, 8))])
def test_a_binary_may_take_another_number_of_scratch_addresses(
    num_scratch: int, sizes: tuple[int, ...]
) -> None:
    found = packed((TensorUse(tensor=0),), x="*fp32")
    arguments.finish(found, sizes)
    assert len(found.values) == len(found.pointers) == 1 + num_scratch


@pytest.mark.parametrize("sizes", [(), (4,), (8, 4, 8), (4, 8, 8, 8)])
def test_a_binary_with_other_parameters_is_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(BadLaunch, match="bytes"):
        arguments.finish(packed((TensorUse(tensor=0),), x="*fp32"), sizes)


def test_a_descriptor_becomes_a_map() -> None:
    binary = replace(BINARY, tensor_maps=(MAP,))
    found = packed((DESCRIPTOR,), binary, x="tensordesc<fp16[64, 32]>")
    assert found.sizes() == (128, 8, 8)
    (mapped,) = found.maps
    assert mapped.spec.shape == (96, 128)
    assert mapped.spec.stride_bytes == (200,)
    assert mapped.spec.box == (32, 64)
    assert mapped.spec.swizzle == 3


def test_a_map_is_encoded_once_for_an_address() -> None:
    class Encoder:
        def __init__(self) -> None:
            self.addresses: list[int] = []

        def encode_map(self, spec: Any, *, address: int, target: Any) -> None:
            self.addresses.append(address)

    binary = replace(BINARY, tensor_maps=(MAP,))
    found = packed((DESCRIPTOR,), binary, x="tensordesc<fp16[64, 32]>")
    encoder: Any = Encoder()
    for address in (64, 64, 128):
        found.maps[0].encode(address, encoder)
    assert encoder.addresses == [64, 128]


def test_the_devices_numbers_of_element_types_become_the_drivers() -> None:
    specs = [
        arguments.map_spec(DESCRIPTOR, dtype="float16", facts=replace(MAP, elem_type=number))
        for number in (6, 8, 9, 10)
    ]
    assert [spec.data_type for spec in specs] == [6, 10, 8, 9]


@pytest.mark.parametrize("wrong", [replace(MAP, block_size=(64,)), replace(MAP, elem_size=4)])
def test_a_map_of_another_descriptor_is_refused(wrong: TensorMap) -> None:
    with pytest.raises(BadLaunch, match="descriptor"):
        packed((DESCRIPTOR,), replace(BINARY, tensor_maps=(wrong,)), x="tensordesc<fp16[64, 32]>")


def test_without_maps_a_descriptor_is_its_base_with_shape_and_strides() -> None:
    found = packed((DESCRIPTOR,), x="tensordesc<fp16[64, 32]>")
    assert found.sizes() == (8, 8, 8, 8, 8, 1, 8, 8)


@pytest.mark.parametrize(("target", "num_threads"), [("cuda:90:32", 256), ("hip:gfx942:64", 512)])
def test_a_launch_has_its_geometry_and_no_attributes(target: str, num_threads: int) -> None:
    one, binary = launch(grid=(3, 5, 1)), replace(BINARY, target=target)
    config = arguments.launch_config(one, binary, stream=5)
    assert (list(config.grid), list(config.block)) == ([3, 5, 1], [num_threads, 1, 1])
    assert (config.shared_bytes, config.stream) == (1024, 5)
    assert (config.attributes, config.num_attributes) == (None, 0)
