"""The tree of a parsed module: its types, and functions with their operations.

    f32                              Scalar('f32')
    tensor<64x32x!tt.ptr<f16>>       Block((64, 32), Pointer(Scalar('f16')))
    !tt.tensordesc<64x32xf16>        Descriptor(Block((64, 32), Scalar('f16')))

Values are numbers, counted from 0 in each function. Imports nothing of this project.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

BITS = {
    "i1": 1,
    **dict.fromkeys(("i8", "f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ", "f8E4M3B11FNUZ"), 8),
    **dict.fromkeys(("i16", "f16", "bf16"), 16),
    **dict.fromkeys(("i32", "f32"), 32),
    **dict.fromkeys(("i64", "index", "f64"), 64),
}
"""Width of each scalar type in bits. In memory an `i1` takes a byte."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """An integer without sign, or a float, by MLIR's name."""

    name: str

    @property
    def bits(self) -> int:
        return BITS[self.name]

    @property
    def num_bytes(self) -> int:
        return max(self.bits // 8, 1)

    @property
    def is_float(self) -> bool:
        """True for f16, bf16, f32, f64 and the 8-bit floats."""
        return self.name[0] == "f" or self.name == "bf16"

    def __str__(self) -> str:
        return self.name


BOOL = Scalar("i1")


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address of elements of one type."""

    pointee: Type

    def __str__(self) -> str:
        return f"!tt.ptr<{self.pointee}>"


@dataclass(frozen=True, slots=True)
class Block:
    """A tensor of a kernel; its shape is static."""

    shape: tuple[int, ...]
    element: Scalar | Pointer

    def __str__(self) -> str:
        sizes = "".join(f"{size}x" for size in self.shape)
        return f"tensor<{sizes}{self.element}>"


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tensor descriptor: blocks of this type are loaded and stored through it."""

    block: Block

    def __str__(self) -> str:
        sizes = "".join(f"{size}x" for size in self.block.shape)
        return f"!tt.tensordesc<{sizes}{self.block.element}>"


Type: TypeAlias = Scalar | Pointer | Block | Descriptor


def element_of(kind: Type) -> Scalar | Pointer:
    """Element type of a block; a scalar or pointer itself."""
    if isinstance(kind, Descriptor):
        return kind.block.element
    return kind.element if isinstance(kind, Block) else kind


def shape_of(kind: Type) -> tuple[int, ...]:
    """Shape of a block; `()` for scalars."""
    return kind.shape if isinstance(kind, Block) else ()


Attribute: TypeAlias = Any
"""A parsed attribute: `bool`, `int`, `float`, `str` (also for keywords, enumerations and symbols,
without `@`), `Type`, or a tuple of these (`array<i32: 1, 0>`). The words that pretty forms print
without a name have these: `predicate` (`slt`, `oeq`) of cmpi and cmpf, `axis`, `order`, `reverse`,
`inputPrecision` (`tf32`, `ieee`, ...), `rounding` (`rtne`, `rtz`), `asm_string`, `constraints`,
`packed_element`, `pure`, `symbol`, `fastmath`, `overflowFlags`."""


@dataclass(frozen=True, slots=True)
class Signature:
    operands: tuple[Type, ...]
    results: tuple[Type, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """A successor of a terminator, with the arguments that its block gets."""

    block: int
    """Position of the block in its region."""
    arguments: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
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
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Blocks, the entry first."""

    blocks: tuple[BasicBlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of the module; its entry block's arguments are its parameters."""

    name: str
    arguments: tuple[Type, ...]
    results: tuple[Type, ...]
    body: Region
    types: tuple[Type, ...]
    """Types of all values, by their numbers."""
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    functions: Mapping[str, Function]
    readings: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """Readings of its functions so far (`verify`)."""
