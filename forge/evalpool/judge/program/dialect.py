"""The closed list of TTIR: operations, words, library functions and inline assembly of a kernel.

Data and small pure functions. Two readers check a kernel against it: the compiler's child over the
module that MLIR parsed, and our own parser of the same text (`forge.evalpool.judge.ttir`). What is
missing here cannot be compiled, so the list holds what Triton's frontend emits (3.5 to 3.9), less
what reaches memory, time or code beside the arguments of a kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


def _qualified(dialect: str, names: str) -> frozenset[str]:
    return frozenset(f"{dialect}.{name}" for name in names.split())


POINTERS = _qualified("tt", "addptr advance make_tensor_ptr")
"""Operations that compute addresses. `tt.int_to_ptr` is refused, and so is `tt.ptr_to_int`: where a
tensor lies decides nothing."""
MEMORY = _qualified(
    "tt",
    "load store atomic_rmw atomic_cas atomic_load atomic_store atomic_poll make_tensor_descriptor "
    "descriptor_load descriptor_store descriptor_gather descriptor_scatter descriptor_reduce",
)
"""Operations that access global memory, or make a descriptor that does."""
STRIPPED = _qualified("tt", "print assert")
"""Operations without a result that are removed before compilation: device text is not formatted."""
TENSORS = _qualified(
    "tt",
    "approx_divf bitcast broadcast cat clampf dot dot_scaled expand_dims fp_to_fp gather histogram "
    "join make_range map_elementwise mulhiui precise_divf precise_sqrt reduce reshape scan splat "
    "split trans unsplat extern_elementwise elementwise_inline_asm",
)
"""Operations on values alone."""
STRUCTURE = (
    frozenset({"builtin.module", "llvm.intr.assume", "gpu.barrier", "ttg.barrier"})
    | _qualified(
        "tt",
        "func call return reduce.return scan.return map_elementwise.return get_program_id "
        "get_num_programs",
    )
    | _qualified("scf", "for while if yield condition")
    | _qualified("cf", "br cond_br switch")
    | _qualified("ub", "poison unreachable")
)
"""Functions, control flow, indices of the program, `tl.assume` and `tl.debug_barrier`."""
ARITHMETIC = _qualified(
    "arith",
    "addf addi andi bitcast cmpf cmpi constant divf divsi divui extf extsi "
    "extui fptosi fptoui index_cast index_castui maximumf maxnumf maxsi maxui minimumf "
    "minnumf minsi minui mulf muli negf ori remf remsi remui select shli shrsi shrui sitofp subf "
    "subi truncf trunci uitofp xori convertf",
)
MATHS = _qualified(
    "math", "absf absi ceil clampf cos erf exp exp2 floor fma log log2 rsqrt sin sqrt"
)
"""Functions that the frontend's builder makes; all others are calls of a library."""
OPERATIONS = POINTERS | MEMORY | STRIPPED | TENSORS | STRUCTURE | ARITHMETIC | MATHS
"""Every operation that a kernel may hold."""

