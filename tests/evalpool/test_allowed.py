"""No permitted name leads to a module that the screen takes for something else."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator

from forge.evalpool.judge.allowed import ALLOWED_IMPORTS, forbidden_part, is_module

HARMLESS = {"math", "cmath"}


def reachable(path: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    """(dotted path, real name) of each module below a permitted one."""
    try:
        module = importlib.import_module(path)
    except ImportError:
        return
    if path in seen:
        return
    seen.add(path)
    for name in dir(module):
        below = f"{path}.{name}"
        value = None if forbidden_part(below) else getattr(module, name, None)
        if isinstance(value, types.ModuleType):
            yield below, value.__name__
            yield from reachable(below, seen)


def test_every_module_that_can_be_reached_is_known_to_be_one() -> None:
    seen: set[str] = set()
    found = [pair for top in ALLOWED_IMPORTS[:-1] for pair in reachable(top, seen)]
    assert len(found) > 20
    hidden = [pair for pair in found if not is_module(pair[0]) and pair[1] not in HARMLESS]
    assert hidden == []


def test_no_permitted_module_brings_what_runs_code_from_elsewhere() -> None:
    """torch and triton name what they imported themselves: `triton.language.core.dataclass`."""
    harmless = {
        "math",
        "cmath",
        "typing",
        "typing_extensions",
        "collections",
        "collections.abc",
        "builtins",
    }
    seen: set[str] = set()
    modules = dict(pair for top in ("torch", "triton") for pair in reachable(top, seen))
    found = [
        f"{path}.{name}"
        for path, real in {"torch": "torch", "triton": "triton", **modules}.items()
        for name, value in vars(importlib.import_module(real)).items()
        if callable(value) and forbidden_part(f"{path}.{name}") is None
        if name != "cached_property" and forbidden_part(f"functools.{name}") is not None
        if getattr(value, "__module__", None) in {*sys.stdlib_module_names, "_warnings"} - harmless
    ]
    assert found == []


def test_where_torch_lies_is_found_without_importing_it() -> None:
    assert is_module("torch.nn.functional")
    assert not is_module("torch.nn.Module")
    assert forbidden_part("torch.nn.functional.relu") is None
    assert forbidden_part("torch.nn.functional.grad") == "grad"
