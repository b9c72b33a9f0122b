"""Prints a share of the samples of torch's tests as problems, a JSON object a line.

    python -m forge.data.harvest.sources.samples.child PART NUM_PARTS

An operation is called as people call it, by its name in `torch` or as a method; tensors become
inputs by shape, type and range, all else is written as it is. Values that a text cannot give, such
as a positive definite matrix, mostly fail when the text runs; other samples are its alternatives.
Runs torch's own test code and no third party's.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import operator
import random
import sys
import types
import unittest
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

MAX_SAMPLES = 4
"""Problems of an operation: later samples differ in little."""
MAX_TRIED = 24
MAX_ELEMENTS = 1 << 16
"""Elements of a sample's inputs."""
FEW_ELEMENTS = 16
"""Elements of a sample that is taken only if there are no larger ones."""
NAMES = ("x", "y", "z", "w", "u", "v", "p", "q")
TYPES = (torch.float32, torch.int64, torch.int32, torch.bool)
PLAIN = (bool, int, float, str, type(None))
NEEDLESS = frozenset({"out", "generator", "device", "requires_grad", "pin_memory"})


class _NoProblem(Exception):
    """A sample that is no problem; the message is the reason."""


def main() -> None:
    """Prints the problems of a share of operations and layers."""
    part, num_parts = int(sys.argv[1]), int(sys.argv[2])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # The tests import this package for a base class, which no sample needs.
    expect = types.ModuleType("expecttest")
    expect.__dict__.update(TestCase=unittest.TestCase, assert_expected_inline=None)
    sys.modules.setdefault("expecttest", expect)
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

    for entry in [*op_db, *module_db][part::num_parts]:
        is_op = hasattr(entry, "op")
        name = entry.name if is_op else f"nn.{entry.module_cls.__name__}"
        variant = getattr(entry, "variant_test_name", "")
        base = {
            "kind": "operations" if is_op else "layers", "name": name,
            "origin": f"{name}.{variant}" if variant else name,
        }  # fmt: skip
        for number, line in enumerate(_lines(entry, name, is_op=is_op)):
            found = {**base, **line, "origin": f"{base['origin']}:{number}"}
            sys.stdout.write(json.dumps(found) + "\n")


def _lines(entry: Any, name: str, *, is_op: bool) -> Iterator[dict[str, Any]]:
    """The problems of an entry, or the reason why there is none."""
    torch.manual_seed(0)
    random.seed(0)
    reason, detail = "no sample", ""
    texts: dict[str, int] = {}
    try:
        for sample in itertools.islice(_samples(entry, is_op=is_op), MAX_TRIED):
            try:
                found = operation_problem(name, *sample) if is_op else layer_problem(name, *sample)
            except _NoProblem as error:
                reason = str(error)
            else:
                texts.setdefault(*found)
    except Exception as error:  # of torch's own tests, which may need what is not installed
        reason, detail = "its samples fail", f"{type(error).__name__}: {error}"[:200]
    ordered = sorted(texts, key=lambda text: texts[text] < FEW_ELEMENTS)
    for number, text in enumerate(ordered[:MAX_SAMPLES]):
        yield {"text": text, "alternatives": ordered[MAX_SAMPLES + number :: MAX_SAMPLES]}
    if not ordered:
        yield {"reason": reason, "detail": detail}


def _samples(entry: Any, *, is_op: bool) -> Iterator[tuple[Any, ...]]:
    """Arguments of calls: of an operation, or of a constructor and then of forward."""
    if is_op:
        for one in entry.sample_inputs("cpu", torch.float32, requires_grad=False):
            yield ((one.input, *one.args), one.kwargs)
        return
    for one in entry.module_inputs_func(
        entry, device="cpu", dtype=torch.float32, requires_grad=False, training=False
    ):
        made, given = one.constructor_input, one.forward_input
        if given is not None:
            yield ((made.args, made.kwargs), (given.args, given.kwargs))


