# pyright: strict
"""Sizes of a problem, counted without data: its source runs on torch's `meta` device.

Called by an oracle before it draws anything, so that a problem that cannot fit is refused at once
with its bytes. Not every source runs there (numpy, explicit devices): its sizes are unknown.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from forge.evalpool.judge.numbers.given import (
    call,
    constructor_arguments,
    make_inputs,
    run_source,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

HALVES = ("fp16", "bf16")
MIN_SETS = 2
"""Input sets that are made however large they are."""
NOTEWORTHY_SHARE = 1 / 8
"""Share of the memory from which the outputs are counted too: the first call on `meta` takes
seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of one problem, at its own precision."""

    inputs: int
    outputs: int
    state: int
    """Parameters and buffers."""

    @property
    def one_set(self) -> int:
        """Bytes of the inputs and outputs of one set."""
        return self.inputs + self.outputs


class ProblemTooLarge(Exception):
    """Inputs, parameters and outputs need more memory than there is."""

    def __init__(self, needed_bytes: int, has_bytes: int) -> None:
        super().__init__(
            f"{needed_bytes / 1e9:,.2f} GB for {MIN_SETS} sets of inputs and outputs, and for "
            f"parameters; a judge has {has_bytes / 1e9:,.2f} GB (judge.memory_bytes)"
        )


def require_room(source: str, *, entry_point: str, precision: str, max_bytes: int) -> int | None:
    """Bytes that a problem takes at least; None if unknown. Raises ProblemTooLarge if they are more
    than `max_bytes`."""
    sizes = count_sizes(source, entry_point=entry_point, precision=precision, max_bytes=max_bytes)
    if sizes is None:
        return None
    needed = MIN_SETS * sizes.one_set + sizes.state
    if needed > max_bytes:
        raise ProblemTooLarge(needed, max_bytes)
    return needed


def count_sizes(source: str, *, entry_point: str, precision: str, max_bytes: int) -> Sizes | None:
    """The sizes of a problem; None if its inputs cannot be made on `meta`.

    Args:
        max_bytes: memory. Outputs are 0 where inputs and parameters take little of it, or where
            `forward` fails on `meta`.
    """
    module = types.ModuleType("problem")
    try:
        return _counted(
            module, source, entry_point, is_half=precision in HALVES, max_bytes=max_bytes
        )
    finally:
        module.__dict__.clear()  # typing remembers its classes, and they its constants


def _counted(
    module: types.ModuleType, source: str, entry_point: str, *, is_half: bool, max_bytes: int
) -> Sizes | None:
    try:
        with torch.no_grad(), torch.device("meta"):
            run_source(source, module)
            arguments = constructor_arguments(module, entry_point)
            model: Any = call(getattr(module, entry_point), arguments)
            inputs: Any = make_inputs(module)
            state = _bytes(model.state_dict(), is_half=is_half)
            given = _bytes(inputs, is_half=is_half)
    except (Exception, SystemExit):
        return None
    outputs = 0
    if MIN_SETS * given + state > NOTEWORTHY_SHARE * max_bytes:
        with suppress(Exception, SystemExit), torch.no_grad(), torch.device("meta"):
            outputs = _bytes(model(*inputs), is_half=is_half)
    return Sizes(inputs=given, outputs=outputs, state=state)


def _bytes(value: object, *, is_half: bool) -> int:
    """Bytes of all tensors in a tree, at the problem's precision."""
    return sum(
        tensor.numel() * (2 if is_half and tensor.is_floating_point() else tensor.element_size())
        for tensor in _tensors(value)
    )


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in cast("list[object]", value):
            yield from _tensors(item)
    elif isinstance(value, Mapping):
        for item in cast("Mapping[str, object]", value).values():
            yield from _tensors(item)
