"""A problem from a file in KernelBench's layout. Read, never run: host processes import no torch.

Called by `forge judge`, `forge chat` and whoever reads a directory of problems.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from forge.errors import ConfigError
from forge.records.problem import Problem, Split

if TYPE_CHECKING:
    from pathlib import Path

FUNCTIONS = ("get_inputs", "get_init_inputs")


def load_problem(path: Path, *, entry_point: str = "Model", precision: str = "fp32") -> Problem:
    """Raises ConfigError when the file is not there or is no problem."""
    try:
        source = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    check_problem_source(source, where=str(path), entry_point=entry_point)
    return Problem(
        problem_id=path.stem,
        source=source,
        family=path.parent.name,
        level=0,
        split=Split.HELDOUT,
        entry_point=entry_point,
        precision=precision,
    )


def check_problem_source(source: str, *, where: str, entry_point: str = "Model") -> None:
    """Raises ConfigError naming what a problem needs and this source lacks."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise ConfigError(f"{where}:{line or 1}: no Python: {error}") from error
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    missing = [f"class {entry_point}"] if entry_point not in defined else []
    missing += [f"{name}()" for name in FUNCTIONS if name not in defined]
    if missing:
        raise ConfigError(
            f"{where}: no problem: it does not define {', '.join(missing)}; "
            f"a problem has class {entry_point}, get_inputs() and get_init_inputs()"
        )
