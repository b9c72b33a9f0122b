# pyright: strict
"""Inputs and constructor arguments as a problem gives them, on its device and in its precision, and
their sizes, counted without data on torch's `meta` device.

Inputs are those of `get_inputs()`, or one set of `get_input_sets()`, which is one of

    [x, y]                      the arguments of one call of forward
    lambda: [x, y]              a function that returns them: tensors of one set are made at a time
    {"n": 1024, "m": 100}       keyword arguments of get_inputs

`get_init_inputs()` returns `[16, 32]` in KernelBench's files and `[[16], {"dim": 32}]` in
KernelBook's: positional and named arguments. A candidate gets what was decided for its reference: a
list of positional arguments, or a dict with the keys ARGS and KWARGS.
"""

from __future__ import annotations

import inspect
import linecache
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import torch

from forge.evalpool.judge.numbers.called import Unjudgeable, dtype_name, leaves, on_device, replaced
from forge.records.problem import CHOSEN_SET, MAX_SHAPES

ALLOWED = "a list of arguments, a function that returns one, or a dict of arguments of get_inputs"
MAX_ARGUMENTS = 4
"""Arguments in the name of a set."""
MAX_NAME = 120
"""Characters of the name of a set."""


def make_inputs(module: Any) -> list[Any]:
    """New arguments of one call: of the selected set, or of `get_inputs()` if none is selected.
    Raises Unjudgeable, and what the file raises."""
    number = module.__dict__.get(CHOSEN_SET)
    if number is None:
        return list(module.get_inputs())
    return _arguments(module, _sets(module)[number], number=number)


def list_sets(source: str, *, file: str) -> list[str]:
    """Names of the sets of a file, in their order: keyword arguments, or types and shapes. Tensors
    are made on torch's `meta` device; if the file cannot run there, on the CPU. Raises Unjudgeable,
    and what the file raises."""
    try:
        with torch.device("meta"):
            return _names(_loaded(source, file=file))
    except Unjudgeable:
        raise
    except (Exception, SystemExit):
        return _names(_loaded(source, file=file))


def _loaded(source: str, *, file: str) -> types.ModuleType:
    module = types.ModuleType("problem")
    run_source(source, module, file=file)
    return module


def run_source(source: str, module: types.ModuleType, *, file: str = "problem.py") -> None:
    """Runs a problem's source in a module, as where it is imported: without the future statements
    of this file, and with lines that `torch.jit.script` finds."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)


def _names(module: Any) -> list[str]:
    sets = _sets(module)
    for number, one in enumerate(sets):
        if _is_keywords(one) and one in sets[:number]:
            raise Unjudgeable(f"get_input_sets() has {_keywords(one)} twice; each set once")
    return [
        _keywords(one) if _is_keywords(one) else _types(module, one, number=number)
        for number, one in enumerate(sets)
    ]


def _is_keywords(one: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(one, Mapping)


def _types(module: Any, one: object, *, number: int) -> str:
    """`float32[1024, 100], 3`: types and shapes of tensors, and other arguments."""
    arguments = _arguments(module, one, number=number)
    named = [_describe(each) for each in arguments[:MAX_ARGUMENTS]]
    more = len(arguments) - MAX_ARGUMENTS
    return _cut(", ".join([*named, *([f"and {more} more"] if more > 0 else [])]) or "no arguments")


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value)}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_describe(item) for item in typing.cast('list[object]', value))}]"
    return repr(value)


def _keywords(one: Mapping[str, object]) -> str:
    """`n=1024, m=100`."""
    return _cut(", ".join(f"{name}={_describe(value)}" for name, value in one.items()))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 1]}…"


def _sets(module: Any) -> Sequence[object]:
    """What `get_input_sets()` returns. Raises Unjudgeable if it is no list of 1 to 16 sets."""
    found: object = module.get_input_sets()
    if not isinstance(found, list | tuple):
        raise Unjudgeable(f"get_input_sets() returns a {type(found).__name__}; a list is needed")
    sets = typing.cast("list[object]", found)
    if not 1 <= len(sets) <= MAX_SHAPES:
        raise Unjudgeable(f"get_input_sets() returns {len(sets)} sets; 1 to {MAX_SHAPES} allowed")
    return sets


def _arguments(module: Any, one: object, *, number: int) -> list[Any]:
    if _is_keywords(one):
        made: object = module.get_inputs(**one)
    else:
        made = one() if callable(one) else one
    if not isinstance(made, list | tuple):
        found = type(made).__name__
        raise Unjudgeable(f"set {number} of get_input_sets() gives a {found}; {ALLOWED}")
    return list(typing.cast("list[Any]", made))


ARGS, KWARGS = "args", "kwargs"

Arguments = list[Any] | dict[str, Any]
"""Positional arguments, or a dict of both kinds."""


def constructor_arguments(module: Any, entry_point: str) -> Arguments:
    """Constructor arguments of a problem; none without `get_init_inputs()`."""
    found: list[Any] = [*getattr(module, "get_init_inputs", list)()]
    are_parts = map(isinstance, found, ((list, tuple), dict))
    if len(found) == 2 and all(are_parts) and _accepts(getattr(module, entry_point), *found):
        return {ARGS: list(found[0]), KWARGS: dict(found[1])}
    return found


def call(entry_point: Callable[..., Any], arguments: Arguments) -> Any:
    if isinstance(arguments, dict):
        return entry_point(*arguments[ARGS], **arguments[KWARGS])
    return entry_point(*arguments)


def _accepts(entry_point: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> bool:
    """True unless the signature shows that a list and a dict are the arguments themselves."""
    try:
        inspect.signature(entry_point).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # no signature, as of some classes written in C
        return True
    return True


DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms of the computation of a problem."""

    precision: str
    rounding: str = ""
    """The coarsest precision that the reference rounds to; empty for the problem's."""
    device: str
    """`cpu` or `cuda`."""
    is_tf32: bool
    """True if there are fp32 matrix products, on a GPU, that may use TF32."""
    max_bytes: int
    """Limit for all sets together: fewer sets are made where one is large, but two."""
    is_plain: bool
    """True for inputs as the problem gives them alone: as another protocol asks for, and where any
    others ended an oracle, as a failed assertion on a GPU does."""

    @property
    def tolerated(self) -> str:
        return self.rounding or self.precision


