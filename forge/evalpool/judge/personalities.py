"""Both of Triton's personalities in one process: the interpreter, and what compiles.

Imported with TRITON_INTERPRET=1 it runs kernels as numpy, and for every interpreted function this
file keeps a real JITFunction. `Personalities` swaps the ~300 attributes that differ, which takes
0.1 ms instead of another process; it also spares the interpreter its own patching at every call (a
softmax launch: 22 ms before, 9 after). Built once in the zygote, used by `compile.py` in runners.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import types
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import triton
import triton.compiler.code_generator  # imports gluon: only in the personality it starts in
import triton.language as tl
from triton import knobs
from triton.compiler.code_generator import CodeGenerator
from triton.compiler.errors import CompilationError
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from forge.evalpool.judge.session import def_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INTERPRETER_HELPERS = ("interpreter_semantic", "_InterpreterComparison")
"""What the interpreter's rewriting of a kernel refers to; Triton 3.6 has the first only."""
LANGUAGE_MODULES = ("triton.language", "triton.language.standard", "triton.language.core")
_ABSENT = object()
_TRITON = str(Path(triton.__file__).parent)


class Refused(Exception):
    """The compiler does not take a kernel. `line` is the candidate's, where it is known."""

    def __init__(self, message: str, *, line: int | None) -> None:
        super().__init__(message)
        self.line = line


class Twin(JITFunction):
    """The compilable side of an interpreted function. What it sees of its globals are twins too."""

    bind: Any = None
    """Arguments to types and constexprs; made at the first launch."""
    running: Callable[..., Any] | None = None
    """The same source for the interpreter; made when it is first run."""

    def get_capture_scope(self) -> dict[str, Any]:
        scope = super().get_capture_scope()
        return {name: self.translate(value) for name, value in scope.items() if not _poses(value)}

    def translate(self, value: Any) -> Any:
        return value


