"""Programs in float64: honest ones compute what their reference does, to more digits."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from forge.evalpool.judge.execute.cpu import CpuExecutor
from forge.evalpool.judge.program.format import (
    Kernel,
    Launch,
    NamedConstant,
    Op,
    Options,
    Origin,
    Parameter,
    Program,
    Storage,
    Tensor,
    TensorUse,
)
from forge.evalpool.judge.wide.program import Narrow, widened

SINGLE = frozenset({"float32"})
HALF = SINGLE | {"float16", "bfloat16"}
TEXT = """module {
  tt.func public @k(%arg0: !tt.ptr<IN> {tt.divisibility = 16 : i32}, %arg1: !tt.ptr<OUT> {tt.divisibility = 16 : i32}) attributes {noinline = false} {
    %0 = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %1 = tt.splat %arg0 : !tt.ptr<IN> -> tensor<64x!tt.ptr<IN>>
    %2 = tt.addptr %1, %0 : tensor<64x!tt.ptr<IN>>, tensor<64xi32>
    %x = tt.load %2 : tensor<64x!tt.ptr<IN>>
BODY
    %8 = tt.splat %arg1 : !tt.ptr<OUT> -> tensor<64x!tt.ptr<OUT>>
    %9 = tt.addptr %8, %0 : tensor<64x!tt.ptr<OUT>>, tensor<64xi32>
    tt.store %9, %y : tensor<64x!tt.ptr<OUT>>
    tt.return
  }
}
"""  # noqa: E501
NAMES = {"float32": ("f32", "fp32"), "float16": ("f16", "fp16"), "bfloat16": ("bf16", "bf16")}


def pointwise(*body: str, given: str = "float32", made: str = "float32") -> Program:
    """A kernel of 64 elements `%x`, whose body gives `%y`; `T` is their type."""
    text = TEXT.replace("BODY", "\n".join(f"    {one}" for one in body))
    types = {"OUT": NAMES[made][0], "IN": NAMES[given][0], "TYPE": f"tensor<64x{NAMES[given][0]}>"}
    types |= {
        "WHOLE": "tensor<64xi32>",
        "HALF": "tensor<64xf16>",
        "LEFT": "tensor<4x16xf16>",
        "RIGHT": "tensor<16x4xf16>",
    }
    for name, kind in types.items():
        text = text.replace(name, kind)
    parameters = tuple(
        Parameter(name=name, type=f"*{NAMES[kind][1]}")
        for name, kind in (("x", given), ("y", made))
    )
    sizes = {"float32": 256, "float16": 128, "bfloat16": 128}
    tensor = Tensor(storage=0, offset=0, shape=(64,), strides=(1,), dtype=given)
    return Program(
        target="cuda:90:32",
        storages=(
            Storage(num_bytes=sizes[given], origin=Origin.INPUT),
            Storage(num_bytes=sizes[made], origin=Origin.ALLOCATION),
        ),
        tensors=(tensor, replace(tensor, storage=1, dtype=made)),
        kernels=(
            Kernel(
                name="k",
                ttir=text,
                options=Options(),
                parameters=parameters,
                lines=tuple(range(1, 99)),
            ),
        ),
        init=(),
        forward=(
            Launch(kernel=0, grid=(1, 1, 1), arguments=(TensorUse(tensor=0), TensorUse(tensor=1))),
        ),
        outputs=(1,),
    )


def evaluated(program: Program, *inputs: torch.Tensor) -> torch.Tensor:
    memory: list[Any] = [one.reshape(-1).view(torch.uint8).numpy() for one in inputs]
    executor = CpuExecutor(program, memory, {})
    executor.init()
    assert executor.forward().faults == []
    return executor.tensors.torch(program.outputs[0])


X = torch.linspace(-3, 5, 64)


def extern(name: str) -> str:
    attributes = f'{{libname = "", libpath = "", pure = true, symbol = "__nv_{name}"}}'
    return f"%y = tt.extern_elementwise %x {attributes} : (TYPE) -> TYPE"


@pytest.mark.parametrize(
    ("body", "function"),
    [
        (["%y = math.exp %x : TYPE"], torch.exp),
        ([extern("expf")], torch.exp),
        ([extern("fast_expf")], torch.exp),
        ([extern("erff")], torch.erf),
        (
            ["%c = arith.constant dense<1.000000e-01> : TYPE", "%y = arith.mulf %x, %c : TYPE"],
            lambda x: x * 0.1,
        ),
        (
            ["%c = arith.constant dense<0x7F800000> : TYPE", "%y = arith.minnumf %x, %c : TYPE"],
            lambda x: x,
        ),
        (
            ["%h = arith.constant dense<7.0> : TYPE", "%y = tt.precise_divf %x, %h : TYPE"],
            lambda x: x / 7,
        ),
    ],
)
def test_a_kernel_computes_in_float64(
    body: list[str], function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    wide = widened(pointwise(*body), SINGLE)
    found = evaluated(wide, X.double())
    assert found.dtype == torch.float64
    assert torch.allclose(found, function(X.double()), rtol=1e-13, atol=1e-13)


ROUND = ["%h = arith.truncf %x : TYPE to HALF", "%y = arith.extf %h : HALF to TYPE"]


def test_a_cast_to_half_precision_stays_in_a_float32_problem_and_goes_in_a_half_one() -> None:
    lossy = evaluated(widened(pointwise(*ROUND), SINGLE), X.double())
    assert torch.equal(lossy, X.double().half().double())
    assert torch.equal(evaluated(widened(pointwise(*ROUND), HALF), X.double()), X.double())


def test_a_cast_to_8_bits_stays() -> None:
    body = [
        "%b = tt.fp_to_fp %x, rounding = rtne : TYPE -> tensor<64xf8E5M2>",
        "%y = tt.fp_to_fp %b : tensor<64xf8E5M2> -> TYPE",
    ]
    wanted = X.to(torch.float8_e5m2).double()
    for given, kinds in (("float32", SINGLE), ("float16", HALF)):
        wide = widened(pointwise(*body, given=given, made=given), kinds)
        assert torch.equal(evaluated(wide, X.double()), wanted)


@pytest.mark.parametrize(
    ("given", "rounded"), [("float32", "0.0999999940"), ("float16", "9.997560e-02")]
)
def test_a_constant_is_the_number_that_the_source_names(given: str, rounded: str) -> None:
    body = [f"%c = arith.constant dense<-{rounded}> : TYPE", "%y = arith.mulf %x, %c : TYPE"]
    program = pointwise(*body, given=given, made=given)
    (kernel,) = program.kernels
    number = {"float32": 0.09999999345678, "float16": 0.1}[given]
    program = replace(program, kernels=(replace(kernel, floats=(3.3, number)),))
    assert torch.equal(evaluated(widened(program, HALF), X.double()), X.double() * -number)


def test_adding_and_subtracting_a_large_number_rounds_to_whole_numbers() -> None:
    body = [
        "%c = arith.constant dense<0x4B400000> : TYPE",
        "%a = arith.addf %x, %c : TYPE",
        "%y = arith.subf %a, %c : TYPE",
    ]
    assert torch.equal(evaluated(widened(pointwise(*body), SINGLE), X.double()), X.double().round())
    product = [body[0], "%y = arith.mulf %x, %c : TYPE"]
    found = evaluated(widened(pointwise(*product), SINGLE), X.double())
    assert torch.equal(found, X.double() * 12582912)


def test_a_product_of_half_operands_has_a_sum_in_float64() -> None:
    """In a float32 problem the operands lose what they lose, and the sum nothing."""
    body = [
        "%h = arith.truncf %x : TYPE to HALF",
        "%a = tt.reshape %h : HALF -> LEFT",
        "%b = tt.reshape %h : HALF -> RIGHT",
        "%z = arith.constant dense<0.000000e+00> : tensor<4x4xf32>",
        "%p = tt.dot %a, %b, %z, inputPrecision = tf32 : LEFT * RIGHT -> tensor<4x4xf32>",
        "%s = tt.reshape %p : tensor<4x4xf32> -> tensor<16xf32>",
        "%j = tt.join %s, %s : tensor<16xf32> -> tensor<16x2xf32>",
        "%i = tt.join %j, %j : tensor<16x2xf32> -> tensor<16x2x2xf32>",
        "%y = tt.reshape %i : tensor<16x2x2xf32> -> TYPE",
    ]
    wide = widened(pointwise(*body), SINGLE)
    x = X.half().double()
    wanted = (x.reshape(4, 16) @ x.reshape(16, 4)).reshape(-1).repeat_interleave(4)
    assert torch.allclose(evaluated(wide, X.double()), wanted, rtol=1e-14, atol=0)
    assert wide.kernels[0].lines[6:17] == (7, 8, 9, 10, 11, 11, 11, 12, 13, 14, 15)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (["%b = tt.bitcast %x : TYPE -> WHOLE", "%y = arith.sitofp %b : WHOLE to TYPE"], "bits of a float in kernel k, line 7"),  # noqa: E501
        (['%y = tt.elementwise_inline_asm "tanh.approx.f32 $0, $1;" {constraints = "=f,f", packed_element = 1 : i32, pure = true} %x : TYPE -> TYPE'], "inline_asm in kernel k, line 7"),  # noqa: E501
        ([extern("saturatef")], "saturatef"),
    ],
)  # fmt: skip
def test_what_has_no_form_in_float64_is_narrow(body: list[str], words: str) -> None:
    with pytest.raises(Narrow, match=words):
        widened(pointwise(*body), SINGLE)


def test_memory_seen_as_floats_and_as_their_bits_is_narrow() -> None:
    program = pointwise("%y = math.exp %x : TYPE")
    bits = replace(program.tensors[0], dtype="int32")
    with pytest.raises(Narrow, match="float32 and as int32"):
        widened(replace(program, tensors=(*program.tensors, bits)), SINGLE)
    seen = replace(program, tensors=(bits, program.tensors[1]))
    with pytest.raises(Narrow, match="kernel k sees int32"):
        widened(seen, SINGLE)
    with pytest.raises(Narrow, match="float32 and as int32"):
        widened(seen, SINGLE, inputs=["float32"])


def test_the_host_makes_float64() -> None:
    program = pointwise("%y = math.exp %x : TYPE")
    made = Op(name="aten.full.default", arguments=((64,), 0.1), results=(0,))
    cast = replace(made, keywords={"dtype": NamedConstant(kind="dtype", name="float32")})
    origin = replace(program.storages[0], origin=Origin.ALLOCATION)
    for one in (made, cast):
        storages = (origin, program.storages[1])
        host = replace(program, storages=storages, forward=(one, *program.forward))
        found = evaluated(widened(host, SINGLE))
        assert torch.allclose(found, torch.tensor(0.1, dtype=torch.float64).exp(), rtol=1e-15)


def test_infinities_become_the_largest_number_of_the_type_that_is_widened() -> None:
    program = pointwise(
        "%c = arith.constant dense<5.000000e-01> : TYPE", "%y = arith.mulf %x, %c : TYPE"
    )
    op = Op(name="aten.nan_to_num_.default", arguments=(TensorUse(tensor=0),), results=(0,))
    wide = widened(replace(program, forward=(op, *program.forward)), SINGLE)
    found = evaluated(wide, torch.full((64,), -torch.inf, dtype=torch.float64))
    assert found.unique().tolist() == [torch.finfo(torch.float32).min / 2]


def test_a_constant_in_half_precision_that_is_extended_is_the_number_of_the_source() -> None:
    body = [
        "%c = arith.constant dense<0.0999755859> : tensor<64xf32>",
        "%e = arith.extf %x : TYPE to tensor<64xf32>",
        "%m = arith.mulf %e, %c : tensor<64xf32>",
        "%y = arith.truncf %m : tensor<64xf32> to TYPE",
    ]
    program = pointwise(*body, given="float16", made="float16")
    kernels = (replace(program.kernels[0], floats=(0.1,)),)
    found = evaluated(widened(replace(program, kernels=kernels), HALF), X.double())
    assert torch.equal(found, X.double() * 0.1)
