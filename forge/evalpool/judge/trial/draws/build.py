"""Builds a draw from an oracle's layout, which is not trusted: each part of it is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.channel.nesting import parse_form
from forge.evalpool.judge.channel.shm import (
    ALIGNMENT_BYTES,
    LayoutError,
    TensorSpec,
    offsets,
)
from forge.evalpool.judge.numbers.compare import Expected
from forge.evalpool.judge.trial.draws.reference import InputSet, Reference

if TYPE_CHECKING:
    from collections.abc import Collection

    from forge.evalpool.judge.channel.shm import Data
    from forge.evalpool.judge.trial.draws.reference import Tree

MAX_TENSORS = 20_000
RECURRENT = ("rnn", "lstm", "gru")
"""In names of operations whose products have no FLOPs of their own."""


class Builder:
    """Arranges an oracle's tensors into a candidate's memory: inputs, parameters, slots."""

    def __init__(self, specs: list[TensorSpec], parts: list[Data], *, precision: str) -> None:
        self._specs = specs
        self._parts = parts
        self._precision = precision
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
        sets = [self._set(one) for one in layout["sets"]]
        state_names = [str(name) for name, _ in layout["state"]]
        state_places = self._take("state", [index for _, index in layout["state"]])
        starts, num_bytes = offsets(self._chosen)
        tensors = [
            [spec.dtype, list(spec.shape), start]
            for spec, start in zip(self._chosen, starts, strict=True)
        ]
        request = {
            "init": init,
            "state": [list(pair) for pair in zip(state_names, state_places, strict=True)],
            "order": [str(name) for name in layout["order"]],
            "held": [str(name) for name in layout["held"]],
            "drawn": parse_drawn(layout.get("drawn")),
            "sets": [one.tree for one in sets],
            "tensors": tensors,
            "num_bytes": num_bytes,
            "slots": list(sets[0].slots),
        }
        is_sequence, nesting = parse_form(layout["form"])
        return Reference(
            request=request,
            contents=self._contents,
            starts=starts,
            specs=self._chosen,
            sets=sets,
            is_sequence=is_sequence,
            nesting=nesting,
            names=(names := frozenset(str(name) for name in layout["names"])),
            has_products=not names or int(layout["flops"]) > 0 or _is_recurrent(names),
        )

    def _set(self, one: dict[str, Any]) -> InputSet:
        parts: list[int] = []
        form = self._tree(one["inputs"], parts)
        specs = [self._specs[part] for part in parts]
        places = self._take(f"inputs {form} {specs}", parts)
        expected = tuple(
            self._expected(*pair) for pair in zip(one["outputs"], one["errors"], strict=True)
        )
        return InputSet(
            tree=_placed(form, places),
            places=places,
            contents=tuple(self._parts[part] for part in parts),
            slots=self._slots(expected),
            expected=expected,
            variant=str(one["variant"]),
            changed={
                position: self._expected(output, error)
                for position, output, error in one["changed"]
                if type(position) is int and 0 <= position < len(parts)
            },
            state={str(name): self._expected(part) for name, part in one["state"]},
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

    def _expected(self, output: int, error: int | None = None) -> Expected:
        return Expected.make(
            self._specs[output],
            self._parts[output],
            error=b"" if error is None else self._parts[error],
            precision=self._precision,
        )

    def _slots(self, expected: tuple[Expected, ...]) -> tuple[int, ...]:
        specs = [one.spec for one in expected]
        key = f"slots {specs}"
        if key not in self._places:
            self._places[key] = tuple(self._append(spec, None) for spec in specs)
        return self._places[key]


def _is_recurrent(names: Collection[str]) -> bool:
    """True if torch runs layers whose products are not counted by themselves."""
    return any(part in name for part in RECURRENT for name in names)


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
