"""Loads problems: from the generator, directories, rows of files, or text.

Called by the runner, by commands that ask about a problem, and by adapters.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

from forge.config.schema import ProblemsTable
from forge.data.generator import generate_problems
from forge.data.problem_files import note_shapes
from forge.data.sources.loading import load_source
from forge.data.sources.splitting import LoadedSource, split_problems
from forge.errors import ConfigError
from forge.records import Problem, Split
from forge.records.problem import INPUT_SETS, syntax_tree

SHAPE = (4, 64)
"""Shape of the tensors that a bare function gets."""


def load_problems(table: ProblemsTable, *, seed: int) -> list[Problem]:
    """All problems of a run, in a fixed order. Raises ConfigError for a source that cannot be read,
    ids that occur twice, a level that no problem has, or a training problem that duplicates a
    held-out one."""
    if table.sources is None and table.source == "generated":
        return generate_problems(table, seed=seed)
    sources = [_load(table, index, seed=seed) for index in range(len(table.parts()))]
    _require_own_ids(sources, table)
    return split_problems(sources, table, seed=seed)


def _load(table: ProblemsTable, index: int, *, seed: int) -> LoadedSource:
    """The problems of one source, with their origin if there are several."""
    part = table.parts()[index]
    if part.source == "generated":
        problems = generate_problems(table, seed=seed)
    else:
        problems = load_source(part, key=table.key_of(index))
    if table.sources is not None:
        has_prefix = part.name and part.source != "generated"  # whose ids make their answers
        prefix, origin = f"{part.name}/" if has_prefix else "", table.origin_of(index)
        problems = [
            replace(each, problem_id=prefix + each.problem_id, origin=origin) for each in problems
        ]
    is_generated = part.source == "generated"
    return LoadedSource(problems=problems, use=part.use, is_generated=is_generated)


def _require_own_ids(sources: Sequence[LoadedSource], table: ProblemsTable) -> None:
    first: dict[str, int] = {}
    for index, source in enumerate(sources):
        for problem in source.problems:
            other = first.setdefault(problem.problem_id, index)
            if other != index:
                raise ConfigError(
                    f"{table.key_of(index)}name: {problem.problem_id} is in "
                    f"{table.key_of(other).rstrip('.')} too; set a name, which begins the ids"
                )


def from_source(source: str, *, name: str = "stdin") -> Problem:
    """A problem from text: a whole problem file, or a bare torch function, which `Model.forward`
    calls with `torch.randn` tensors of SHAPE for arguments without a default. The id,
    `chat/<name>-<hash>`, depends on the text. Raises ConfigError."""
    try:
        tree = syntax_tree(source)
    except SyntaxError as err:
        raise ConfigError(f"{name}:{err.lineno}: no Python: {err.msg}") from err
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    has_inputs = not {"get_inputs", INPUT_SETS}.isdisjoint(defined)
    if not (has_inputs and {"Model", "get_init_inputs"} <= defined):
        source = _wrap_function(source, tree, name=name)
    problem_id = f"chat/{name}-{sha256(source.encode()).hexdigest()[:8]}"
    source = note_shapes(source, [])
    return Problem(problem_id=problem_id, source=source, family=name, level=1, split=Split.HELDOUT)


def _wrap_function(source: str, tree: ast.Module, *, name: str) -> str:
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
    inputs = ", ".join(f"torch.randn{SHAPE}" for _ in tensors)
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


def in_split(problems: Sequence[Problem], split: Split) -> list[Problem]:
    """The problems of a split; for HELDOUT of an undivided directory, all of them."""
    found = [problem for problem in problems if problem.split is split]
    if not found and split is Split.HELDOUT:
        return list(problems)
    return found