ELEMENTS = _words(
    "i1 i8 i16 i32 i64 i128 f16 bf16 f32 f64 f8E4M3FN f8E5M2 f8E4M3FNUZ f8E5M2FNUZ f8E4M3B11FNUZ "
    "index"
)
"""Element types."""
TYPES = frozenset({"!tt.ptr", "!tt.tensordesc", "tensor"})
ALIASES = _words(
    "#tt.cache_policy #llvm.loop_annotation #llvm.loop_licm #loop_annotation #loop_licm"
)
"""Attributes of a dialect, and the names that MLIR gives them at the head of a module: those of
`tl.range(disable_licm=True)` and of cache policies (Triton 3.8 and later)."""
ATTRIBUTES = _words(
    # hints of the frontend
    "tt.divisibility tt.contiguity tt.constancy tt.pointer_range tt.nv_tma_desc tt.num_stages "
    "tt.loop_unroll_factor tt.disallow_acc_multi_buffer tt.flatten tt.warp_specialize "
    "llvm.loop_annotation "
    # properties of operations
    "noinline sym_visibility sym_name function_type arg_attrs res_attrs axis reverse start end "
    "order value predicate pack allow_reorder efficient_layout fastMath fastmath overflowFlags "
    "cachePolicy cache evict isVolatile boundaryCheck padding operandSegmentSizes inputPrecision "
    "maxNumImpreciseAcc rounding lhs_k_pack rhs_k_pack propagateNan hex isSigned libname libpath "
    "symbol pure constraints packed_element case_operand_segments case_values mode fp_type"
)
"""Names of attributes. Those of later stages (`ttg.num-warps`, `allocation.offset`,
`tt.loop_schedule`, `passthrough`, `llvm.linkage`, ...) are refused."""
KEYWORDS = _words(
    # structure
    "module attributes public private array dense true false to do else iter_args step default "
    "case none unit licm disable versioningDisable x y z all "
    # memory
    "cacheModifier evictionPolicy cache_modifier eviction_policy ca cg wb cs wt cv "
    "evict_first evict_last evict_normal normal "
    "add fadd and or xor max min umax umin exch inc_wrap dec_wrap "
    "relaxed acquire release acq_rel gpu cta sys local_sys "
    # arithmetic
    "eq ne slt sle sgt sge ult ule ugt uge oeq ogt oge olt ole one ord ueq une uno "
    "fast nnan ninf nsz arcp contract afn reassoc nsw nuw nneg overflow fastmath exact "
    "rtne rtz rounding propagateNan allow_reorder efficient_layout "
    "to_nearest_even downward upward toward_zero to_nearest_away "
    # products
    "inputPrecision maxNumImpreciseAcc tf32 tf32x3 ieee bf16x3 bf16x6 scale lhs rhs fastMath "
    "e4m3 e5m2 e2m3 e3m2 e2m1 bf16 fp16"
)
"""Other words of the text as MLIR prints it."""
WORDS = OPERATIONS | ELEMENTS | TYPES | ALIASES | ATTRIBUTES | KEYWORDS
"""Every bare word of a kernel's text; dimensions (`128x64x`) and numbers are no words."""

BOTH: Mapping[str, str] = {
    "T -> T": (
        "acos acosh asin asinh atan atanh cbrt ceil cos cosh cospi cyl_bessel_i0 cyl_bessel_i1 "
        "erf erfc erfcinv erfcx erfinv exp exp10 exp2 expm1 fabs floor j0 j1 lgamma log log10 "
        "log1p log2 logb nearbyint normcdf normcdfinv rcbrt rint round rsqrt sin sinh sinpi sqrt "
        "tan tanh tgamma trunc y0 y1"
    ),
    "T -> i32": "ilogb",
    "T -> i64": "llrint llround",
    "T, T -> T": "atan2 copysign fdim fmod hypot nextafter pow remainder rhypot",
    "T, T, T -> T": "fma norm3d rnorm3d",
    "T, T, T, T -> T": "norm4d rnorm4d",
    "T, i32 -> T": "ldexp powi scalbn",
    "i32, T -> T": "jn yn",
}
"""Functions of NVIDIA's libdevice for float64, without their prefix `__nv_`, by the types of their
scalars; for float32 an `f` follows the name. Functions that take a pointer (`sincosf`, `frexp`,
`modf`, `remquo`) are missing on purpose."""
LIBDEVICE: Mapping[str, str] = {
    "f32 -> f32": (
        "fast_cosf fast_exp10f fast_expf fast_log10f fast_log2f fast_logf fast_sinf fast_tanf "
        "frcp_r* frsqrt_rn fsqrt_r* saturatef"
    ),
    "f32 -> i32": (
        "finitef float2int_r* float2uint_r* float_as_int float_as_uint isinff isnanf signbitf"
    ),
    "f32 -> i64": "float2ll_r* float2ull_r*",
    "f32, f32 -> f32": "fadd_r* fast_fdividef fast_powf fdiv_r* fmul_r* fsub_r*",
    "f32, f32, f32 -> f32": "fmaf_r*",
    "f64 -> f32": "double2float_r*",
    "f64 -> f64": "drcp_r* dsqrt_r* rcp64h",
    "f64 -> i32": (
        "double2hiint double2int_r* double2loint double2uint_r* isfinited isinfd isnand signbitd"
    ),
    "f64 -> i64": "double2ll_r* double2ull_r* double_as_longlong",
    "f64, f64 -> f64": "dadd_r* ddiv_r* dmul_r* dsub_r*",
    "f64, f64, f64 -> f64": "fma_r*",
    "i32 -> f32": "int2float_r* int_as_float uint2float_r* uint_as_float",
    "i32 -> f64": "int2double_rn uint2double_rn",
    "i32 -> i32": "abs brev clz ffs popc",
    "i32, i32 -> f64": "hiloint2double",
    "i32, i32 -> i32": "hadd mul24 mulhi rhadd uhadd umul24 umulhi urhadd",
    "i32, i32, i32 -> i32": "byte_perm sad usad",
    "i64 -> f32": "ll2float_r* ull2float_r*",
    "i64 -> f64": "ll2double_r* longlong_as_double ull2double_r*",
    "i64 -> i32": "clzll ffsll popcll",
    "i64 -> i64": "brevll llabs",
    "i64, i64 -> i64": "mul64hi umul64hi",
}
"""Its other functions; `*` stands for the roundings `d`, `n`, `u` and `z`."""

