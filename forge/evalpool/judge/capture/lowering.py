"""Lowers a specialised kernel to TTIR with Triton's own front end; compiles no further."""

from __future__ import annotations

import atexit
import math
import re
import traceback
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeAlias

from triton import language
from triton._C.libtriton import ir
from triton.compiler.compiler import make_backend
from triton.compiler.errors import CompilationError
from triton.language.semantic import TritonSemantic

from forge.evalpool.judge.capture.exchange import Unsupported
from forge.evalpool.judge.program import limits
from forge.evalpool.judge.program.format import Kernel, Options, Parameter

_PUBLIC = re.compile(r"tt\.func public @([\w.$]+|\"[^\"]*\")\(")
_LOCATION = re.compile(r'^#(loc\d*) = loc\((?:"((?:[^"\\]|\\.)*)":(\d+):\d+|(.*))\)$', re.MULTILINE)
_USE = re.compile(r"#loc\d*")
_LAST_USE = re.compile(r"loc\((#loc\d*)\)\s*$")
REFUSED_OPTIONS = ("ptx_options", "ir_override")
"""Options that reach the assembler's command line or replace a stage of the compiler."""
REFUSED_LAUNCHES: dict[str, Any] = {
    "num_ctas": 1,
    "cluster_dims": (1, 1, 1),
    "launch_cooperative_grid": False,
    "launch_pdl": False,
}
"""Options of clusters, cooperative launches and launches that overlap, with their only value."""
ADDRESS = "tt.ptr_to_int"
"""The operation of `ptr.to(tl.int64)`, which no program may have."""
LATE_OPTIONS = ("num_warps", "num_stages", "maxnreg")
"""Options that stages after TTIR use, and most kernels do not read."""


Text: TypeAlias = "tuple[str, tuple[int, ...], tuple[float, ...]]"
"""TTIR, the source line of each of its operations, and `Kernel.floats`."""
MAX_TEXTS = 64
MAX_TEXT_CHARACTERS = 256 << 10
MAX_USES = 64
"""Kernels that one MLIR context compiles: it keeps each type and place that it has seen."""


class Lowering:
    """Lowers kernels. Its texts and its MLIR context are for all captures of a process, which has
    one candidate, or plain ones, which change neither.

    Many answers to one problem have the same kernel, many configurations of an autotuner differ in
    late options alone, and a new context takes 3 ms.
    """

    def __init__(self) -> None:
        self._texts: OrderedDict[Any, Text] = OrderedDict()
        self._backend: Any = None
        self._context: Any = None
        self._num_uses = 0
        atexit.register(setattr, self, "_context", None)  # nanobind lists as leaks what is left

    def make_ahead(self, target: Any) -> None:
        """Makes a context for a target, in a process that will be forked. A context starts its
        threads with its first work, so none is running then."""
        self._backend = make_backend(target)
        self._make_context()

    def lower(self, source: Any, target: Any, options: Any, *, file: str) -> Kernel:
        """The kernel of Triton's `ASTSource`. `file` is the candidate's source, whose lines are
        reported.

        Raises:
            CompilationError: Triton refuses the kernel.
            Unsupported: an option outside the closed list.
        """
        if self._backend is None or self._backend.target != target:
            before, self._backend = self._backend, make_backend(target)
            if type(before) is not type(self._backend):
                self._context = None
        options = self._backend.parse_options({**(options or {}), **source.parse_options()})
        shown = shown_options(options)
        key = _key(source, target, options, file)
        text, lines, floats = self._texts.get(key) or self._lowered(key, source, options, file)
        if key in self._texts:
            self._texts.move_to_end(key)
        found = _PUBLIC.search(text)
        return Kernel(
            name=found.group(1).strip('"') if found else source.name,
            ttir=text,
            options=shown,
            parameters=tuple(parameters(source.signature)),
            lines=lines,
            floats=floats,
        )

    def _lowered(self, key: Any, source: Any, options: Any, file: str) -> Text:
        """A new text, which is kept if it depends on its key alone."""
        backend, watched = self._backend, Watched(options)
        if self._context is None or self._num_uses >= MAX_USES:
            self._make_context()
        self._num_uses += 1
        functions, modules = backend.get_codegen_implementation(options), backend.get_module_map()
        with _noted_floats() as floats:
            module = source.make_ir(backend.target, watched, functions, modules, self._context)
        _require_size(module, source.name, limits.MAX_UNOPTIMIZED, " before they are optimized")
        stages: dict[str, Any] = {}
        backend.add_stages(stages, options, source.language)
        if "ttir" not in stages:
            raise Unsupported("Gluon kernels: write the kernel in Triton's language")
        module = stages["ttir"](module, {})
        _require_size(module, source.name, limits.MAX_OPERATIONS)
        lines, text = operation_lines(str(module), file), module.str_nodebug()
        if ADDRESS in text:
            raise Unsupported(
                f"kernel {source.name}: a pointer as a number; index a tensor instead"
            )
        made = text, tuple(lines), tuple(floats)[: limits.MAX_FLOATS]
        if key is not None and not watched.is_read and len(text) <= MAX_TEXT_CHARACTERS:
            self._texts[key] = made
            if len(self._texts) > MAX_TEXTS:
                self._texts.popitem(last=False)
        return made

    def _make_context(self) -> None:
        """A new context, with all dialects of the backend."""
        self._context, self._num_uses = None, 0
        self._context = ir.context()
        ir.load_dialects(self._context)
        self._backend.load_dialects(self._context)


