"""The tree of a parsed TTIR module. Values are numbers, counted from 0 in each function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.types import Type
    from forge.evalpool.judge.ttir.values import Attribute, Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """A successor of a terminator, with the arguments that its block gets."""

    block: int
    """Position of the block in its region."""
    arguments: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation."""

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    types: Signature
    attributes: Mapping[str, Attribute]
    regions: tuple[Region, ...] = ()
    jumps: tuple[Jump, ...] = ()
    line: int
    """Line of the text, from 1."""
    index: int
    """Number of operations before it in the text, module and functions included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BasicBlock:
    """Operations in order; the last one is the terminator, if the region needs one."""

    arguments: tuple[int, ...]
    argument_types: tuple[Type, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Blocks, the entry first."""

    blocks: tuple[BasicBlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of the module; its entry block's arguments are its parameters."""

    name: str
    is_public: bool
    arguments: tuple[Type, ...]
    results: tuple[Type, ...]
    attributes: Mapping[str, Attribute]
    argument_attributes: tuple[Mapping[str, Attribute], ...]
    body: Region
    num_values: int
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A parsed module."""

    functions: Mapping[str, Function]
    num_operations: int

    def entry(self, name: str) -> Function:
        """The public function of this name; KeyError where there is none."""
        function = self.functions[name]
        if not function.is_public:
            raise KeyError(name)
        return function
