"""Checks of `reward.function`: its file, its name in the file, and keys that it replaces.

The file is parsed, never executed: `forge run` calls the function once before it starts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from forge.config.checks.mistake import Mistake, absent, mistake, show

if TYPE_CHECKING:
    from forge.config.schema import Experiment, RewardTable

REPLACED = (
    "compiled", "correct", "speedup", "speedup_cap", "slower_penalty", "rejected",
    "compile_error",
)  # fmt: skip
"""Weights that a function replaces. `stop_at_speedup` ends rollouts with any reward."""
OPTIONS = ("function_per", "function_timeout_s")


def check_function(experiment: Experiment) -> Iterator[Mistake]:
    """A file that defines the function, and no key without an effect."""
    reward = experiment.reward
    if reward.function is None:
        for key in OPTIONS:
            if _is_set(reward, key):
                text = f"found {show(getattr(reward, key))} without reward.function; both or none"
                yield mistake(text, "reward", key)
        return
    for key in REPLACED:
        if _is_set(reward, key):
            text = f"found {show(getattr(reward, key))} with reward.function, whose terms are the"
            yield mistake(f"{text} whole reward; remove one of them", "reward", key)
    file, _, name = reward.function.rpartition(":")
    if not Path(file).is_file():
        text = f'found "{file}", which is not a file; a Python file with the function {name}'
        yield absent(text, "reward", "function")
    elif fault := _fault(Path(file), name):
        yield absent(fault, "reward", "function")


def _is_set(reward: RewardTable, key: str) -> bool:
    """True for another value than the default, which a resolved experiment lists too."""
    return getattr(reward, key) != type(reward).model_fields[key].default


def _fault(file: Path, name: str) -> str:
    """A fault that the text of a file shows; empty if there is none."""
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError, OSError) as error:
        line = getattr(error, "lineno", None) or 1
        return f"{file}:{line}: {type(error).__name__}: {getattr(error, 'msg', error)}"
    if not _bound(tree).isdisjoint({name, "*"}):
        return ""
    names = sorted(n.name for n in tree.body if isinstance(n, ast.FunctionDef))
    return f'{file} defines no "{name}"; one of {", ".join(names) or "its functions: none"}'


def _bound(tree: ast.Module) -> set[str]:
    """Names that statements anywhere in a file may bind."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.alias(name=name, asname=other):
                names.add(other or name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case _:
                pass
    return names
