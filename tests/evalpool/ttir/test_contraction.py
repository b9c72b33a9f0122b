"""Products that a card's compiler fuses with a sum: which ones, and what comes out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge.evalpool.judge.ttir.contraction import ALL, NONE, contracted, contraction_of
from forge.evalpool.judge.ttir.grammar.parser import parse
from forge.evalpool.judge.ttir.verify import operations_of
from tests.evalpool.ttir.kernels import kernel, pointers, run

PARAMETERS = ", ".join([*(f"%{one}: !tt.ptr<f32>" for one in "abcdy"), "%s: f32"])
KIND = "tensor<16xf32>"
DRAW = np.random.default_rng(0)
A, B, C, D = (DRAW.standard_normal(32).astype(np.float32) for _ in range(4))
S = np.float32(1.1)


def loads() -> str:
    lines = [pointers(one) for one in "abcdy"]
    lines += [f"    %{one}.value = tt.load %{one}.at : tensor<16x!tt.ptr<f32>>" for one in "abcd"]
    return "\n".join(lines) + "\n"


def source_of(body: str) -> str:
    """The kernel that stores `%r`; `%av` to `%dv` are its blocks of inputs."""
    text = re.sub(r"%([abcd])v\b", r"%\1.value", body)
    store = "\n    tt.store %y.at, %r : tensor<16x!tt.ptr<f32>>"
    return kernel(PARAMETERS, loads() + text + store)


def evaluated(body: str, *, fusion: int = ALL, s: float = float(S)) -> Any:
    """The content of `%y` after the kernel."""
    y = np.zeros(32, np.float32)
    run(source_of(body), 2, A, B, C, D, y, s, fusion=fusion)
    return y


def once(a: Any, b: Any, c: Any) -> Any:
    """`a * b + c` with one rounding."""
    return (np.asarray(a, np.float64) * b + c).astype(np.float32)


PRODUCT = f"    %p = arith.mulf %av, %bv : {KIND}\n"
OTHER = f"    %q = arith.mulf %cv, %dv : {KIND}\n"
SQUARE = f"    %t = arith.mulf %s, %s : f32\n    %ts = tt.splat %t : f32 -> {KIND}\n"
MAXIMUM = f"    %r = arith.maximumf %t, %p : {KIND}"
CASES: dict[str, tuple[str, Any, Any]] = {
    "the product on the left": (
        f"{PRODUCT}    %r = arith.addf %p, %cv : {KIND}", once(A, B, C), A * B + C,
    ),
    "the product on the right": (
        f"{PRODUCT}    %r = arith.addf %cv, %p : {KIND}", once(A, B, C), A * B + C,
    ),
    "a difference from the product": (
        f"{PRODUCT}    %r = arith.subf %p, %cv : {KIND}", once(A, B, -C), A * B - C,
    ),
    "a difference of the product": (
        f"{PRODUCT}    %r = arith.subf %cv, %p : {KIND}", once(-A, B, C), C - A * B,
    ),
    "the left one of two": (
        f"{PRODUCT}{OTHER}    %r = arith.addf %p, %q : {KIND}", once(A, B, C * D), A * B + C * D,
    ),
    "the one with fewer uses": (
        f"{PRODUCT}{OTHER}    %t = arith.addf %p, %q : {KIND}\n{MAXIMUM}",
        np.maximum(once(C, D, A * B), A * B), np.maximum(A * B + C * D, A * B),
    ),
    "a product of scalars": (
        f"{SQUARE}    %r = arith.subf %cv, %ts : {KIND}",
        once(-S, S, C), C - S * S,
    ),
    "no product": (f"    %r = arith.addf %av, %cv : {KIND}", A + C, A + C),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_sum_of_a_product_is_rounded_once_where_its_launch_fuses(name: str) -> None:
    body, fused, plain = CASES[name]
    assert np.array_equal(evaluated(body), fused)
    assert np.array_equal(evaluated(body, fusion=NONE), plain)
    assert np.array_equal(fused, plain) == (name == "no product")


def test_each_sum_has_a_bit_of_its_own() -> None:
    body = (
        f"{PRODUCT}{OTHER}    %t = arith.addf %p, %cv : {KIND}\n"
        f"    %u = arith.subf %q, %av : {KIND}\n    %r = arith.addf %t, %u : {KIND}"
    )
    assert np.array_equal(evaluated(body, fusion=0b01), once(A, B, C) + (C * D - A))
    assert np.array_equal(evaluated(body, fusion=0b10), (A * B + C) + once(C, D, -A))


def test_a_branch_fuses_with_a_product_from_outside() -> None:
    body = f"""{PRODUCT}    %zero = arith.constant 0 : i32
    %first = arith.cmpi eq, %pid, %zero : i32
    %r = scf.if %first -> ({KIND}) {{
      %t = arith.subf %p, %cv : {KIND}
      scf.yield %t : {KIND}
    }} else {{
      scf.yield %dv : {KIND}
    }}"""
    assert np.array_equal(evaluated(body), np.concatenate([once(A, B, -C)[:16], D[16:]]))


def test_a_product_that_is_not_exact_minus_its_rounded_value_is_its_error() -> None:
    """As `a * a - k == 0.0`, which holds on no card."""
    a = np.float32(1 + 2.0**-12)
    body = f"""    %t = arith.mulf %s, %s : f32
    %k = arith.constant {float(a * a)!r} : f32
    %e = arith.subf %t, %k : f32
    %r = tt.splat %e : f32 -> {KIND}"""
    assert set(evaluated(body, s=float(a))) == {np.float32(2.0**-24)}
    assert set(evaluated(body, s=float(a), fusion=NONE)) == {0.0}


def test_narrow_types_are_fused_in_their_own_type() -> None:
    source = kernel(
        "%x: !tt.ptr<f16>, %y: !tt.ptr<f16>",
        pointers("x", kind="f16")
        + pointers("y", kind="f16")
        + """    %v = tt.load %x.at : tensor<16x!tt.ptr<f16>>
    %p = arith.mulf %v, %v : tensor<16xf16>
    %r = arith.addf %p, %v : tensor<16xf16>
    tt.store %y.at, %r : tensor<16x!tt.ptr<f16>>""",
    )
    x = np.random.default_rng(1).standard_normal(16).astype(np.float16)
    y = np.zeros_like(x)
    run(source, 1, x, y)
    wide = x.astype(np.float64)
    assert np.array_equal(y, (wide * wide + wide).astype(np.float16))
    run(source, 1, x, y, fusion=NONE)
    assert np.array_equal(y, x * x + x)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_tritons_compiler_fuses_as_many_sums(name: str, tmp_path: Path) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import compile

    path = tmp_path / "k.ttir"
    path.write_text(source_of(CASES[name][0]))
    ptx = compile(str(path), target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    assert len(re.findall(r"\bfma\.rn\.f32", ptx)) == len(sums_of(CASES[name][0]))


def sums_of(body: str) -> list[Any]:
    found = contracted(parse(source_of(body)).functions["k"])
    return [one for one in operations_of(found) if contraction_of(one) is not None]
