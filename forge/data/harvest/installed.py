"""The problem of one class of an installed package, as `forge solve PACKAGE.MODULE:CLASS` asks."""

from __future__ import annotations

import ast

from forge.data.harvest.arguments import problem_text
from forge.data.harvest.closure import NotSelfContained
from forge.data.harvest.guesses import Calls, guesses
from forge.data.harvest.sizes import replaced
from forge.data.harvest.sources.package import open_package
from forge.errors import ConfigError


def class_problem(module: str, name: str, *, definitions: str | None = None) -> str:
    """The self-contained text of a problem.

    Args:
        definitions: Python with `get_inputs` and, unless the class needs no arguments,
            `get_init_inputs`; None: both are guessed.

    Raises:
        ConfigError: a package that is not installed, a class that is not there or needs more than
            PyTorch, or definitions without `get_inputs`.
    """
    tree = open_package(module.partition(".")[0])
    try:
        closure = tree.closure(module, name)
        if definitions is None:
            one = guesses(closure, calls=Calls())[0]
            return problem_text(closure, one.inputs, one.constructed)
        nothing = ast.List(elts=[], ctx=ast.Load())
        text = closure.text(inputs=nothing, arguments=nothing)
    except NotSelfContained as error:
        reason = ": ".join(filter(None, (str(error), error.detail)))
        raise ConfigError(
            f"{module}:{name}: cannot be made a problem: {reason}; a file in KernelBench's layout, "
            "or --inputs with get_inputs and get_init_inputs"
        ) from error
    try:
        found = {
            node.name for node in ast.parse(definitions).body if isinstance(node, ast.FunctionDef)
        }
    except SyntaxError as error:
        raise ConfigError(f"--inputs: line {error.lineno}: no Python: {error.msg}") from error
    if "get_inputs" not in found:
        raise ConfigError(f"--inputs: found {sorted(found) or 'no function'}; get_inputs is needed")
    return replaced(text, definitions)
