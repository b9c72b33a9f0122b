"""Types of Triton's IR, as a parsed module has them. Imports nothing of this project.

f32                              Scalar("f32")
tensor<64x32x!tt.ptr<f16>>       Block((64, 32), Pointer(Scalar("f16")))
!tt.tensordesc<64x32xf16>        Descriptor(Block((64, 32), Scalar("f16")))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

BITS = {
    "i1": 1,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 64,
    "index": 64,
    "f8E4M3FN": 8,
    "f8E5M2": 8,
    "f8E4M3FNUZ": 8,
    "f8E5M2FNUZ": 8,
    "f8E4M3B11FNUZ": 8,
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
}
"""Width of each scalar type in bits. In memory an `i1` takes a byte."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """An integer without sign, or a float, by MLIR's name."""

    name: str

    @property
    def bits(self) -> int:
        """Width in bits."""
        return BITS[self.name]

    @property
    def num_bytes(self) -> int:
        """Size of one element in memory."""
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
