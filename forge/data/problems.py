"""Loads problems: from the generator, a directory, or text.

Called by the runner, by `forge chat` and by `forge.solve`.
"""

from __future__ import annotations

import ast
from hashlib import sha256
from typing import TYPE_CHECKING

from forge.data.directory import load_directory
from forge.data.generator import generate_problems
from forge.data.shapes import note_shapes
from forge.errors import ConfigError
from forge.records import Problem, Split
from forge.records.problem import INPUT_SETS

if TYPE_CHECKING:
    from forge.config.schema import ProblemsTable


def load_problems(table: ProblemsTable, *, seed: int) -> list[Problem]:
    """All problems of a run, in a fixed order."""
    if table.source == "dir":
        return load_directory(table, seed=seed)
    return generate_problems(table, seed=seed)


def from_source(source: str, *, name: str = "stdin", shape: tuple[int, ...] = (4, 64)) -> Problem:
    """A problem from text: a whole problem file, or a bare torch function.

    A bare function is called by `Model.forward`; arguments without a default become
    `torch.randn` tensors of `shape`. The id, `chat/<name>-<hash>`, depends on the text, so that a
    run keeps every problem of its chats beside its own.

    Raises:
        ConfigError: the text is no Python, or neither of the two.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as err:
        raise ConfigError(f"{name}:{err.lineno}: no Python: {err.msg}") from err
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    has_inputs = not {"get_inputs", INPUT_SETS}.isdisjoint(defined)
    if not (has_inputs and {"Model", "get_init_inputs"} <= defined):
        source = _wrap_function(source, tree, name=name, shape=shape)
    problem_id = f"chat/{name}-{sha256(source.encode()).hexdigest()[:8]}"
    source = note_shapes(source, [])
    return Problem(problem_id=problem_id, source=source, family=name, level=1, split=Split.HELDOUT)


def _wrap_function(source: str, tree: ast.Module, *, name: str, shape: tuple[int, ...]) -> str:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if len(functions) != 1 or any(isinstance(node, ast.ClassDef) for node in tree.body):
        raise ConfigError(
            f"{name}: {len(functions)} functions and no problem; give one function of tensors, "
            "or Model, get_inputs and get_init_inputs"
        )
    function = functions[0]
    arguments = [arg.arg for arg in function.args.args]
    tensors = arguments[: len(arguments) - len(function.args.defaults)]
    if not tensors:
        raise ConfigError(f"{name}: {function.name} takes no tensor; it needs one at least")
    inputs = ", ".join(f"torch.randn{shape}" for _ in tensors)
    return f"""import torch

{source.strip()}


class Model(torch.nn.Module):
    def forward(self, {", ".join(tensors)}):
        return {function.name}({", ".join(tensors)})


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""