OCML: Mapping[str, str] = {
    "T -> T": (
        "acos acosh asin asinh atan atanh ceil cos cosh erf erfc erfcx erfinv exp2 exp expm1 floor "
        "i0 i1 j0 j1 lgamma log10 log1p log2 log nearbyint round rsqrt sin sinh sqrt tan tanh "
        "trunc y0 y1"
    ),
    "T -> i32": "ilogb isfinite isinf isnan signbit",
    "T, T -> T": "atan2 copysign fmod hypot nextafter pow",
    "T, T, T -> T": "fma",
    "T, i32 -> T": "ldexp pown",
}
"""AMD's device library, `__ocml_NAME_f32` and `_f64`, by the types of scalars."""
OTHERS: Mapping[str, str] = {
    "f32 -> f32": (
        "__triton_hip_fabs __triton_hip_fast_expf __triton_hip_fast_tanhf __triton_hip_rint"
    ),
    "f32 -> i64": "__triton_hip_llrint",
    "f32, f32 -> f32": "__triton_hip_fast_fdividef",
    "f64 -> f64": "__triton_hip_fabs __triton_hip_rint",
    "f64 -> i64": "__triton_hip_llrint",
    "i32 -> i32": "__ockl_clz_u32 __ockl_popcount_u32 __triton_hip_iabs",
    "i64 -> i32": "__ockl_popcount_u64",
    "i64 -> i64": "__ockl_clz_u64 __triton_hip_iabs",
}
"""Others that Triton calls on AMD's cards."""


def _externs() -> dict[str, frozenset[str]]:
    found = dict[str, set[str]]()

    def add(name: str, signature: str) -> None:
        for one in [name.replace("*", kind) for kind in "dnuz"] if "*" in name else [name]:
            found.setdefault(one, set()).add(signature)

    for table, prefix in ((LIBDEVICE, "__nv_"), (OTHERS, "")):
        for signature, names in table.items():
            for name in names.split():
                add(prefix + name, signature)
    for kind in ("f32", "f64"):
        for signature, names in BOTH.items():
            for name in names.split():
                suffix = "f" if kind == "f32" else ""
                add(f"__nv_{name}{suffix}", signature.replace("T", kind))
        for signature, names in OCML.items():
            for name in names.split():
                add(f"__ocml_{name}_{kind}", signature.replace("T", kind))
    return {name: frozenset(signatures) for name, signatures in found.items()}


EXTERN: Mapping[str, frozenset[str]] = _externs()
"""Signatures (`f32, f32 -> f32`) of each function that `tt.extern_elementwise` may call."""

_TEMPLATE = re.compile(
    r"\s*(?:cos|ex2|lg2|rcp|rsqrt|sin|sqrt|tanh)\.approx(?:\.ftz)?\.f32\s+\$0\s*,\s*\$1\s*;?\s*"
)
_CONSTRAINTS = re.compile(r"=[fr]\s*,\s*[fr]")


def refused_assembly(template: str, constraints: str) -> str:
    """The reason to refuse inline assembly, or an empty string for one approximate instruction of
    PTX on a float32: `tanh.approx.f32 $0, $1;` and its like are functions that Triton lacks."""
    if _TEMPLATE.fullmatch(template) and _CONSTRAINTS.fullmatch(constraints.strip()):
        return ""
    text = " ".join(f"{template} {constraints}".split())[:80]
    return f"assembly cannot be judged but for one approximate instruction on float32: {text!r}"
