"""Marks of KernelBench's problems, by which a harvest keeps them and their likes out of training.

`kernelbench.txt` has a line a problem: its name, the digest of its normal form, that of its
operations, that of a lone operation's arguments (`structure.py`), and one byte of each place of its
signature (`build/near.py`). Bytes of different
programs agree in one of 256 places, so the share of equal ones is the similarity. A small problem
has many spellings (`F.relu`, `nn.ReLU()`), which its operations alone show to be one. Marks hold
for the code of forge that made them: the first line is of a program of forge's own, and a test
compares it.

    python -m forge.data.harvest.kernelbench CHECKOUT/KernelBench   writes the file anew
"""

from __future__ import annotations

import ast
import base64
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np

from forge.data.answers import parse
from forge.data.build.near import signature
from forge.data.harvest.structure import structure_of_call
from forge.data.sources.normal_form import normal_digest

FILE = Path(__file__).with_name("kernelbench.txt")
SAMPLE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.relu(self.linear(x)) * 0.5


def get_inputs():
    return [torch.rand(8, 16)]


def get_init_inputs():
    return [16]
"""
"""The program of the first line."""
DIGITS = 16
NONE = "-"
"""Digest of nothing."""
FRAME = frozenset({"get_inputs", "get_init_inputs"})
NOT_COUNTED = frozenset({
    "super", "init", "size", "view", "reshape", "contiguous", "squeeze", "unsqueeze", "expand",
    "int", "float", "len", "range", "parameter", "tensor", "dim", "to", "flatten", "transpose",
    "permute", "t", "sequential", "modulelist", "identity", "clone",
})  # fmt: skip
SAME = {
    "mult": "mul", "matmult": "matmul", "mm": "matmul", "bmm": "matmul", "einsum": "matmul",
    "clip": "clamp", "clampmin": "clamp", "clampmax": "clamp", "swish": "silu",
    "expit": "sigmoid", "multiply": "mul", "divide": "div", "subtract": "sub", "amax": "max",
    "amin": "min",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Names, digests and signatures."""

    names: list[str]
    digests: list[str]
    operations: list[str]
    structures: list[str]
    signatures: np.ndarray
    """[N, PERMUTATIONS] uint8."""

    def match(
        self, source: str, tree: ast.Module | None, signed: np.ndarray, *, threshold: float
    ) -> str | None:
        """Name and similarity of the most similar problem; None if none is similar.

        A lone operation whose structure is known is compared by it alone: the texts of all are
        similar."""
        if (same := self.same_operations(tree)) is not None:
            return same
        if structure_of(tree) != NONE:
            return None
        digest = normal_digest(source)
        if digest is not None and digest[:DIGITS] in self.digests:
            return f"{self.names[self.digests.index(digest[:DIGITS])]} (the same)"
        shares = (self.signatures == _bytes(signed)).mean(axis=1)
        best = int(shares.argmax())
        return f"{self.names[best]} ({shares[best]:.2f})" if shares[best] >= threshold else None

    def same_operations(self, tree: ast.Module | None) -> str | None:
        """Name of a problem with the same operations, and arguments if it is a lone one."""
        own, structure = operations_of(tree), structure_of(tree)
        every = zip(self.names, self.operations, self.structures, strict=True)
        return next(
            (f"{name} (the same operations)" for name, operations, other in every
             if operations == own != NONE and (NONE in (structure, other) or structure == other)),
            None,
        )  # fmt: skip


@cache
def marks() -> Marks:
    """The marks of KernelBench's problems."""
    rows = [line.split(" ") for line in FILE.read_text().splitlines()[1:]]
    return Marks(
        names=[row[0] for row in rows],
        digests=[row[1] for row in rows],
        operations=[row[2] for row in rows],
        structures=[row[3] for row in rows],
        signatures=np.stack([np.frombuffer(base64.b85decode(text), np.uint8) for *_, text in rows]),
    )


def mark(name: str, source: str) -> str:
    """The line of a problem."""
    digest, tree = (normal_digest(source) or "")[:DIGITS], parse(source)
    text = base64.b85encode(_bytes(signature(source, tree)).tobytes()).decode()
    return f"{name} {digest or NONE} {operations_of(tree)} {structure_of(tree)} {text}"


def operations_of(tree: ast.Module | None) -> str:
    """A digest of the operations of a problem, with their numbers: calls and operators of all that
    runs, and layers that are constructed, whatever they are called through."""
    found = Counter(name for name, _ in operations(tree))
    return sha256(repr(sorted(found.items())).encode()).hexdigest()[:DIGITS] if found else NONE


def operations(tree: ast.Module | None) -> list[tuple[str, ast.AST]]:
    """The operations of a problem by their plain names."""
    found: list[tuple[str, ast.AST]] = []
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, ast.FunctionDef) or node.name in FRAME:
            continue
        for one in ast.walk(node):
            match one:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="self"))):
                    pass  # a layer, which is counted where it is constructed
                case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                    is_layer = name[:1].isupper()
                    if is_layer or node.name != "__init__":
                        found.append(("relu" if _is_relu(one) else _plain(name), one))
                case ast.BinOp(op=op) | ast.AugAssign(op=op) if node.name != "__init__":
                    found.append((_plain(type(op).__name__), one))
                case _:
                    pass
    return [(name, one) for name, one in found if name]


def structure_of(tree: ast.Module | None) -> str:
    """A digest of the arguments of a problem with one operation; `-` if they are not known."""
    found = operations(tree)
    if tree is None or len(found) != 1:
        return NONE
    structure = structure_of_call(tree, *found[0])
    return sha256(structure.encode()).hexdigest()[:DIGITS] if structure else NONE


def _is_relu(call: ast.Call) -> bool:
    """True for a clamp whose only bound is 0 from below: `x.clamp(min=0)`, `torch.clamp(x, 0)`."""
    match call.func:
        case ast.Attribute(value=owner, attr="clamp" | "clip" | "clamp_min" | "clamp_"):
            is_function = isinstance(owner, ast.Name) and owner.id in ("torch", "F")
        case _:
            return False
    bounds = [*call.args[is_function:], *(one.value for one in call.keywords)]
    is_lower = all(one.arg == "min" for one in call.keywords)
    return (
        len(bounds) == 1
        and is_lower
        and isinstance(bounds[0], ast.Constant)
        and (bounds[0].value == 0)
    )


def _plain(name: str) -> str:
    """One name for an operation, however it is written; empty for what computes nothing."""
    plain = name.lower().replace("_", "")
    return "" if plain in NOT_COUNTED else SAME.get(plain, plain)


def _bytes(signed: np.ndarray) -> np.ndarray:
    return (signed & 0xFF).astype(np.uint8)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    lines = [mark("sample", SAMPLE)]
    for path in sorted(root.glob("level*/*.py")):
        name = path.relative_to(root).with_suffix("").as_posix()
        lines.append(mark(name.replace(" ", "_"), path.read_text(encoding="utf-8")))
    FILE.write_text("\n".join(lines) + "\n")
