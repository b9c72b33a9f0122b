"""Builds a draw from an oracle's layout, which is not trusted: each part of it is checked."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.channel.frames import count
from forge.evalpool.judge.channel.nesting import mapped, parse_form
from forge.evalpool.judge.channel.shm import ALIGNMENT_BYTES, FLOATING, LayoutError, TensorSpec
from forge.evalpool.judge.channel.words import clean
from forge.evalpool.judge.trial.draws.draw import WIDE, Asked, Draw, InputSet, widened
from forge.evalpool.judge.wide.compare import DOUBLE_FUNCTION, SAME_FUNCTION, real_question
from forge.evalpool.judge.wide.look import Plant

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forge.evalpool.judge.trial.draws.draw import Tree
    from forge.evalpool.judge.wide.compare import Question

MAX_TENSORS = 20_000
MAX_PLANTS = 64
MAX_WORDS = 64
ROUGH = 0.1
"""Least tolerance beside loud plants, of which what overflows or is bounded is off by all."""


class Builder:
    """Numbers an oracle's tensors for a candidate: inputs, parameters, slots."""

    def __init__(self, specs: Sequence[TensorSpec], *, precision: str) -> None:
        """
        Args:
            specs: of the oracle's tensors.
            precision: the problem's.
        """
        self._specs = specs
        self._precision = precision
        self._rounding = precision
        self._kinds = frozenset[str]()
        self._named: dict[str, int] = {}
        self._contents: list[int | None] = []
        self._chosen: list[TensorSpec] = []
        self._places: dict[str, tuple[int, ...]] = {}
        self._asked: dict[int, Asked] = {}

    def build(self, layout: dict[str, Any]) -> Draw:
        """The draw. Raises LayoutError."""
        try:
            return self._build(layout)
        except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
            raise LayoutError(f"{type(error).__name__}: {error}") from error

    def _build(self, layout: dict[str, Any]) -> Draw:
        if not layout["sets"]:
            raise LayoutError("no input set")
        init_parts: list[int] = []
        init = self._tree(layout["init"], init_parts)
        init = mapped(init, self._take("init", init_parts).__getitem__)
        self._kinds = parse_kinds(layout.get("kinds", ()))
        self._rounding = parse_rounding(layout.get("rounding"), self._precision)
        state = self._state(layout["state"])
        self._named = {**state, **{f"init.{k}": index for k, index in enumerate(init_parts)}}
        places = self._take("state", list(state.values()))
        sets = [self._set(one) for one in layout["sets"]]
        request = {
            "init": init,
            "state": [list(pair) for pair in zip(state, places, strict=True)],
            "order": [str(name) for name in layout["order"]],
            "held": [str(name) for name in layout["held"]],
            "drawn": parse_drawn(layout.get("drawn")),
            "sets": [one.tree for one in sets],
            "tensors": [[spec.dtype, list(spec.shape)] for spec in self._chosen],
        }
        is_sequence, nesting = parse_form(layout["form"])
        return Draw(
            request=request,
            precision=self._precision,
            specs=self._specs,
            contents=self._contents,
            sets=sets,
            named=self._named,
            asked=self._asked,
            is_sequence=is_sequence,
            nesting=nesting,
            names=frozenset(str(name) for name in layout["names"]),
            flops=count(layout["flops"]),
            has_products=layout.get("products") is not False,
            kinds=self._kinds,
            why_narrow=parse_words(layout.get("narrow") or ""),
            insensitive=tuple(parse_words(one) for one in layout.get("insensitive", ())),
            is_constant=layout.get("constant") is True,
            reads_training=layout.get("training") is not False,
        )

    def _set(self, one: dict[str, Any]) -> InputSet:
        parts: list[int] = []
        form = self._tree(one["inputs"], parts)
        specs = [self._specs[part] for part in parts]
        places = self._take(f"inputs {form} {specs}", parts)
        outputs = self._indices(one["outputs"])
        changed = {_within(n, len(parts)): index for n, index, *_ in one["changed"]}
        made = InputSet(
            tree=mapped(form, places.__getitem__),
            places=places,
            slots=self._slots([self._specs[index] for index in outputs]),
            inputs=tuple(parts),
            outputs=outputs,
            changed=dict(zip(changed, self._indices(changed.values()), strict=True)),
            state=self._state(one["state"]),
            parameters={
                self._named[name]: index
                for name, index in self._state(one.get("parameters", ())).items()
            },
            wide=self._indices(one.get("wide", ())),
            plants=parse_plants(one.get("plants", ()), [math.prod(one.shape) for one in specs]),
            is_planted=bool(one.get("plants")),
            asks_real=one.get("asks_real", True) is True,
            is_rough=one.get("rough") is True,
        )
        self._ask(made, one)
        return made

    def _ask(self, made: InputSet, one: dict[str, Any]) -> None:
        """Puts the results of a set under their questions."""
        same = DOUBLE_FUNCTION if self._kinds == {WIDE} else SAME_FUNCTION
        self._asked |= {index: Asked(same) for index in made.wide}
        exact = made.wide or self._indices(one.get("exact", ())) or (None,) * len(made.results)
        for index, other in zip(made.results, exact, strict=True):
            form = widened(self._specs[index], self._kinds)
            if other is not None and self._specs[other] != form:
                raise LayoutError(f"{self._specs[other]} in place of {form}")
            self._asked[index] = Asked(self._question(index, made, one), other)
        for own, index in made.parameters.items():
            if self._specs[index] != self._specs[own]:
                raise LayoutError("a parameter has another shape in a set")
        for name, index in made.state.items():
            own = self._named[name]
            if self._specs[index] != self._specs[own]:
                raise LayoutError(f"parameter {name[:40]} has another shape after a call")
            for each in (index, own, made.parameters.get(own, own)):
                asked = [Asked(self._question(each, made, one)), self._asked.get(each)]
                self._asked[each] = min(filter(None, asked), key=lambda it: it.question.tolerance)

    def _question(self, index: int, made: InputSet, one: dict[str, Any]) -> Question:
        """The question of a result in its own type."""
        dtype = self._specs[index].dtype
        if dtype not in FLOATING and made.wide and one.get("is_open") is False:
            return SAME_FUNCTION  # no integer of it is left to a rounding
        question = real_question(dtype, self._rounding)
        tolerance = question.tolerance * max(1.0, float(one.get("slack", 1.0)))
        least = ROUGH if made.is_rough and made.wide else 0.0
        return replace(question, tolerance=max(tolerance, least), is_alone=not self._kinds)

    def _state(self, pairs: Any) -> dict[str, int]:
        found = {str(name): index for name, index in pairs}
        self._indices(found.values())
        if self._named and not found.keys() <= self._named.keys():
            raise LayoutError(f"no parameters {sorted(found)[:4]}")
        return found

    def _indices(self, data: Iterable[Any]) -> tuple[int, ...]:
        return tuple(_within(index, len(self._specs)) for index in data)

    def _tree(self, tree: Any, parts: list[int]) -> Tree:
        """The same tree with tensors numbered as they come; the oracle's indices go to `parts`.
        Refuses one that is not well-formed."""
        kind, value = tree
        if kind == "tensor":
            parts.append(_within(value, len(self._specs)))
            return ["tensor", len(parts) - 1]
        if kind == "permuted":
            tensor = self._tree(value[0], parts)
            return [kind, [tensor, parse_axes(value[1], self._specs[parts[-1]])]]
        if kind in ("list", "tuple"):
            return [kind, [self._tree(item, parts) for item in value]]
        if kind in ("dict", "keywords"):
            return [kind, [[str(key), self._tree(item, parts)] for key, item in value]]
        if kind in ("value", "dtype", "config"):
            return [kind, value]
        raise LayoutError(f"unknown kind of argument {str(kind)[:40]}")

    def _take(self, key: str, parts: Sequence[int]) -> tuple[int, ...]:
        """Places for these, the same ones for the same key."""
        if key not in self._places:
            taken = [self._append(self._specs[part], part) for part in parts]
            self._places[key] = tuple(taken)
        return self._places[key]

    def _slots(self, specs: Sequence[TensorSpec]) -> tuple[int, ...]:
        key = f"slots {specs}"
        if key not in self._places:
            self._places[key] = tuple(self._append(spec, None) for spec in specs)
        return self._places[key]

    def _append(self, spec: TensorSpec, content: int | None) -> int:
        self._chosen.append(spec)
        self._contents.append(content)
        return len(self._contents) - 1


def _within(value: Any, num: int) -> int:
    """A number from a layout. Raises LayoutError."""
    if type(value) is not int or not 0 <= value < num:
        raise LayoutError(f"no tensor {str(value)[:40]}")
    return value


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
        size = sizes[_within(position, len(sizes))]
        found.append(Plant(position, _within(index, size), parse_words(kind)))
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
