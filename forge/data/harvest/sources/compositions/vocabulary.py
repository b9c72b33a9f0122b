"""The operations of `vocabulary.toml` by section and name, and its kinds of sizes."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

Number = float | int | bool | str | tuple[int, ...]
Constants = dict[str, tuple[Number, ...]]
"""Choices of each constant by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation in the forms that people write it."""

    forms: tuple[str, ...]
    phrase: str = ""
    """How a docstring or a comment calls it."""
    effect: str = ""
    """Its effect on the moments of a value."""
    inputs: str = ""
    """Inputs of its own."""
    work: str = ""
    """Letters whose product, doubled, is the number of floating-point operations."""
    room: str = ""
    """Letters of its largest tensor, where that is no input."""
    constants: Constants = field(default_factory=dict[str, tuple[Number, ...]])


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeKind:
    """A kind of size: a batch, features, the sides of an image."""

    meaning: str
    names: tuple[str, ...]
    small: range
    """Sizes for a CPU."""
    large: tuple[int, ...]
    """Sizes for a card."""
    multiple: int = 1
    """A divisor of all of them."""


@cache
def kinds() -> dict[str, SizeKind]:
    """The kinds of sizes by their letter."""
    found: dict[str, SizeKind] = {}
    for letter, fields in _file()["sizes"].items():
        first, last, step = fields["small"]
        found[letter] = SizeKind(
            meaning=fields["meaning"], names=tuple(fields["names"]), large=tuple(fields["large"]),
            small=range(first, last + 1, step), multiple=fields.get("multiple", 1),
        )  # fmt: skip
    return found


@cache
def section(name: str) -> dict[str, Operation]:
    """The operations of a section, in their order."""
    return {each: _operation(fields) for each, fields in _file()[name].items()}


@cache
def _file() -> dict[str, dict[str, dict[str, Any]]]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _operation(fields: dict[str, Any]) -> Operation:
    words = {name: value for name, value in fields.items() if isinstance(value, str)}
    lists = {name: tuple(value) for name, value in fields.items() if not isinstance(value, str)}
    forms = tuple(str(form) for form in lists.pop("forms"))
    return Operation(forms=forms, constants=lists, **words)