class Personalities:
    """Swaps triton.language between running and compiling. It is left in the running one."""

    def __init__(self) -> None:
        self._twins: dict[int, Twin] = {}
        self._originals: dict[int, Any] = {}
        self._swaps: list[tuple[Any, str, Any, Any]] = []
        self._note_builtins()
        self._note_standard_library()
        for _, _, compiled, running in self._swaps:
            self._originals[id(running)] = compiled
        self._enter_running()
        # As on a GPU outside debug mode. The interpreter's default doubles the cost of a launch.
        options = dataclasses.replace(
            interpreter.interpreter_builder.options, sanitize_overflow=False
        )
        interpreter.interpreter_builder.options = options
        interpreter._patch_lang = lambda fn: _NoPatch()
        kind: Any = interpreter.InterpretedFunction
        kind.run = lambda function, *args, **kwargs: self._launch(function, args, **kwargs)
        CodeGenerator.call_Function = _checked(
            CodeGenerator.call_Function, translate=self._translate
        )
        kind.__call__ = lambda function, *args, **kwargs: self._call(function, args, kwargs)
        Autotuner.do_bench = property(lambda self: _take_first)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Within: triton.language as the compiler needs it."""
        for owner, name, compiled, _ in self._swaps:
            _set(owner, name, compiled)
        knobs.runtime.interpret = False
        try:
            yield
        finally:
            self._enter_running()

    def _launch(
        self, function: Any, args: tuple[Any, ...], *, grid: Any, warmup: bool, **kwargs: Any
    ) -> None:
        """Runs a kernel as Triton does, but for what the candidate could put in its place: the
        function that runs, the names of its arguments, and these once they are settled."""
        if warmup:
            return
        twin = self.twin(function)
        shape = (lambda meta: grid(dict(meta))) if callable(grid) else grid
        interpreter.GridExecutor(_running(twin), twin.arg_names, shape)(*args, **kwargs)

    def _call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One kernel called in another."""
        try:
            return _running(self.twin(function))(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    def twin(self, function: interpreter.InterpretedFunction) -> Twin:
        """The compilable side of a function; one a function."""
        key = id(function.fn)
        if key not in self._twins:
            if hasattr(function.fn, "__wrapped__"):  # its source is that one's, its names are not
                raise Refused("a kernel may not wrap another function", line=None)
            allowed = (
                "do_not_specialize",
                "do_not_specialize_on_alignment",
                "debug",
                "noinline",
                "repr",
            )
            options = {name: function.kwargs.get(name) for name in allowed}
            twin = Twin(function.fn, **options)
            twin.translate = self._translate
            self._twins[key] = twin
        return self._twins[key]

    def _translate(self, value: Any) -> Any:
        if isinstance(value, interpreter.InterpretedFunction):
            return self.twin(value)
        return self._originals.get(id(value), value)

    def _enter_running(self) -> None:
        for owner, name, _, running in self._swaps:
            _set(owner, name, running)
        knobs.runtime.interpret = True

    def _note_builtins(self) -> None:
        """What the interpreter replaces at every launch: learnt by letting it, then undone."""
        space = {"tl": tl, "core": tl.core}
        scope = interpreter._patch_lang(types.FunctionType((lambda: None).__code__, space))
        seen: dict[tuple[int, str], tuple[Any, Any]] = {}
        for owner, name, original in scope._changes:
            raw = _ABSENT if original is interpreter._MISSING else original
            seen.setdefault((id(owner), name), (owner, raw))
        noted = [(owner, name, raw, vars(owner)[name]) for (_, name), (owner, raw) in seen.items()]
        scope.restore()
        for owner, name, raw, running in noted:
            self._swaps.append((owner, name, vars(owner).get(name, raw), running))

    def _note_standard_library(self) -> None:
        """tl.sum, tl.zeros, ...: interpreted functions, in modules and as methods of tl.tensor."""
        for module in _language_modules():
            for name, value in list(vars(module).items()):
                if isinstance(value, interpreter.InterpretedFunction):
                    self._swaps.append((module, name, self.twin(value), value))
        for name, value in list(vars(tl.tensor).items()):
            inner = _wrapped_function(value)
            if inner is not None:
                self._swaps.append((tl.tensor, name, self.twin(inner), value))


def _running(twin: Twin) -> Callable[..., Any]:
    """What the interpreter runs, made of the very text that is compiled. Triton's own way asks the
    kernel object for it, evaluates defaults again and leaves its modules in the candidate's."""
    if twin.running is None:
        tree = twin.parse()
        function = tree.body[0]
        assert isinstance(function, ast.FunctionDef)
        interpreter.ASTTransformer().visit(function)
        ast.increment_lineno(tree, def_line(twin) - 1)
        function.args, function.returns = _bare(function.args), None
        function.decorator_list = []
        helpers = [name for name in INTERPRETER_HELPERS if hasattr(interpreter, name)]
        made = ast.parse(f"def make({', '.join(helpers)}):\n    return {function.name}").body[0]
        assert isinstance(made, ast.FunctionDef)
        made.body.insert(0, function)
        tree.body = [made]
        code = compile(
            ast.fix_missing_locations(tree), twin.fn.__code__.co_filename, "exec", dont_inherit=True
        )
        space: dict[str, Any] = {}
        exec(code, twin.fn.__globals__, space)
        running = space["make"](*(getattr(interpreter, name) for name in helpers))
        running.__defaults__ = twin.fn.__defaults__
        running.__kwdefaults__ = twin.fn.__kwdefaults__
        running.__annotations__ = twin.fn.__annotations__
        twin.running = running
    assert twin.running is not None
    return twin.running


def _bare(args: ast.arguments) -> ast.arguments:
    """The names alone: what they default to was computed where the kernel was defined."""
    for one in (*args.posonlyargs, *args.args, *args.kwonlyargs):
        one.annotation = None
    args.defaults, args.kw_defaults = [], [None for _ in args.kwonlyargs]
    return args


def _is_tritons(value: Any) -> bool:
    """Whether Triton itself defined a function, a class, or the class of anything else."""
    value = getattr(value, "__func__", value)
    if isinstance(value, types.FunctionType):
        codes = (value.__code__, getattr(inspect.unwrap(value), "__code__", None))
        return all(code and code.co_filename.startswith(_TRITON) for code in codes)
    kind = value if isinstance(value, type) else type(value)
    if issubclass(kind, JITFunction | interpreter.InterpretedFunction):
        return issubclass(kind, JITFunction)
    return kind.__module__.startswith("triton.")


def _poses(value: Any) -> bool:
    """Whether the compiler would take a thing for one of Triton's own that is not. Kernels see
    classes of named tuples too, whose attributes may change unseen."""
    if isinstance(value, interpreter.InterpretedFunction) or _is_tritons(value):
        return False
    marks = ("__triton_builtin__", "__triton_aggregate__", "_fields")
    is_marked = any(getattr(value, mark, None) is not None for mark in marks)
    return is_marked or str(getattr(value, "__module__", "")).startswith("triton.")


def _checked(call_function: Any, *, translate: Callable[[Any], Any]) -> Any:
    """Where a kernel names Python, the compiler calls it once and the interpreter each time."""

    def call(generator: Any, node: ast.AST, function: Any, args: Any, kwargs: Any) -> Any:
        function = translate(function)  # a kernel that was an argument
        own = type(getattr(function, "__func__", function))
        is_builtin = own.__module__ == "builtins" and own not in (types.FunctionType, type)
        is_basic = isinstance(function, type) and function.__module__ == "builtins"
        if not (_is_tritons(function) or is_builtin or is_basic):
            name = getattr(function, "__name__", own.__name__)
            words = f"{name} is no function for a kernel: mark it with @triton.jit"
            raise CompilationError(generator.jit_fn.src, node, words)
        return call_function(generator, node, function, args, kwargs)

    return call


class _NoPatch:
    """Stands for the scope the interpreter would restore: the running personality stays."""

    def restore(self) -> None:
        return


def _take_first(call: Any, quantiles: Any = None) -> list[float]:
    """A benchmarker that measures nothing: all configurations tie and the first one is taken."""
    return [1.0, 1.0, 1.0]


def _set(owner: Any, name: str, value: Any) -> None:
    if value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def _language_modules() -> list[Any]:
    import sys

    return [
        module
        for name, module in sys.modules.items()
        if name.startswith("triton.language") and module
    ]


def _wrapped_function(value: Any) -> interpreter.InterpretedFunction | None:
    """The interpreted function behind a method that `tl.core` made of it."""
    for cell in getattr(value, "__closure__", None) or ():
        if isinstance(cell.cell_contents, interpreter.InterpretedFunction):
            return cell.cell_contents
    return None
