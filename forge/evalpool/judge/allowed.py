"""What a candidate may reach by name: modules, and names in them. Used by `screen.py`.

Modules by allow-list (of torch and triton: whatever lies on disk under them and is not listed is
refused), names in them by what a kernel has no use for. Pure but for one look at where torch and
triton are installed; imports neither.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ALLOWED_IMPORTS = (
    *("torch", "triton", "math", "typing", "dataclasses", "functools", "itertools", "numpy"),
    "__future__",
)
_MODULES = {
    *("torch.nn.functional", "torch.nn.init", "torch.nn.parameter", "torch.nn.attention"),
    *("torch.autograd.function", "torch.cuda.amp", "torch.cuda.graphs", "torch.cuda.streams"),
    *("torch.backends.cpu", "torch.backends.cuda", "torch.backends.cudnn", "torch.backends.mkl"),
    *("torch.backends.mkldnn", "torch.backends.mps", "torch.backends.openmp"),
    *("torch.fft", "torch.linalg", "torch.random", "torch.special", "torch.version"),
    *("torch.nn", "torch.cuda", "torch.autograd", "torch.amp", "torch.backends"),
    "triton.language",
}
"""Below torch and triton, each by itself: what lies inside one may start programs."""
_LANGUAGE = {
    *("triton.language.core", "triton.language.math", "triton.language.standard"),
    *("triton.language.random", "triton.language.extra", "triton.language.target_info"),
}
"""Of triton, with what is inside them."""
_FORBIDDEN_IN = {
    "torch": {
        *("ops", "compile", "jit", "utils", "library", "multiprocessing", "distributed", "hub"),
        *("package", "load", "save", "from_file", "fx", "export", "overrides", "classes"),
        *("futures", "monitor", "profiler", "testing", "onnx", "from_numpy", "func"),
        *("from_dlpack", "to_dlpack", "frombuffer", "get_device_module", "get_file_path", "vmap"),
        *("use_deterministic_algorithms", "set_deterministic_debug_mode", "set_default_dtype"),
        *("set_default_device", "set_default_tensor_type", "fork", "wait", "import_ir_module"),
        *("import_ir_module_from_buffer", "parse_ir", "parse_schema", "parse_type_comment"),
        *("cond", "while_loop", "parallel", "DataParallel", "cudart", "memory", "tunable"),
        *("nccl", "comm", "MemPool", "use_mem_pool", "CUDAPluggableAllocator", "GreenContext"),
        *("change_current_allocator", "caching_allocator_alloc", "caching_allocator_delete"),
        *("ExternalStream", "get_stream_from_external", "set_stream", "pynvml", "ipc_collect"),
        *("set_per_process_memory_fraction", "current_blas_handle", "current_solver_handle"),
        *("opt_einsum", "is_storage", "typename", "np", "F", "m", "hooks", "cpp", "windows"),
        *("prepare_multiprocessing_environment", "handle_torch_function", "boolean_dispatch"),
        *("NewType", "deprecated", "classproperty", "warn"),
    },
    "triton": {
        *("runtime", "compiler", "tools", "backends", "testing", "knobs", "experimental"),
        *("profiler", "ir", "interpreter", "semantic", "builder", "constexpr_function"),
        *("driver", "str_to_ty", "module_from_spec", "builtin", "extern", "dispatch", "aggregate"),
        *("wraps", "dataclass", "Enum", "warn", "warn_once", "contextmanager", "JITCallable"),
        *("AsyncCompileMode", "FutureKernel"),
    },
}
"""Names that no kernel needs, at any depth."""
_TORCH_CLASSES = {"Size", "Generator", "OutOfMemoryError", "AcceleratorError", "SymInt"}
"""Directly below torch, beside the tensor types. Most others read or write files."""
_ONLY = {
    "functools": {
        *("partial", "reduce", "lru_cache", "cache", "wraps", "cached_property", "total_ordering"),
        "cmp_to_key",
    },
    "typing": {
        *("Annotated", "Any", "Callable", "ClassVar", "Collection", "Concatenate", "Container"),
        *("Dict", "Final", "FrozenSet", "Generator", "Generic", "Hashable", "Iterable"),
        *("Iterator", "List", "Literal", "LiteralString", "Mapping", "MutableMapping"),
        *("MutableSequence", "NamedTuple", "Never", "NoReturn", "Optional", "ParamSpec"),
        *("Protocol", "Self", "Sequence", "Set", "Sized", "SupportsFloat", "SupportsIndex"),
        *("SupportsInt", "TYPE_CHECKING", "Tuple", "Type", "TypeAlias", "TypeGuard", "TypeVar"),
        *("Union", "Unpack", "assert_never", "cast", "final", "overload", "runtime_checkable"),
    },
    "dataclasses": {
        *("dataclass", "field", "asdict", "astuple", "replace", "is_dataclass", "InitVar"),
        *("KW_ONLY", "FrozenInstanceError"),
    },
    "numpy": {
        *("pi", "e", "inf", "nan", "newaxis", "float16", "float32", "float64", "int8", "int16"),
        *("int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool_", "dtype", "finfo"),
        *("iinfo", "ndarray", "integer", "floating", "number", "sqrt", "cbrt", "log", "log2"),
        *("log10", "log1p", "exp", "exp2", "expm1", "power", "ceil", "floor", "round", "rint"),
        *("prod", "sum", "cumsum", "cumprod", "max", "min", "mean", "maximum", "minimum", "abs"),
        *("absolute", "sign", "clip", "sin", "cos", "tan", "tanh", "arange", "linspace", "zeros"),
        *("ones", "full", "isnan", "isinf", "isfinite", "gcd", "lcm", "mod", "floor_divide"),
    },
}
"""Of numpy what makes constants; of the rest what evaluates no text and sets no attribute."""
_HIDDEN_MODULES = {"torch.nn.functional.grad"}
_LANGUAGE_MODULES = {"core", "math", "standard", "random", "tl", "module", "libdevice"}
"""Modules that others import under names of their own: not to be seen on disk."""
_STDLIB = sys.stdlib_module_names - {"math", "random", "select", "trace", "signal", "cmath"}
FOREIGN = sys.stdlib_module_names - {*ALLOWED_IMPORTS}
"""Names of modules that no source gives a meaning to by itself."""
CLASSES = {
    *("torch.Tensor", "torch.nn.Module", "torch.nn.Parameter", "torch.autograd.Function"),
    *("torch.nn.parameter.Parameter", "torch.cuda.Event", "torch.cuda.Stream", "torch.Generator"),
    *("torch.cuda.CUDAGraph", "triton.language.tensor"),
    *("triton.language.core.tensor", "triton.language.constexpr", "triton.JITFunction"),
    *("triton.language.core.constexpr", "triton.KernelInterface", "triton.Config"),
}
"""What the judge's side of a runner, or Triton, works with: who holds such a class can patch it."""