class _Inputs:
    """Names of a call's tensors and the expressions that draw them."""

    def __init__(self) -> None:
        self.drawn: dict[str, str] = {}
        self.num_elements = 0

    def text(self, value: Any) -> str:
        """An argument as source: a name for a tensor, else a literal."""
        if isinstance(value, torch.Tensor):
            self.num_elements += value.numel()
            drawn = _drawn(value)
            if value.dim() == 0 or self.num_elements > MAX_ELEMENTS or not value.numel():
                raise _NoProblem("a scalar, empty or large tensor")
            name = NAMES[len(self.drawn)] if len(self.drawn) < len(NAMES) else f"t{len(self.drawn)}"
            self.drawn[name] = drawn
            return name
        if isinstance(value, torch.Size):
            return repr(tuple(value))
        if isinstance(value, list | tuple):
            inner = ", ".join(map(self.text, value))
            comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{comma})"
        return _literal(value)

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The arguments of a call."""
        given = [self.text(one) for one in args]
        given += [f"{k}={self.text(v)}" for k, v in kwargs.items() if k not in NEEDLESS]
        return ", ".join(given)


def _literal(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return str(value)
    raise _NoProblem(f"an argument of type {type(value).__name__}")


def _drawn(value: torch.Tensor) -> str:
    """An expression that draws such a tensor."""
    if value.dtype not in TYPES or value.layout is not torch.strided:
        raise _NoProblem("tensors of other types")
    shape = ", ".join(map(str, value.shape))
    both = f"({shape},)" if value.dim() == 1 else f"({shape})"
    if value.dtype is torch.bool:
        return f"torch.rand({shape}) > 0.5"
    if not value.numel():
        return ""
    low, high = value.min().item(), value.max().item()
    if value.dtype is not torch.float32:
        dtype = "" if value.dtype is torch.int64 else f", dtype={value.dtype}"
        return f"torch.randint({low}, {high + 1}, {both}{dtype})"
    if low >= 1:
        return f"torch.rand({shape}) + 1"
    if low >= 0:
        return f"torch.rand({shape})" if high <= 1 else f"torch.rand({shape}) * {math.ceil(high)}"
    return f"torch.rand({shape}) * 2 - 1" if high <= 1 and low >= -1 else f"torch.randn({shape})"


def operation_problem(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, int]:
    """The problem of a call of an operation, and the elements of its inputs."""
    inputs = _Inputs()
    called = inputs.call(args, kwargs)
    if not inputs.drawn:
        raise _NoProblem("no tensor input")
    function = _named(name)
    if function:
        return _text(f"{function}({called})", inputs), inputs.num_elements
    if name.isidentifier() and callable(getattr(torch.Tensor, name, None)) and name[0] != "_":
        first, _, rest = called.partition(", ")
        if first in inputs.drawn:
            return _text(f"{first}.{name}({rest})", inputs), inputs.num_elements
    raise _NoProblem("no public name")


def _named(name: str) -> str:
    """The name by which people call an operation; empty if torch has none."""
    with contextlib.suppress(AttributeError):
        if callable(operator.attrgetter(name)(torch)) and not name.startswith("_"):
            return name.replace("nn.functional.", "F.") if "functional" in name else f"torch.{name}"
    return ""


def layer_problem(
    name: str,
    made: tuple[Sequence[Any], Mapping[str, Any]],
    given: tuple[Sequence[Any], Mapping[str, Any]],
) -> tuple[str, int]:
    """The problem of a layer, and the elements of its inputs."""
    constants, inputs = _Inputs(), _Inputs()
    built = constants.call(*made)
    if constants.drawn:
        raise _NoProblem("a tensor for the constructor")
    called = inputs.call(*given)
    if not inputs.drawn:
        raise _NoProblem("no tensor input")
    text = _text(f"self.layer({called})", inputs, setup=f"self.layer = {name}({built})")
    return text, inputs.num_elements


def _text(call: str, inputs: _Inputs, *, setup: str = "") -> str:
    """The source of a problem."""
    lines = ["import torch", "import torch.nn as nn"]
    lines += ["import torch.nn.functional as F"] if call.startswith("F.") else []
    lines += ["", "", "class Model(nn.Module):"]
    if setup:
        lines += ["    def __init__(self):", "        super().__init__()", f"        {setup}", ""]
    lines += [f"    def forward(self, {', '.join(inputs.drawn)}):", f"        return {call}"]
    drawn = [f"    {name} = {made}" for name, made in inputs.drawn.items()]
    lines += ["", "", "def get_inputs():", *drawn, f"    return [{', '.join(inputs.drawn)}]"]
    return "\n".join([*lines, "", "", "def get_init_inputs():", "    return []", ""])


if __name__ == "__main__":
    main()
