"""Other values of the arguments of a reference that are no tensors, of which each set has some.

Called by sets.py. Every number, text, flag and None is a slot: a given argument, one with a
default, or a part of a list or dict that is one. A set takes the next value of each slot that the
reference bears, so that several differ together; zeros, which hide the others, one at a time.

A float beyond the given one, or of the other sign, is left out where the reference gives the same a
quarter nearer to 0: torch bounds it in silence, as a negative label smoothing, and a kernel that
computes with it is right, too. (A comparison in the reference's own code is no such bound.)
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from forge.evalpool.judge.channel.nesting import Keywords
from forge.evalpool.judge.numbers.called import leaves
from forge.evalpool.judge.wide.sought import Looks

MIN_CONSTANT = 1e-3
"""Magnitude of a float that is no epsilon."""
MAX_COUNT = 1 << 16
"""Magnitude of an int that may be a seed."""
MAX_NUMBERS = 4
"""Numbers of the reference's comparisons that a slot gets."""
ABSENT, HALF, NEARER = ..., 0.5, 0.75
"""Stands for no value; share of a mask; a neighbour of a float, as a share of it."""

Path = tuple[Any, ...]
"""Number of an argument, then the keys within it."""
Parts = (list, tuple, dict, Keywords)


class Extra(tuple[Any, ...]):
    """Any number of arguments by place."""


@dataclass(slots=True, kw_only=True)
class _Slot:
    """A value that may be another one."""

    name: str
    """Name of the argument, or of an option."""
    value: Any
    usual: list[Any] = field(default_factory=list[Any])
    """Values that are left: of any size and sign; tensors in place of None."""
    special: list[Any] = field(default_factory=list[Any])
    """Values by which a function may decide; numbers in place of None, if it bears no tensor."""


class Arguments:
    def __init__(self, model: Any, given: list[Any], looks: Looks) -> None:
        self._looks, self._num_given = looks, len(given)
        names, self._defaults = _defaults(model, len(given), looks)
        floats = (one for one in leaves(given) if one.is_floating_point())
        self._like = next((one.new_zeros(()).expand(one.shape) for one in floats), None)
        self._lengths = sorted({size for one in leaves(given) for size in one.shape if size > 1})
        self._slots: dict[Path, _Slot] = {}
        self._bears_tensor: dict[Path, bool] = {}
        parts = [*_parts([*given, *self._defaults])]
        last = max(
            [n for n, (_, one) in enumerate(parts) if isinstance(one, torch.Tensor)], default=0
        )
        for number, (path, value) in enumerate(parts):
            head, *within = path
            name = str(within[-1]) if within else names.get(head, "")
            slot = self._slot(name, value, has_room=number > last)
            if slot.usual or slot.special:
                self._slots[path] = slot

    @property
    def are_left(self) -> bool:
        return any(one.usual or one.special for one in self._slots.values())

    def take(
        self,
        given: list[Any],
        tried: Callable[[list[Any]], Any],
        differ: Callable[[Any, Any], bool],
        *,
        is_special: bool,
        has_room: bool,
    ) -> Any:
        """The results of a call with other values; None where none is borne.

        Args:
            tried: the results of a call with these inputs, None where it fails.
            differ: True if two results do.
            is_special: special values come first, else usual ones.
            has_room: False if a tensor more would be another one's number.
        """
        values, end, best = [*given, *self._defaults], self._num_given, None
        has_zero = False

        def result(path: Path, value: Any) -> Any:
            changed = _with(values, path, value)
            return tried(_called(changed[: max(end, path[0] + 1)]))

        for path in random.sample([*self._slots], len(self._slots)):
            slot = self._slots[path]
            left = (slot.special or slot.usual) if is_special else (slot.usual or slot.special)
            for _ in range(len(left)):
                value = left.pop()
                if has_zero and _is_zero(value):
                    left.insert(0, value)
                    continue
                ask = partial(result, path)
                if leaves(value):
                    is_able = has_room
                else:
                    is_able = slot.value is not None or not self._takes_tensor(path, ask)
                found = ask(value) if is_able else None
                if found is None or self._is_bounded(slot, value, found, ask, differ):
                    continue
                best, values, end = found, _with(values, path, value), max(end, path[0] + 1)
                has_zero = has_zero or _is_zero(value)
                break
        return best

    def _takes_tensor(self, path: Path, ask: Callable[[Any], Any]) -> bool:
        """True if a tensor may stand in place of None: then a kernel may expect one."""
        if path not in self._bears_tensor:
            self._bears_tensor[path] = any(ask(one) is not None for one in _like(self._like))
        return self._bears_tensor[path]

    def _is_bounded(
        self,
        slot: _Slot,
        value: Any,
        found: Any,
        ask: Callable[[Any], Any],
        differ: Callable[[Any, Any], bool],
    ) -> bool:
        """True if the reference gives the same for a float next to this one."""
        if type(value) is not float or slot.name in self._looks.tested:
            return False
        base = slot.value if type(slot.value) is float else 1.0
        if 0 < value * base <= base * base:
            return False
        other = ask(NEARER * value or (1 - NEARER) * base)
        return other is not None and not differ(found, other)

    def _slot(self, name: str, value: Any, *, has_room: bool) -> _Slot:
        slot, like = _Slot(name=name, value=value), self._like if has_room else None
        if type(value) is bool:
            slot.usual = [value, not value, not value]  # several together, or not
        elif type(value) is float and math.isfinite(value):
            near = (value or 1.0) * random.randrange(32, 64) / 64
            slot.usual = [near]
            if not 0 < abs(value) <= MIN_CONSTANT:
                slot.usual = [near, -near, 8 * near]
                slot.special = [0.0, 1.0, -1.0, 100 * near, near / 1000, *self._compared(value)]
        elif type(value) is int:
            near = value + random.choice((1, 2))
            slot.usual = [near]
            if abs(value) < MAX_COUNT:
                slot.usual = [near, near * random.randint(3, 10), 2 * near + 64]
                slot.special = [0, 1, -near, *random.sample(self._lengths, bool(self._lengths))]
                slot.special += [int(one) for one in self._compared(value) if one == int(one)]
        elif type(value) is str:
            slot.usual = [one for one in self._looks.words if one != value] or [f"{value}_"]
        elif isinstance(value, Extra):
            one, *others = [(each,) for each in _like(like)] or [()]
            slot.usual = [Extra(each) for each in (one, *others, one + others[0])] if others else []
        elif value is None or value is ABSENT:
            slot.usual = [] if value is ABSENT else _like(like)
            slot.special = [random.uniform(0.25, 0.75), random.uniform(1.5, 3.0)]
        elif type(value) in (list, tuple) and value and not leaves(value):
            whole: Any = value
            slot.usual = [type(whole)([*whole, whole[-1]]), type(whole)(whole[:-1])]
        random.shuffle(slot.usual)
        random.shuffle(slot.special)
        slot.special = [one for one in slot.special if one != value]
        return slot

    def _compared(self, value: float) -> list[float]:
        """Numbers that the reference's code compares with, but for this one."""
        found = [one for one in self._looks.host if one != value and abs(one) < MAX_COUNT]
        return random.sample(found, min(MAX_NUMBERS, len(found)))