def forbidden_part(path: str) -> str | None:
    """The first part of an imported thing's dotted path that is not for candidates."""
    first, *parts = path.split(".")
    if path in _HIDDEN_MODULES:
        return parts[-1]
    for number, part in enumerate(parts, 1):
        if part == "*" or part.startswith("_") or part in _FORBIDDEN_IN.get(first, ()):
            return part
        if part in _STDLIB or part in ALLOWED_IMPORTS[:2]:
            return part
        if number == 1 and not _is_public(first, part):
            return part
        if is_module(".".join([first, *parts[:number]])) and not _is_allowed_module(
            ".".join([first, *parts[:number]])
        ):
            return part
    return None


def _is_public(first: str, part: str) -> bool:
    if first == "torch" and part[0].isupper():
        return part.endswith("Tensor") or part in _TORCH_CLASSES
    return part in _ONLY.get(first, {part})


def _is_allowed_module(path: str) -> bool:
    return path in _MODULES or any(f"{path}.".startswith(f"{above}.") for above in _LANGUAGE)


@cache
def is_module(path: str) -> bool:
    """Whether a path is a module: what stands on disk, or can be imported at the top."""
    first, *parts = path.split(".")
    if not parts:
        return first in ALLOWED_IMPORTS
    folder = _folder(first)
    if folder is None:
        return False
    if path.startswith("triton.language.") and parts[-1] in _LANGUAGE_MODULES:
        return True
    place = folder.joinpath(*parts)
    return place.is_dir() or place.with_name(f"{place.name}.py").is_file()


@cache
def _folder(package: str) -> Path | None:
    """Of a package, without importing it."""
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(places))) if places else None
