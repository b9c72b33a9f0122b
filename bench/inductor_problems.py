"""Chooses the problems of `bench/inductor.py` and their sizes."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path

from forge.config.schema import ProblemsTable
from forge.data.generator import generate_problems

NUM_GENERATED = 1000
"""Problems that are generated; rows are a sample of them."""
SMALLER = (4096, 1024, 512, 256, 128, 64, 32, 16)
"""Largest constants of a problem whose tensors are too large, in the order of the attempts."""


def sources(kernelbench: Path | None, *, sizes: str, seed: int) -> Iterator[tuple[str, str]]:
    """Names and sources of problems, KernelBench's and generated ones by turns."""
    table = ProblemsTable.model_validate({"num_problems": NUM_GENERATED, "sizes": sizes})
    generated = [(one.problem_id, one.source) for one in generate_problems(table, seed=seed)]
    random.Random(seed).shuffle(generated)
    files = [] if kernelbench is None else _files(kernelbench)
    random.Random(seed).shuffle(files)
    while generated or files:
        if files:
            yield files.pop()
        if generated:
            yield generated.pop()


def _files(checkout: Path) -> list[tuple[str, str]]:
    """Levels 1 and 2 of a checkout, which has them in a folder of its name or beside it."""
    folders = (checkout / "KernelBench", checkout)
    root = next((one for one in folders if (one / "level1").is_dir()), None)
    if root is None:
        raise SystemExit(f"--kernelbench {checkout}: no folder level1 there or in KernelBench/")
    return [
        (path.relative_to(root).as_posix(), path.read_text())
        for level in ("level1", "level2")
        for path in sorted((root / level).glob("*.py"))
    ]


def lowered(source: str, largest: int) -> str:
    """The source with the integers that its module assigns at most `largest`."""
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for one in ast.walk(node.value):
                if isinstance(one, ast.Constant) and isinstance(one.value, int):
                    one.value = min(one.value, largest)
    return ast.unparse(tree)
