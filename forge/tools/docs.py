"""Searches Triton's language reference: the docstrings of the installed package, which a child of
this file, since it imports triton, prints as a JSON list of [name, signature, text]."""

from __future__ import annotations

import importlib
import inspect
import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from forge.errors import MachineError

CHILD = ("-m", "forge.tools.docs")
CHILD_TIMEOUT_S = 120.0
NUM_FOUND = 3
"""Entries of an answer; one whose name is the query stands alone."""
NAME_WEIGHT = 5.0
"""Weight of a word of the query in an entry's name; in its text it has up to 1."""
_WORD = re.compile(r"[a-z]+|\d+")


@dataclass(frozen=True, slots=True)
class ReferenceEntry:
    """A function or class of the reference."""

    name: str
    """As kernels write it: `tl.dot`."""
    signature: str
    text: str

    def shown(self, *, max_chars: int) -> str:
        whole = f"{self.name}{self.signature}\n{self.text}"
        return whole if len(whole) <= max_chars else f"{whole[: max_chars - 4].rstrip()} ..."


@cache
def reference() -> tuple[ReferenceEntry, ...]:
    """The entries of the installed triton, read once by a child. Raises MachineError."""
    command = [sys.executable, *CHILD]
    try:
        ran = subprocess.run(command, capture_output=True, timeout=CHILD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"docs: triton was not imported within {CHILD_TIMEOUT_S:.0f} s"
        ) from None
    if ran.returncode:
        last = ran.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise MachineError(f"docs: triton cannot be read: {last}; forge-kernels[judge] has it")
    return tuple(ReferenceEntry(*row) for row in json.loads(ran.stdout))


def search(query: str, entries: Sequence[ReferenceEntry], *, max_chars: int) -> str:
    """The best entries for a query, or a line that says that there is none."""
    wanted = query.strip().removesuffix("()").lower()
    names = {entry.name.lower(): entry for entry in entries}
    for name in (wanted, f"tl.{wanted}", wanted.replace("triton.language.", "tl.")):
        if name in names:
            return names[name].shown(max_chars=max_chars)
    words = set(_WORD.findall(wanted))
    texts = [(Counter(_words(one.name)), Counter(_words(one.text))) for one in entries]
    used = Counter(word for name, text in texts for word in words & (name.keys() | text.keys()))
    scores = list[float]()
    for name, text in texts:
        share = {word: text[word] / (1 + text[word]) for word in words}
        rare = {word: math.log(1 + len(entries) / used[word]) for word in words if used[word]}
        scores.append(sum(rare[w] * (share[w] + NAME_WEIGHT * (w in name)) for w in rare))
    ranked = sorted(range(len(entries)), key=lambda k: (-scores[k], entries[k].name))
    best = [entries[k] for k in ranked[:NUM_FOUND] if scores[k]]
    if not best:
        return f"nothing about {query.strip()[:80]!r}; ask for an operation, such as tl.dot"
    room = max_chars // len(best)
    return "\n\n".join(entry.shown(max_chars=room) for entry in best)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


MODULES = {"tl": "triton.language", "triton": "triton"}
"""Modules by the name that kernels give them."""
_ROLE = re.compile(r":(?:code|py:\w+):`")


def entries() -> list[tuple[str, str, str]]:
    """Name, signature and text of every public function and class of triton's own."""
    found = list[tuple[str, str, str]]()
    for prefix, module in MODULES.items():
        for name, value in vars(importlib.import_module(module)).items():
            inner = getattr(value, "fn", value)
            is_tritons = str(getattr(inner, "__module__", "")).startswith("triton.")
            if name.startswith("_") or not callable(inner) or not is_tritons:
                continue
            text = getattr(value, "__doc__", None) or inner.__doc__
            if isinstance(text, str) and text.strip():
                text = _ROLE.sub("`", inspect.cleandoc(text))
                found.append((f"{prefix}.{name}", _signature(inner), text))
    return found


def _signature(value: Any) -> str:
    """Its parameters, without those that the compiler passes."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    kept = [one for one in signature.parameters.values() if not one.name.startswith("_")]
    return str(signature.replace(parameters=kept, return_annotation=inspect.Signature.empty))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(entries()))
