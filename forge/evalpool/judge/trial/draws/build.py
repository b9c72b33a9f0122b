"""Builds a draw from an oracle's layout, which is not trusted: each part of it is checked."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.channel.nesting import parse_form
from forge.evalpool.judge.channel.shm import ALIGNMENT_BYTES, FLOATING, LayoutError, TensorSpec
from forge.evalpool.judge.channel.words import clean
from forge.evalpool.judge.trial.draws.reference import (
    WIDE,
    InputSet,
    Layout,
    Reference,
    widened,
)
from forge.evalpool.judge.wide.compare import (
    DOUBLE_FUNCTION,
    SAME_FUNCTION,
    Wanted,
    real_question,
)
from forge.evalpool.judge.wide.look import Plant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.channel.shm import Data
    from forge.evalpool.judge.trial.draws.reference import Tree

MAX_TENSORS = 20_000
MAX_PLANTS = 64
MAX_WORDS = 64
ROUGH = 0.1
"""Least tolerance beside loud plants, of which what overflows or is bounded is off by all."""


class Builder:
    """Arranges an oracle's tensors into a candidate's memory: inputs, parameters, slots."""

    def __init__(self, specs: list[TensorSpec], parts: list[Data], *, precision: str) -> None:
        """
        Args:
            precision: the coarsest that the reference rounds to.
        """
        self._specs = specs
        self._parts = parts
        self._precision = precision
        self._kinds = frozenset[str]()
        self._slack, self._least = 1.0, 0.0
        self._chosen: list[TensorSpec] = []
        self._contents: list[Data | None] = []
        self._places: dict[str, tuple[int, ...]] = {}

    def build(self, layout: dict[str, Any]) -> Reference:
        """The draw. Raises LayoutError, or as Python does for a layout of other types."""
        if not layout["sets"]:
            raise LayoutError("no input set")
        init_parts: list[int] = []
        init = self._tree(layout["init"], init_parts)
        init = _placed(init, self._take("init", init_parts))
        self._kinds = parse_kinds(layout.get("kinds", ()))
        sets = [self._set(one) for one in layout["sets"]]
        state_names = [str(name) for name, _ in layout["state"]]
        state_places = self._take("state", [index for _, index in layout["state"]])
        real = Layout.of(self._chosen)
        request = {
            "init": init,
            "state": [list(pair) for pair in zip(state_names, state_places, strict=True)],
            "order": [str(name) for name in layout["order"]],
            "held": [str(name) for name in layout["held"]],
            "drawn": parse_drawn(layout.get("drawn")),
            "sets": [one.tree for one in sets],
            "tensors": real.rows(),
            "num_bytes": real.num_bytes,
            "slots": list(sets[0].slots),
        }
        is_sequence, nesting = parse_form(layout["form"])
        return Reference(
            request=request,
            contents=self._contents,
            real=real,
            wide=real.wide(self._kinds) if any(one.wide for one in sets) else None,
            kinds=self._kinds,
            sets=sets,
            is_sequence=is_sequence,
            nesting=nesting,
            names=frozenset(str(name) for name in layout["names"]),
            has_products=layout.get("products") is not False,
            why_narrow=parse_words(layout.get("narrow") or ""),
            insensitive=tuple(parse_words(one) for one in layout.get("insensitive", ())),
            is_constant=layout.get("constant") is True,
        )

    def _set(self, one: dict[str, Any]) -> InputSet:
        parts: list[int] = []
        form = self._tree(one["inputs"], parts)
        specs = [self._specs[part] for part in parts]
        places = self._take(f"inputs {form} {specs}", parts)
        exact = one.get("wide") or one.get("exact") or [None] * len(one["outputs"])
        is_sure = bool(one.get("wide")) and one.get("is_open") is False
        self._slack = max(1.0, float(one.get("slack", 1.0)))
        self._least = ROUGH if one.get("rough") is True and one.get("wide") else 0.0
        expected = tuple(
            self._wanted(output, is_sure=is_sure, exact=exact[number])
            for number, output in enumerate(one["outputs"])
        )
        changed = {
            position: self._wanted(output)
            for position, output, *_ in one["changed"]
            if type(position) is int and 0 <= position < len(parts)
        }
        return InputSet(
            tree=_placed(form, places),
            places=places,
            contents=tuple(self._parts[part] for part in parts),
            slots=self._slots(expected),
            expected=expected,
            changed=changed,
            state={str(name): self._wanted(part, is_sure=is_sure) for name, part in one["state"]},
            wide=self._wide(one.get("wide", ()), [*expected, *changed.values()]),
            plants=parse_plants(
                one.get("plants", ()), [math.prod(self._specs[part].shape) for part in parts]
            ),
            is_planted=bool(one.get("plants")),
            asks_real=one.get("asks_real", True) is True,
            is_rough=one.get("rough") is True,
        )

    def _tree(self, tree: Any, parts: list[int]) -> Tree:
        """The same tree with tensors numbered as they come; the oracle's indices go to `parts`.
        Refuses one that is not well-formed."""
        kind, value = tree
        if kind == "tensor":
            if type(value) is not int or not 0 <= value < len(self._specs):
                raise LayoutError(f"no tensor {str(value)[:40]}")
            parts.append(value)
            return ["tensor", len(parts) - 1]
        if kind == "permuted":
            tensor = self._tree(value[0], parts)
            return [kind, [tensor, parse_axes(value[1], self._specs[parts[-1]])]]
        if kind in ("list", "tuple"):
            return [kind, [self._tree(item, parts) for item in value]]
        if kind == "dict":
            return [kind, [[str(key), self._tree(item, parts)] for key, item in value]]
        if kind in ("value", "dtype", "config"):
            return [kind, value]
        raise LayoutError(f"unknown kind of argument {str(kind)[:40]}")

    def _take(self, key: str, parts: list[int]) -> tuple[int, ...]:
        """Places for these, the same ones for the same key."""
        if key not in self._places:
            taken = [self._append(self._specs[part], self._parts[part]) for part in parts]
            self._places[key] = tuple(taken)
        return self._places[key]

    def _append(self, spec: TensorSpec, content: Data | None) -> int:
        self._chosen.append(spec)
        self._contents.append(content)
        return len(self._chosen) - 1

    def _wanted(self, part: int, *, is_sure: bool = False, exact: int | None = None) -> Wanted:
        """A result in its own type.

        Args:
            is_sure: no integer of it is left to a rounding.
            exact: the same result in float64.
        """
        spec = self._specs[part]
        question = real_question(spec.dtype, self._precision)
        tolerance = max(question.tolerance * self._slack, self._least)
        question = replace(question, tolerance=tolerance)
        question = question if self._kinds else replace(question, is_alone=True)
        if spec.dtype in FLOATING:
            return Wanted(spec=spec, data=self._parts[part], question=question)
        if exact is not None and self._specs[exact] != spec:
            raise LayoutError(f"{self._specs[exact]} in place of {spec}")
        return Wanted(
            spec=spec,
            data=self._parts[part],
            question=SAME_FUNCTION if is_sure else question,
            exact=None if exact is None else self._parts[exact],
        )

    def _wide(self, parts: Sequence[int], real: Sequence[Wanted]) -> tuple[Wanted, ...]:
        """The float64 results of a set, of the forms of the `real` ones."""
        question = DOUBLE_FUNCTION if self._kinds == {WIDE} else SAME_FUNCTION
        found = [
            Wanted(spec=self._specs[part], data=self._parts[part], question=question)
            for part in parts
        ]
        if not found:
            return ()
        for one, other in zip(found, real, strict=True):
            if one.spec != (spec := widened(other.spec, self._kinds)):
                raise LayoutError(f"{one.spec} in place of {spec}")
        return tuple(found)

    def _slots(self, expected: tuple[Wanted, ...]) -> tuple[int, ...]:
        specs = [one.spec for one in expected]
        key = f"slots {specs}"
        if key not in self._places:
            self._places[key] = tuple(self._append(spec, None) for spec in specs)
        return self._places[key]


def _placed(tree: Tree, places: tuple[int, ...]) -> Tree:
    """A tree whose tensors are numbered, with their places instead."""
    kind, value = tree
    if kind == "tensor":
        return [kind, places[value]]
    if kind == "permuted":
        return [kind, [_placed(value[0], places), value[1]]]
    if kind in ("list", "tuple"):
        return [kind, [_placed(item, places) for item in value]]
    if kind == "dict":
        return [kind, [[key, _placed(item, places)] for key, item in value]]
    return tree


def parse_words(data: Any) -> str:
    """A word from an oracle's layout."""
    return clean(str(data), limit=MAX_WORDS)


