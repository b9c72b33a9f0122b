# pyright: strict
"""The closed lists of what a plain source may name.

Each entry is harmless whatever it is called with: it computes, describes or records. Not here, and
never to be added: what loads, saves, registers, hooks, seeds, switches, prints or formats, what
returns a module, and what hands out a function's or a class's inside.
"""

from __future__ import annotations

IMPORTS = {
    "torch": "torch",
    "torch.nn": "nn",
    "torch.nn.functional": "F",
    "triton": "triton",
    "triton.language": "tl",
    "math": "math",
}
"""Modules that may be imported, with the only other name that each may get."""

BUILTINS = frozenset(
    {
        *("abs", "bool", "float", "int", "isinstance", "len", "list", "max", "min", "range"),
        *("round", "sum", "super", "tuple", "zip", "enumerate", "dict", "reversed", "sorted"),
        *("ValueError", "AssertionError"),
    }
)
"""Builtins that may be used."""

LANGUAGE = frozenset(
    {
        *("abs", "advance", "arange", "argmax", "argmin", "associative_scan", "atomic_add"),
        *("atomic_max", "atomic_min", "bfloat16", "broadcast", "broadcast_to", "cast", "cat"),
        *("cdiv", "ceil", "clamp", "constexpr", "cos", "cumprod", "cumsum", "debug_barrier"),
        *("device_assert", "div_rn", "dot", "erf", "exp", "exp2", "expand_dims", "fdiv", "flip"),
        *("float16", "float32", "float64", "floor", "fma", "full", "int1", "int16", "int32"),
        *("int64", "int8", "join", "load", "log", "log2", "make_block_ptr", "max"),
        *("max_contiguous", "maximum", "min", "minimum", "multiple_of", "num_programs"),
        *("program_id", "ravel", "reduce", "reshape", "rsqrt", "sigmoid", "sin", "softmax"),
        *("sort", "split", "sqrt", "sqrt_rn", "static_assert", "static_range", "store", "sum"),
        *("swizzle2d", "trans", "uint16", "uint32", "uint64", "uint8", "umulhi"),
        *("view", "where", "xor_sum", "zeros", "zeros_like", "range"),
    }
)
"""Names of `triton.language`."""

FUNCTIONS = frozenset(
    {
        *("abs", "add", "addmm", "amax", "amin", "argmax", "argmin", "baddbmm", "bmm", "cat"),
        *("ceil", "celu", "clamp", "cos", "cosine_similarity", "cross_entropy", "cummax"),
        *("cummin", "cumprod", "cumsum", "div", "einsum", "elu", "erf", "exp", "exp2", "expm1"),
        *("flatten", "floor", "fmod", "gather", "gelu", "group_norm", "hardshrink"),
        *("hardsigmoid", "hardswish", "hardtanh", "isfinite", "l1_loss", "layer_norm"),
        *("leaky_relu", "lerp", "linear", "log", "log1p", "log2", "log_softmax", "logsigmoid"),
        *("logsumexp", "matmul", "max", "maximum", "mean", "min", "minimum", "mish", "mm"),
        *("mse_loss", "mul", "mv", "neg", "norm", "normalize", "outer", "pad", "permute", "pow"),
        *("prod", "reciprocal", "relu", "relu6", "remainder", "reshape", "rms_norm", "round"),
        *("rsqrt", "selu", "sigmoid", "sign", "silu", "sin", "smooth_l1_loss", "softmax"),
        *("softmin", "softplus", "softshrink", "softsign", "sqrt", "square", "squeeze", "stack"),
        *("std", "sub", "sum", "tanh", "tanhshrink", "threshold", "transpose", "tril", "triu"),
        *("unsqueeze", "var", "where"),
    }
)
"""Functions of torch that compute: what the judge says to them is not for here."""

PATHS = frozenset(
    {
        *("triton.cdiv", "triton.next_power_of_2"),
        *(f"tl.{name}" for name in LANGUAGE),
        *("torch.empty", "torch.empty_like", "torch.zeros", "torch.zeros_like", "torch.ones"),
        *("torch.ones_like", "torch.full", "torch.full_like", "torch.arange", "torch.Tensor"),
        *("torch.float16", "torch.bfloat16", "torch.float32", "torch.float64", "torch.float"),
        *("torch.half", "torch.int8", "torch.int16", "torch.int32", "torch.int64", "torch.int"),
        *("torch.long", "torch.uint8", "torch.bool", "torch.Size", "torch.broadcast_shapes"),
        *("torch.contiguous_format", "torch.empty_strided", "torch.rand", "torch.randn"),
        *(f"torch.{name}" for name in FUNCTIONS),
        *(f"F.{name}" for name in FUNCTIONS),
        *("nn.Module", "nn.Parameter", "nn.Linear", "nn.LayerNorm", "nn.Embedding"),
        *("nn.BatchNorm1d", "nn.BatchNorm2d", "nn.GroupNorm", "nn.Conv1d", "nn.Conv2d"),
        *("nn.ModuleList",),
        *("math.ceil", "math.floor", "math.sqrt", "math.log2", "math.pi", "math.exp", "math.inf"),
        *("math.log", "math.prod", "math.e"),
    }
)
"""Attributes of modules that may be used, as a source names them."""

ATTRIBUTES = frozenset(
    {
        *("T", "to", "bool", "contiguous", "device", "dim", "dtype", "element_size", "expand"),
        *("expand_as", "fill_", "flatten", "float", "half", "is_contiguous", "is_cuda"),
        *("itemsize", "long", "movedim", "mT", "ndim", "ndimension", "new_empty", "new_full"),
        *("new_ones", "new_zeros", "numel", "permute", "reshape", "shape", "size", "squeeze"),
        *("stride", "t", "transpose", "unsqueeze", "view", "view_as", "zero_", "element_ty"),
        *("append", "bit_length", "weight", "bias", "eps", "is_floating_point", "clone"),
        *("add_", "amax", "amin", "exp", "sum", "mean", "mul_", "sqrt", "softmax", "tanh"),
        *("type", "value", "cumsum", "max", "min", "relu", "sigmoid", "matmul", "abs", "pow"),
    }
)
"""Attributes of any value: of tensors, of shapes and sizes, of layers, of lists."""
