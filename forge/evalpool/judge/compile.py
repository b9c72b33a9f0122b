"""Compiling each launched kernel for a GPU that is not there, beside Triton's interpreter.

Built once in the zygote, used in runners. Imports nothing of forge but their own files. Promise:
`compile_launch` gives the compiler exactly what a launch on a GPU would (types, constexprs,
options), and raises `Refused` in the compiler's words.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend
from triton.compiler.errors import CompilationError
from triton.runtime import interpreter
from triton.runtime.jit import create_function_from_signature

from forge.evalpool.judge.personalities import Refused
from forge.evalpool.judge.session import def_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.evalpool.judge.personalities import Personalities

TARGET = GPUTarget("cuda", 90, 32)
LAUNCH_OPTIONS = {"debug": False, "instrumentation_mode": "", "fpsan_homomorphic_casts": False}
"""What a launch adds to its options, as far as this version of Triton knows them."""


class Compiler:
    """Compiles what was launched, once a kernel and signature."""

    def __init__(self, personalities: Personalities) -> None:
        self._personalities = personalities
        self._backend: Any = make_backend(TARGET)
        self._known = vars(self._backend.parse_options({}))
        self._done: set[tuple[str, ...]] = set()

    def compile_launch(
        self,
        function: interpreter.InterpretedFunction,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        depth: str,
    ) -> None:
        """Compiles one kernel as launched with these arguments, unless that was done before.

        Args:
            depth: `ttir`, or `binary` for all stages.

        Raises:
            Refused: with the compiler's words.
        """
        with self._personalities.compiling():
            try:
                self._compile(function, args, dict(kwargs), depth=depth)
            except CompilationError as error:
                raise self._refused(error) from error
            except Refused:
                raise
            except Exception as error:
                words = str(error).replace("dynamic_func()", f"{function.fn.__name__}()")
                raise Refused(f"{type(error).__name__}: {words}", line=None) from error

    def _compile(
        self,
        function: interpreter.InterpretedFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        depth: str,
    ) -> None:
        twin = self._personalities.twin(function)
        if twin.bind is None:
            twin.bind = create_function_from_signature(twin.signature, twin.params, self._backend)
        kwargs |= {name: value for name, value in LAUNCH_OPTIONS.items() if name in self._known}
        bound, specialization, options = twin.bind(*args, **kwargs)
        options, signature, constexprs, attributes = twin._pack_args(
            self._backend, kwargs, bound, specialization, options
        )
        meaning = _meaning(function)
        for value in bound.values():
            if isinstance(value, interpreter.InterpretedFunction):
                meaning = _meaning(value, meaning)
        key = (*meaning, str(signature), str(constexprs))
        if key in self._done:
            return
        source = ASTSource(twin, signature, constexprs, attributes)
        context = ir.context()
        ir.load_dialects(context)
        self._backend.load_dialects(context)
        functions = self._backend.get_codegen_implementation(options)
        module = source.make_ir(TARGET, options, functions, self._backend.get_module_map(), context)
        if depth == "binary":
            self._lower(module, source, options)
        self._done.add(key)

    def _lower(self, module: Any, source: ASTSource, options: Any) -> None:
        metadata = {
            "hash": "",
            "target": TARGET,
            "triton_version": triton.__version__,
            **options.__dict__,
        }
        stages: dict[str, Any] = {}
        self._backend.add_stages(stages, options, source.language)
        for lower in stages.values():
            module = lower(module, metadata)

    def _refused(self, error: BaseException) -> Refused:
        """The innermost message, at the innermost line that is the candidate's."""
        starts = {
            twin.src: def_line(twin)
            for twin in self._personalities._twins.values()
            if not twin.module.startswith("triton.")
        }
        line, message = None, ""
        chain: BaseException | None = error
        while chain is not None:
            if isinstance(chain, CompilationError):
                start = starts.get(chain.src or "")
                own_line = getattr(chain.node, "lineno", None)
                if start is not None and own_line is not None:
                    line = start + own_line - 1
                message = chain.error_message or message
            elif not message:
                message = f"{type(chain).__name__}: {chain}"
            chain = chain.__cause__
        return Refused(_plain(message or str(error)), line=line)


def _meaning(
    function: interpreter.InterpretedFunction, known: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """A function and what its names stand for now: one name may come to mean another helper."""
    parts = (*known, f"{id(function.fn)}")
    names = inspect.getclosurevars(function.fn)
    seen = {**names.globals, **names.nonlocals}
    constants = [value for value in seen.values() if isinstance(value, tl.constexpr)]
    defaults = [*(function.fn.__defaults__ or ()), *(function.fn.__kwdefaults__ or {}).values()]
    if (
        odd := next((one for one in [*constants, *defaults] if not _is_plain(one)), None)
    ) is not None:
        value = odd.value if isinstance(odd, tl.constexpr) else odd
        raise Refused(f"{type(value).__name__} is no constant for a kernel", line=None)
    for name, value in seen.items():
        if isinstance(value, interpreter.InterpretedFunction) and f"{id(value.fn)}" not in parts:
            parts = _meaning(value, parts)
        elif isinstance(value, int | float | str | tl.constexpr):
            parts = (*parts, f"{name}={value!r}")
    return parts


def _is_plain(value: Any) -> bool:
    """Whether a constant is now what it was: an object may change, one of a derived class too."""
    if type(value) is tl.constexpr:
        return _is_plain(value.value)
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))
    kinds = (int, float, bool, str, type(None), tl.dtype, interpreter.InterpretedFunction)
    return type(value) in (*kinds, *np.sctypeDict.values())


def _plain(message: str) -> str:
    """`NameError('x is not defined')`, as the compiler has it, to `NameError: x is not defined`."""
    found = re.fullmatch(r"(\w+)\((['\"])(.*)\2\)", message, re.DOTALL)
    return f"{found.group(1)}: {found.group(3)}" if found else message