@contextmanager
def _noted_floats() -> Generator[dict[float, None]]:
    """Within, magnitudes of the numbers that Triton makes constants of, before it rounds them."""
    found: dict[float, None] = {}
    make: Any = TritonSemantic.scalar_constant

    def noting(self: Any, value: Any, dtype: Any) -> Any:
        # Every type has 8 bits of mantissa.
        is_float = isinstance(value, float) and math.isfinite(value)
        if is_float and not (math.frexp(value)[0] * 256).is_integer():
            found[abs(value)] = None
        return make(self, value, dtype)

    TritonSemantic.scalar_constant = noting
    try:
        yield found
    finally:
        TritonSemantic.scalar_constant = make


def _require_size(module: Any, name: str, most: int, when: str = "") -> None:
    """Raises Unsupported for a kernel of more operations than `most`."""
    found = 0

    def count(_operation: Any) -> None:
        nonlocal found
        found += 1

    module.walk(count)
    if found > most:
        raise Unsupported(f"kernel {name}: {found} operations{when}; {most} are allowed")


class Watched:
    """Options that notice if a kernel reads a late one of them."""

    def __init__(self, options: Any) -> None:
        self._options = options
        self.is_read = False

    def __getattr__(self, name: str) -> Any:
        self.is_read |= name in LATE_OPTIONS
        return getattr(self._options, name)


PLAIN = (bool, int, float, str, type(None), language.dtype)
"""Types of values whose text says everything about them."""


def _key(source: Any, target: Any, options: Any, file: str) -> Any:
    """The facts that decide a kernel's text and lines: the function and all that it calls,
    arguments, options except the late ones. None if a text depends on other than plain values."""
    key = source.fn.cache_key  # finds the globals, too
    constants = list(source.constants.items())
    names = [(name, one) for (name, _), (one, _) in source.fn.used_global_vals.items()]
    values = [one.value if type(one) is language.constexpr else one for _, one in names]
    early = {name: value for name, value in vars(options).items() if name not in LATE_OPTIONS}
    if not all(map(_says_all, (*values, *(one for _, one in constants), *early.values()))):
        return None
    named = [(name, type(one).__name__) for name, one in names]
    facts = (source.signature, source.attrs, constants, named, values, early, target, file)
    return key, repr(facts)


def _says_all(value: Any) -> bool:
    """True if the text of a value says everything about it."""
    if type(value) is tuple:
        return all(map(_says_all, value))
    return type(value) in PLAIN


