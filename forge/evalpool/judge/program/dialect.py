"""The closed list of TTIR: operations, words, library functions and inline assembly of a kernel.

Data and small pure functions. Two readers check a kernel against it: the compiler's child over the
module that MLIR parsed, and our own parser of the same text (`forge.evalpool.judge.ttir`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


def _rows(name: str) -> list[str]:
    """Lines of a table, but for comments."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.rstrip("#") and line[:2] != "# "]


OPERATIONS: Mapping[str, tuple[str, str]] = {
    name: (form.strip(), words.strip())
    for name, _, rest in (row.partition(" ") for row in _rows("operations.txt"))
    for form, _, words in (rest.partition("::"),)
}
"""Every operation that a kernel may hold: the form of its types, and the pattern of its words."""
STRIPPED = frozenset({"tt.print", "tt.assert"})
"""Operations without a result that are removed before compilation: device text is not formatted."""
_WORDS = [line.split(" = ") for line in _rows("words.txt")]
ATTRIBUTES: Mapping[str, str] = dict(row for row in _WORDS if len(row) > 1)
"""Patterns of the values of some attributes (`words.txt`)."""
ELEMENTS = frozenset(_WORDS[0][0].split())
"""Element types."""
WORDS = OPERATIONS.keys() | {word for row in _WORDS for word in row[0].split()}
"""Every bare word of a kernel's text."""


def _externs() -> dict[str, frozenset[str]]:
    found = dict[str, set[str]]()
    for row in _rows("functions.txt"):
        prefix, signature, names = (part.strip() for part in row.split("|"))
        kinds = ("f32", "f64") if "T" in signature else ("",)
        for name in names.split():
            for one in [name.replace("*", kind) for kind in "dnuz"] if "*" in name else [name]:
                for kind in kinds:
                    suffix = f"_{kind}" if prefix == "__ocml_" else "f" if kind == "f32" else ""
                    typed = signature.replace("T", kind)
                    found.setdefault(prefix + one + suffix, set()).add(typed)
    return {name: frozenset(signatures) for name, signatures in found.items()}


EXTERN: Mapping[str, frozenset[str]] = _externs()
"""Signatures (`f32, f32 -> f32`) of each function that `tt.extern_elementwise` may call
(`functions.txt`)."""

_TEMPLATE = re.compile(
    r"\s*(?:cos|ex2|lg2|rcp|rsqrt|sin|sqrt|tanh)\.approx(?:\.ftz)?\.f32\s+\$0\s*,\s*\$1\s*;?\s*"
)
_CONSTRAINTS = re.compile(r"=[fr]\s*,\s*[fr]")


def refused_assembly(template: str, constraints: str) -> str:
    """The reason to refuse inline assembly, or an empty string for one approximate instruction of
    PTX on a float32: `tanh.approx.f32 $0, $1;` and its like are functions that Triton lacks."""
    if _TEMPLATE.fullmatch(template) and _CONSTRAINTS.fullmatch(constraints.strip()):
        return ""
    text = " ".join(f"{template} {constraints}".split())[:80]
    return f"assembly cannot be judged but for one approximate instruction on float32: {text!r}"
