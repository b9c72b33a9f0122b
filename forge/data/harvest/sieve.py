"""The problems of a harvest that stay: each once, and none like a held-out one.

Problems come in the order of the sources; of several alike the first stays. Two are the same if
their normal forms are (names and sizes are gone), and alike by the signatures of `build/near.py`.
Alike problems, and those of one file, are a family, which a split keeps together.

`fault_of` refuses a problem by its text: imports that no sandbox has, files, code from text. The
sandbox stops all of this, too; a text names it without a child, and a file written in a scratch
folder, which a sandbox allows, is refused here alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from forge.config.schema.build import SplitTable
from forge.data.answers import parse
from forge.data.build.choice import HeldoutProblems, choose_heldout
from forge.data.build.near import Families, SignatureIndex, signature
from forge.data.build.output import LeftOutRow
from forge.data.harvest.closure import MAX_CHARS, TOO_DEEP, Import, is_allowed
from forge.data.harvest.kernelbench import NONE, marks, structure_of
from forge.data.harvest.records import Found
from forge.data.sources.normal_form import normal_digest

FILES = frozenset({"open", "input"})
CODE = frozenset({"exec", "eval", "compile", "__import__", "breakpoint"})
METHODS = frozenset({"tofile", "fromfile", "savetxt", "loadtxt", "savez", "memmap", "from_file"})
OF_FILES = frozenset({
    f"{owner}.{name}" for owner in ("torch", "np", "numpy") for name in ("save", "load")
})  # fmt: skip


def fault_of(text: str) -> tuple[str, str] | None:
    """Reason and detail against a problem's text; None for one that may be run."""
    if len(text) > MAX_CHARS:
        return f"more than {MAX_CHARS} characters", f"{len(text)}"
    tree = parse(text)
    if tree is None:
        return "no Python", ""
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    if missing := [one for one in ("Model", "get_inputs", "get_init_inputs") if one not in names]:
        return f"no {missing[0]}", ""
    try:
        ast.unparse(tree)  # as later steps do with parts of it
        for node in ast.walk(tree):
            if (found := _fault(node)) is not None:
                return found, f"line {getattr(node, 'lineno', 0)}"
    except RecursionError:
        return TOO_DEEP, ""
    return None


def _fault(node: ast.AST) -> str | None:
    match node:
        case ast.Import(names=names):
            reasons = [is_allowed(Import(one.name, "")) for one in names]
            return next((one for one in reasons if one), None)
        case ast.ImportFrom(module=module, names=names, level=level):
            if level:
                return "imports its own package"
            reasons = [is_allowed(Import(module or "", one.name)) for one in names]
            return next((one for one in reasons if one), None)
        case ast.Call(func=ast.Name(id=name)) if name in FILES:
            return "reads or writes files"
        case ast.Call(func=ast.Name(id=name)) if name in CODE:
            return "runs code from text"
        case ast.Attribute(attr=name) if name in METHODS or ast.unparse(node) in OF_FILES:
            return "reads or writes files"
        case _:
            return None


HELDOUT_SIMILARITY = 0.8
"""As `forge data build` compares with held-out problems by default."""


@dataclass(slots=True, kw_only=True)
class Sieve:
    """The problems seen so far."""

    heldout: HeldoutProblems
    similarity: float
    keeps_heldout: bool = False
    """Held-out problems stay, and each of those alike: for the share of them that is answered."""
    _first: dict[str, str] = field(default_factory=dict[str, str])
    """Origins by the digests of normal forms."""
    _names: list[str] = field(default_factory=list[str])
    _index: SignatureIndex = field(init=False)
    _families: Families = field(default_factory=Families)
    _files: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        self._index = SignatureIndex(self.similarity)

    def refuse(self, found: Found, *, origin: str, number: int) -> LeftOutRow | None:
        """The reason against a problem; None if it stays. `number` is its number among all that
        stay."""
        left_out = partial(LeftOutRow, origin=origin, kind=found.kind)
        if (fault := fault_of(found.text)) is not None:
            return left_out(step="self-contained", reason=fault[0], detail=fault[1])
        digest = normal_digest(found.text)
        tree = parse(found.text)
        signed = signature(found.text, tree)
        if not self.keeps_heldout:
            digests = () if digest is None else (digest,)
            match = marks().match(found.text, tree, signed, threshold=HELDOUT_SIMILARITY)
            match = match or self.heldout.match(signed, digests)
            if match is not None:
                return left_out(step="apart", reason="similar to a held-out problem", detail=match)
            structure = structure_of(tree)
            first = self._first.setdefault(f"{digest or origin} {structure}", origin)
            if first != origin:
                return left_out(step="distinct", reason="the same again", detail=first)
            if structure == NONE and (alike := self._index.similar(signed)):
                index, share = max(alike, key=lambda each: (each[1], -each[0]))
                said = f"{self._names[index]} ({share:.2f})"
                return left_out(
                    step="distinct", reason="similar to an earlier problem", detail=said
                )
        self._index.add(signed)
        self._names.append(origin)
        file = origin.rpartition(":")[0] or origin
        self._families.join(number, self._files.setdefault(file, number))
        return None

    def set_apart(self, numbers: Iterable[int], split: SplitTable) -> frozenset[int]:
        """Numbers of the problems for measuring: whole files, while they fit the share."""
        return choose_heldout({number: self._families.of(number) for number in numbers}, split)