def shown_options(options: Any) -> Options:
    """Options that a program may set. Raises Unsupported for the others that change the code."""
    for name in REFUSED_OPTIONS:
        if getattr(options, name, None):
            raise Unsupported(f"the launch option {name}: leave it out")
    for name, only in REFUSED_LAUNCHES.items():
        given = getattr(options, name, None) or only
        if (tuple(given) if isinstance(only, tuple) else given) != only:
            raise Unsupported(f"the launch option {name} cannot be judged: leave it out")
    names = [one.name for one in fields(Options) if hasattr(options, one.name)]
    return Options(**{name: getattr(options, name) for name in names})


def parameters(signature: dict[str, Any]) -> list[Parameter]:
    """Parameters of the kernel's function in TTIR. A tensor descriptor is followed by its shape and
    strides, as Triton passes them."""
    return [one for name, kind in signature.items() for one in _parameters(name, kind)]


def _parameters(name: str, kind: Any) -> list[Parameter]:
    if isinstance(kind, tuple | list):
        parts = [_parameters(f"{name}.{i}", one) for i, one in enumerate(kind)]
        return [one for part in parts for one in part]
    if kind == "constexpr":
        return []
    found = [Parameter(name=name, type=kind)]
    if kind.startswith("tensordesc"):  # as `tensordesc<fp16[64, 32]>`
        rank = kind[kind.index("[") + 1 : kind.index("]")].count(",") + 1
        found += [Parameter(name=f"{name}.shape.{i}", type="i32") for i in range(rank)]
        found += [Parameter(name=f"{name}.stride.{i}", type="i64") for i in range(rank)]
    return found


def operation_lines(text: str, file: str) -> list[int]:
    """Line in `file` of each operation of a module printed with locations, in textual order: the
    module first, an operation with regions before what is in them. 0 for other files."""
    known = {
        name: (place, int(number) if number else 0, inner or "")
        for name, place, number, inner in _LOCATION.findall(text)
    }
    cache: dict[str, int] = {}

    def line(name: str, depth: int = 0) -> int:
        if name not in cache:
            place, number, inner = known.get(name[1:], ("", 0, ""))
            uses = _USE.findall(inner) if depth < 50 else []
            found = (line(use, depth + 1) for use in uses)
            cache[name] = number if place == file else next((one for one in found if one), 0)
        return cache[name]

    lines: list[int] = []
    opened: list[int | None] = []
    for row in text.splitlines():
        body = row.strip()
        if not body or body.startswith(("#", "^", "//")):
            continue
        use = _LAST_USE.search(body)
        own = line(use.group(1)) if use else 0
        if body.startswith("}"):
            position = opened.pop() if opened else None
            if body.endswith("{"):
                opened.append(position)
            elif position is not None:
                lines[position] = own
            continue
        lines.append(own)
        if body.endswith("{") or body.endswith("({"):
            opened.append(len(lines) - 1)
    return lines


def compile_line(error: BaseException, file: str) -> int | None:
    """Innermost line of `file` that Triton's code generator was at."""
    found = None
    chain: BaseException | None = error
    while chain is not None:
        for frame, _ in traceback.walk_tb(chain.__traceback__):
            generator: Any = frame.f_locals.get("self")
            node: Any = getattr(generator, "cur_node", None)
            if getattr(generator, "file_name", None) == file and hasattr(node, "lineno"):
                found = generator.begin_line + node.lineno
        chain = chain.__cause__
    return found


def compile_words(error: BaseException) -> str:
    """The compiler's innermost message."""
    message, chain = "", error
    while chain is not None:
        if isinstance(chain, CompilationError):
            message = chain.error_message or message
        elif not message:
            message = f"{type(chain).__name__}: {chain}"
        chain = chain.__cause__
    found = re.fullmatch(r"(\w+)\((['\"])(.*)\2\)", message, re.DOTALL)
    return f"{found.group(1)}: {found.group(3)}" if found else message or str(error)
