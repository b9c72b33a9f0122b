"""Marks of KernelBench's problems, by which a harvest keeps them and their likes out of training.

`kernelbench.txt` has a line a problem: its name, the digest of its normal form, that of its
operations, that of a lone operation's arguments, and one byte of each place of its signature
(`build/near.py`). Bytes of different programs agree in one of 256 places, so the share of equal
ones is the similarity. A small problem has many spellings (`F.relu`, `nn.ReLU()`), which its
operations alone show to be one. Marks hold for the code of forge that made them: the first line is
of a program of forge's own, and a test compares it.

Two problems with one operation are the same if the structures of its arguments are: the ranks of
the inputs, the arguments that are not at their defaults, the dimensions of a reduction counted from
the front, a product's equation, changes of layout, and other types than float32. Sizes are no part
of it; of functions of each element, neither ranks nor numbers. What the text does not tell makes it
unknown.

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
from typing import Any

import numpy as np

from forge.data.answers import parse
from forge.data.build.near import signature
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

ELEMENTWISE = frozenset({
    "relu", "leakyrelu", "sigmoid", "tanh", "silu", "gelu", "selu", "hardsigmoid", "softplus",
    "softsign", "elu", "hardtanh", "clamp", "mul", "add", "sub", "div", "pow",
})  # fmt: skip
"""Functions of each element that KernelBench has alone."""
WINDOW = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 1}
USUAL = WINDOW | {
    "bias": True, "ceil_mode": False, "count_include_pad": True, "return_indices": False,
    "keepdim": False, "keepdims": False, "affine": True, "elementwise_affine": True, "p": 2,
    "unbiased": True, "dtype": None, "reduction": "mean", "dim": None, "axis": None, "ord": 2,
    "weight": None, "label_smoothing": 0.0,
}  # fmt: skip
"""Defaults of the arguments that count."""
CONVOLUTION = ("kernel_size", "stride", "padding", "dilation", "groups", "bias")
TRANSPOSED = ("kernel_size", "stride", "padding", "output_padding", "groups", "bias", "dilation")
POSITIONS = {
    "convtranspose": TRANSPOSED, "conv": CONVOLUTION,
    "maxpool": ("kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode"),
    "avgpool": ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"),
    "norm": ("p", "dim", "keepdim"), "vectornorm": ("ord", "dim", "keepdim"),
}  # fmt: skip
"""Names of the arguments by position, after the tensors or the channels; of others, those of a
reduction."""
TURNS = frozenset({"T", "mT", "t", "transpose", "permute", "swapaxes"})
LAYOUT = TURNS | {"unsqueeze", "squeeze", "view", "reshape", "flatten", "expand", "flip"}
TYPES = frozenset({"float16", "half", "bfloat16", "double", "float64", "int8", "uint8"})


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

        A lone operation whose structure is known is else compared by it alone: the texts of all
        are similar."""
        digest = (normal_digest(source) or "")[:DIGITS]
        if digest in self.digests:
            return f"{self.names[self.digests.index(digest)]} (the same)"
        if (same := self.same_operations(tree)) is not None:
            return same
        if structure_of(tree) != NONE:
            return None
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
    return [(name, one) for name, one in found if name]


def structure_of(tree: ast.Module | None) -> str:
    """A digest of the arguments of a problem with one operation; `-` if they are not known."""
    found = operations(tree)
    if tree is None or len(found) != 1:
        return NONE
    name, node = found[0]
    try:
        scope = _ProblemText(tree)
        words = sorted({one.attr for one in ast.walk(tree) if isinstance(one, ast.Attribute)})
        types = [word for word in words if word in TYPES]
        layout = [word for word in words if word in LAYOUT]
        if name == "matmul":
            structure = f"{name} {_equation(scope, node)} {types}"
        elif name in ELEMENTWISE:
            structure = f"{name} {layout} {types}"
        else:
            given = _arguments(scope, name, node) if isinstance(node, ast.Call) else {}
            structure = f"{name} {sorted(given.items())} {scope.input_ranks} {layout} {types}"
    except (_UntoldValue, LookupError, TypeError, RecursionError):
        return NONE
    return sha256(structure.encode()).hexdigest()[:DIGITS]


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


class _UntoldValue(Exception):
    """The text does not tell."""


