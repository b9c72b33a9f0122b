# pyright: strict
"""Holds the closed list of what a candidate's host code may name; `host_code.py` reads it.

A name is here if what it gives is decided by its arguments: by shapes, types and strides of
tensors, by parameters, by the card. Not here, and never to be added: what tells of the process
(time, threads, memory, environment, switches, hooks, counters, addresses), what loads, saves,
registers or seeds, and what hands out the inside of a function, a class or a module.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from forge.evalpool.judge.program.ops import KINDS

if TYPE_CHECKING:

    def __getattr__(name: str) -> frozenset[str]: ...


def _lists() -> dict[str, frozenset[str]]:
    """The lists of `host_names.txt` by name, which are attributes of this module."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    rows = [one for one in text.splitlines() if not one.startswith("#")]
    parts = (part.partition("\n") for part in "\n".join(rows).split("\n[")[1:])
    return {head.partition("]")[0]: frozenset(names.split()) for head, _, names in parts}


LISTS = _lists()
globals().update(LISTS)

TORCH_TYPE = re.compile(
    r"torch\.(b?float|u?int|complex)\d*\w*|torch\.(half|double|long|short|bool)"
)
"""A type of torch's: all that a kernel's body may name of it."""
COMPUTED = (
    {name for one in KINDS if not (name := one.removeprefix("aten.")).startswith("_")}
    | LISTS["VIEWS"]
    | LISTS["COMPUTED"]
)
"""Operations that a program may have, and functions that are made of some."""
OF_TENSORS = COMPUTED | LISTS["OF_TENSORS"]
"""Attributes of tensors that tell what they are."""
CONSUMERS = LISTS["ITERATORS"] | LISTS["CONSUMERS"]
"""Functions that read an iterator at once."""
METHODS = LISTS["BUILDING"] | LISTS["METHODS"]
"""Methods of torch's modules that others call: a class may not define them anew."""