def draw_inputs(module: Any, terms: Terms) -> list[Any]:
    made = on_device(terms.device, lambda: make_inputs(module))
    return [cast(placed(value, terms), terms.precision) for value in made]


def placed(value: Any, terms: Terms) -> Any:
    return replaced(value, lambda _, one: one.to(terms.device))


def cast(value: Any, precision: str) -> Any:
    """Model or input tensor to the problem's precision; fp32 leaves what the problem made."""
    is_tensor = isinstance(value, torch.Tensor) and value.is_floating_point()
    is_cast = precision != "fp32" and (is_tensor or isinstance(value, torch.nn.Module))
    return value.to(DTYPES[precision]) if is_cast else value


HALVES = ("fp16", "bf16")
MIN_SETS = 2
"""Input sets that are made however large they are."""
NOTEWORTHY_SHARE = 1 / 8
"""Share of the memory from which outputs are counted too: a call on `meta` takes seconds."""


class Sizes(NamedTuple):
    """Bytes of one problem, at its own precision."""

    inputs: int
    outputs: int
    state: int
    """Parameters and buffers."""


class ProblemTooLarge(Exception):
    """Inputs, parameters and outputs need more memory than there is."""

    def __init__(self, needed_bytes: int, has_bytes: int) -> None:
        super().__init__(
            f"{needed_bytes / 1e9:,.2f} GB for {MIN_SETS} sets of inputs and outputs, and for "
            f"parameters; a judge has {has_bytes / 1e9:,.2f} GB (judge.memory_bytes)"
        )


def require_room(source: str, *, entry_point: str, precision: str, max_bytes: int) -> int | None:
    """Bytes that a problem takes at least, None if unknown. Raises ProblemTooLarge."""
    sizes = count_sizes(source, entry_point=entry_point, precision=precision, max_bytes=max_bytes)
    if sizes is None:
        return None
    needed = MIN_SETS * (sizes.inputs + sizes.outputs) + sizes.state
    if needed > max_bytes:
        raise ProblemTooLarge(needed, max_bytes)
    return needed


def count_sizes(source: str, *, entry_point: str, precision: str, max_bytes: int) -> Sizes | None:
    """The sizes of a problem; None if its inputs cannot be made on `meta`. Outputs are 0 where
    inputs and parameters take little of `max_bytes`, or where `forward` fails on `meta`."""
    module = types.ModuleType("problem")

    def size(value: Any) -> int:
        return sum(
            one.numel() * (2 if is_half and one.is_floating_point() else one.element_size())
            for one in leaves(value)
        )

    is_half = precision in HALVES
    try:
        with torch.no_grad(), torch.device("meta"):
            run_source(source, module)
            arguments = constructor_arguments(module, entry_point)
            model: Any = call(getattr(module, entry_point), arguments)
            inputs: Any = make_inputs(module)
            found = Sizes(size(inputs), 0, size(model.state_dict()))
            if MIN_SETS * found.inputs + found.state > NOTEWORTHY_SHARE * max_bytes:
                with suppress(Exception, SystemExit):
                    found = found._replace(outputs=size(model(*inputs)))
            return found
    except (Exception, SystemExit):
        return None
    finally:
        module.__dict__.clear()  # typing remembers its classes, and they its constants