def _arguments(scope: _ProblemText, name: str, call: ast.Call) -> dict[str, Any]:
    """Values of the arguments that are not at their defaults; of a number, that it is not."""
    layer = ast.unparse(call.func).rpartition(".")[2][:1].isupper()
    kind = next((kind for kind in POSITIONS if name.startswith(kind)), "")
    names = POSITIONS.get(kind, ("dim", "keepdim"))
    is_function = isinstance(call.func, ast.Attribute) and _is_module(call.func.value)
    given = list(call.args)
    if any(isinstance(one, ast.Starred) for one in given):
        raise _UntoldValue
    if kind.startswith("conv"):
        if not layer:
            names = ("bias", *(one for one in names if one not in ("kernel_size", "bias")))
        given = given[2:]
    elif is_function and not layer:
        given = given[1:]
    values: dict[str, ast.expr] = dict(zip(names, given, strict=False))
    values |= {one.arg or "": one.value for one in call.keywords}
    if kind.startswith("conv") and not layer:
        values.setdefault("bias", ast.Constant(None))
    found: dict[str, Any] = {}
    for key, expr in values.items():
        if key not in USUAL:
            continue
        value = scope.is_given(expr) if key in ("bias", "weight") else scope.value(expr)
        usual: Any = USUAL[key]
        if key == "stride" and kind.endswith("pool") and "kernel_size" in values:
            usual = scope.value(values["kernel_size"])
            value = usual if value is None else value
        if key in ("dim", "axis"):
            found["dim"] = scope.dims(value)
        elif {*value} - {usual} if isinstance(value, tuple) and usual != value else value != usual:
            found[key] = True if key in WINDOW else value
    return found


def _is_module(node: ast.expr) -> bool:
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id in ("torch", "F", "nn")


def _equation(scope: _ProblemText, node: ast.AST) -> str:
    """A product as an equation of einsum, its letters in order of appearance."""
    match node:
        case ast.BinOp(left=left, right=right):
            parts = [_axes(scope, left, "ab"), _axes(scope, right, "bc")]
        case ast.Call(args=[ast.Constant(value=str(text)), *_]):
            if "..." in text or "->" not in text:
                raise _UntoldValue
            left_side, _, out = text.replace(" ", "").partition("->")
            return _canonical(left_side.split(","), out)
        case ast.Call(func=ast.Attribute(value=owner), args=[*args]):
            pair = args if _is_module(owner) else [owner, *args]
            if len(pair) != 2:
                raise _UntoldValue
            parts = [_axes(scope, pair[0], "ab"), _axes(scope, pair[1], "bc")]
        case _:
            raise _UntoldValue
    batch = max(parts[0][:-2], parts[1][:-2], key=len)
    out = "".join(one for one in "ac" if one in parts[0] + parts[1])
    return _canonical(parts, batch + out)


def _axes(scope: _ProblemText, node: ast.expr, letters: str) -> str:
    """Letters of a factor: `ab` or `bc`, turned if it is, after those of the batch."""
    is_turned = False
    match node:
        case ast.Attribute(value=inner, attr="T" | "mT"):
            node, is_turned = inner, True
        case ast.Call(func=ast.Attribute(value=inner, attr="t" | "transpose" | "swapaxes")):
            node, is_turned = inner, True
    rank = scope.ranks.get(ast.unparse(node))
    if rank is None:
        raise _UntoldValue
    if rank == 1:
        return "b"
    return "zyxwv"[: rank - 2][::-1] + (letters[::-1] if is_turned else letters)


def _canonical(parts: list[str], out: str) -> str:
    def text(parts: list[str]) -> str:
        letters: dict[str, str] = {}
        for one in "".join(parts) + out:
            letters.setdefault(one, chr(ord("a") + len(letters)))
        return ",".join("".join(letters[one] for one in part) for part in [*parts, out])

    return min(text(parts), text(parts[::-1]))