def parse_rounding(data: Any, precision: str) -> str:
    """The coarsest precision that an oracle says its reference rounds to, if it is one."""
    return data if data in ("fp16", "bf16") and precision == "fp32" else precision


def parse_plants(data: Sequence[Any], sizes: Sequence[int]) -> tuple[Plant, ...]:
    """Reads the places that a set says it planted, where tensors of these sizes have such places.
    Raises LayoutError."""
    found: list[Plant] = []
    for position, index, kind in data[:MAX_PLANTS]:
        if type(position) is not int or not 0 <= position < len(sizes):
            raise LayoutError(f"no input {str(position)[:40]}")
        if type(index) is not int or not 0 <= index < sizes[position]:
            raise LayoutError(f"no element {str(index)[:40]}")
        found.append(Plant(position, index, parse_words(kind)))
    return tuple(found)


def parse_kinds(data: Any) -> frozenset[str]:
    """Names of float types from an oracle's layout. Raises LayoutError."""
    if not set(data) <= {*FLOATING}:
        raise LayoutError(f"no types {str(data)[:40]}")
    return frozenset(data)


def parse_axes(data: Any, spec: TensorSpec) -> list[int]:
    """The order of a tensor's axes from an oracle's layout. Raises LayoutError."""
    if not isinstance(data, list) or sorted(data) != list(range(len(spec.shape))):
        raise LayoutError(f"no axes {str(data)[:40]}")
    return data


def parse_drawn(data: Any) -> dict[str, str] | None:
    """Digests of draws by a tensor's name, from an oracle's layout; None for our own protocol."""
    return None if data is None else {str(name): str(one)[:64] for name, one in data.items()}


def parse_specs(data: Any) -> list[TensorSpec]:
    """Types and shapes from an oracle's layout. Raises LayoutError."""
    if not isinstance(data, list) or len(data) > MAX_TENSORS:
        raise LayoutError("no list of tensors")
    return [TensorSpec.parse(item) for item in data]


def parse_starts(data: Any, specs: list[TensorSpec], *, max_bytes: int) -> list[int]:
    """The first byte of each tensor from an oracle's layout, within `max_bytes`. Raises
    LayoutError."""
    if not isinstance(data, list) or len(data) != len(specs):
        raise LayoutError("no list of places")
    for start, spec in zip(data, specs, strict=True):
        if type(start) is not int or start % ALIGNMENT_BYTES:
            raise LayoutError(f"no place {str(start)[:40]}")
        if not 0 <= start <= max_bytes - spec.num_bytes:
            raise LayoutError(f"{spec.num_bytes} bytes at {start} are not within {max_bytes}")
    return data