def _like(tensor: torch.Tensor | None) -> list[torch.Tensor]:
    """A mask and a tensor that are like one; none of none."""
    return [] if tensor is None else [torch.rand_like(tensor) < HALF, torch.randn_like(tensor)]


def _is_zero(value: Any) -> bool:
    return type(value) in (int, float) and value == 0


def _defaults(model: Any, num_given: int, looks: Looks) -> tuple[dict[int, str], list[Any]]:
    """Names of the arguments of forward by place; and the defaults of those behind the given ones,
    no `Extra` of any number, and those that are given by name."""
    names, found, by_name = dict[int, str](), list[Any](), Keywords()
    for number, one in enumerate(inspect.signature(model.forward).parameters.values()):
        names[number] = one.name
        if one.kind is one.KEYWORD_ONLY and one.default is not one.empty:
            by_name[one.name] = one.default
        elif one.kind is one.VAR_KEYWORD:
            by_name |= dict(looks.options)
        elif number >= num_given and one.kind is one.VAR_POSITIONAL:
            found.append(Extra())
        elif number >= num_given and one.default is not one.empty:
            found.append(one.default)
    return names, [*found, by_name] if by_name else found


def _parts(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The parts of nested values with their places; of a list or tuple also itself."""
    if type(value) not in Parts:
        yield path, value
        return
    if path and isinstance(value, list | tuple):
        yield path, value
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _parts(part, (*path, key))


def _with(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    if isinstance(value, dict):
        return type(value)({**value, path[0]: _with(value[path[0]], path[1:], new)})
    make: Any = type(value)
    return make(_with(one, path[1:], new) if n == path[0] else one for n, one in enumerate(value))


def _called(values: list[Any]) -> list[Any]:
    """The arguments of a call: without what is absent."""
    found = list[Any]()
    for one in values:
        if isinstance(one, Keywords):
            named = Keywords({key: part for key, part in one.items() if part is not ABSENT})
            found += [named] if named else []
        else:
            found += one if isinstance(one, Extra) else [one]
    return found