class _ProblemText:
    """Values and ranks that the text of a problem gives."""

    def __init__(self, tree: ast.Module) -> None:
        self.ranks: dict[str, int | None] = {}
        """Ranks of the arguments of `forward` and of parameters, by their text."""
        self._values: dict[str, Any] = {}
        functions = {
            one.name: one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)
        }  # fmt: skip
        if sum(isinstance(one, ast.ClassDef) for one in tree.body) > 1:
            raise _UntoldValue
        self._keep(tree.body)
        if (made := functions.get("__init__")) is not None:
            names = [one.arg for one in made.args.args[1:]]
            usual = made.args.defaults
            own = dict(zip(names[len(names) - len(usual) :], usual, strict=True))
            own |= dict(zip(names, _returned(functions["get_init_inputs"]), strict=False))
            self._values |= {name: self._found(one) for name, one in own.items()}
            self._keep(made.body)
        inputs = functions["get_inputs"]
        local = {
            one.targets[0].id: one.value for one in reversed(inputs.body)
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
        }  # fmt: skip
        module = {ast.unparse(one.targets[0]): one.value for one in tree.body
                  if isinstance(one, ast.Assign)}  # fmt: skip
        local = module | local
        given = [local.get(ast.unparse(one), one) for one in _returned(inputs)]
        names = [one.arg for one in functions["forward"].args.args[1:]]
        body = ast.Module(functions["forward"].body, [])
        used = {one.id for one in ast.walk(body) if isinstance(one, ast.Name)}
        own = {name: self._rank(one) for name, one in zip(names, given, strict=False)}
        self.input_ranks = [rank for name, rank in own.items() if name in used]
        """Ranks of the inputs that are used."""
        self.ranks |= own

    def _keep(self, statements: list[ast.stmt]) -> None:
        for node in statements:
            match node:
                case ast.Assign(targets=[target], value=value):
                    text = ast.unparse(target)
                    self._values[text] = self._found(value)
                    if isinstance(value, ast.Call) and ast.unparse(value.func) == "nn.Parameter":
                        self.ranks[text] = self._rank(value.args[0])

    def _found(self, node: ast.expr) -> Any:
        try:
            return self.value(node)
        except _UntoldValue:
            return _UntoldValue

    def value(self, node: ast.expr) -> Any:
        """A number, or numbers. Raises _UntoldValue."""
        match node:
            case ast.Name() | ast.Attribute():
                held = self._values.get(ast.unparse(node), _UntoldValue)
                if held is _UntoldValue:
                    raise _UntoldValue
                return held
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return tuple(self.value(one) for one in elements)
            case _:
                try:
                    return ast.literal_eval(node)
                except ValueError:
                    raise _UntoldValue from None

    def is_given(self, node: ast.expr) -> bool:
        """True for a tensor, or a flag that is set."""
        if isinstance(node, ast.Constant):
            return bool(node.value)
        text = ast.unparse(node)
        return True if text in self.ranks or text.startswith("self.") else bool(self.value(node))

    def dims(self, value: Any) -> Any:
        """Dimensions counted from the front, in order."""
        rank = self.input_ranks[0] if self.input_ranks else 0
        if not rank:
            raise _UntoldValue
        if isinstance(value, tuple):
            return tuple(sorted(one % rank for one in value))
        return value % rank if isinstance(value, int) else value

    def _rank(self, node: ast.expr) -> int:
        match node:
            case ast.Constant():
                return 0
            case ast.BinOp(left=inner) | ast.Compare(left=inner):
                return self._rank(inner)
            case ast.Call(func=ast.Attribute(attr="rand" | "randn" | "empty"), args=[one]):
                if isinstance(one, ast.Name | ast.Tuple | ast.Starred):
                    return self._length(one.value if isinstance(one, ast.Starred) else one)
                return 1
            case ast.Call(func=ast.Attribute(attr="rand" | "randn" | "empty"), args=args):
                starred = [one for one in args if isinstance(one, ast.Starred)]
                return len(args) - len(starred) + sum(self._length(one.value) for one in starred)
            case ast.Call(func=ast.Attribute(attr="randint"), args=[*_, size]):
                return self._length(size)
            case ast.Call(func=ast.Attribute(value=inner), args=args):
                return self._rank(args[0] if _is_module(inner) and args else inner)
            case _:
                raise _UntoldValue

    def _length(self, node: ast.expr) -> int:
        if isinstance(node, ast.Tuple):
            return len(node.elts)
        held = self.value(node)
        return len(held) if isinstance(held, tuple) else 1


def _returned(function: ast.FunctionDef) -> list[ast.expr]:
    match function.body[-1]:
        case ast.Return(value=ast.List(elts=elements)):
            return elements
        case _:
            raise _UntoldValue


if __name__ == "__main__":
    root = Path(sys.argv[1])
    lines = [mark("sample", SAMPLE)]
    for path in sorted(root.glob("level*/*.py")):
        name = path.relative_to(root).with_suffix("").as_posix()
        lines.append(mark(name.replace(" ", "_"), path.read_text(encoding="utf-8")))
    FILE.write_text("\n".join(lines) + "\n")
