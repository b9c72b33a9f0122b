"""The problem of one class of an installed package, as `forge solve PACKAGE.MODULE:CLASS` asks."""

from __future__ import annotations

import ast

from forge.data.harvest.closure import NotSelfContained
from forge.data.harvest.guesses import Calls, guesses
from forge.data.harvest.sizes import replaced
from forge.data.harvest.sources.modules import open_package
from forge.errors import ConfigError

OF_TORCH = """\
import torch
from {module} import {name} as Base


class Model(Base):
    pass


def get_inputs():
    return []


def get_init_inputs():
    return []
"""


def class_problem(module: str, name: str, *, definitions: str | None = None) -> str:
    """The self-contained text of a problem. The module may be one that exports the class, such as
    `torch.nn`; a module of PyTorch itself is imported. Raises ConfigError if there is none.

    Args:
        definitions: Python with `get_inputs` and, unless the class needs no arguments,
            `get_init_inputs`; None: both are guessed.
    """
    package = module.partition(".")[0]
    tree = open_package(package)
    found = tree.modules_of(module, name)
    if module not in found and len(found) > 1:
        raise ConfigError(f"{module}:{name}: name one of {', '.join(found)}")
    where = module if module in found or not found else found[0]
    try:
        if package == "torch" and found:
            if definitions is None:
                raise NotSelfContained("arguments of PyTorch's modules are not guessed")
            text = OF_TORCH.format(module=where, name=name)
        elif definitions is None:
            return next(guesses(tree.closure(where, name), calls=Calls()))
        else:
            nothing = ast.List(elts=[], ctx=ast.Load())
            text = tree.closure(where, name).text(inputs=nothing, arguments=nothing)
    except NotSelfContained as error:
        reason = ": ".join(filter(None, (str(error), error.detail)))
        raise ConfigError(
            f"{module}:{name}: cannot be made a problem: {reason}; a file in KernelBench's layout, "
            "or --inputs with get_inputs and get_init_inputs"
        ) from error
    return with_inputs(text, definitions)


def with_inputs(text: str, definitions: str) -> str:
    """The text of a problem with the functions, constants and imports of another file. Raises
    ConfigError for definitions without `get_inputs`."""
    try:
        body = ast.parse(definitions).body
    except SyntaxError as error:
        raise ConfigError(f"--inputs: line {error.lineno}: no Python: {error.msg}") from error
    found = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    if "get_inputs" not in found:
        raise ConfigError(f"--inputs: found {sorted(found) or 'no function'}; get_inputs is needed")
    whole = replaced(text, definitions)
    lines = whole.split("\n")
    at = next((node.lineno - 1 for node in ast.parse(whole).body if _is_import(node)), 0)
    imports = [ast.unparse(node) for node in body if _is_import(node)]
    lines[at:at] = [one for one in imports if one not in lines]
    return "\n".join(lines)


def _is_import(node: ast.stmt) -> bool:
    """True for an import that may stand anywhere."""
    is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
    return isinstance(node, ast.Import | ast.ImportFrom) and not is_future
