"""Constructor arguments of a problem: a list, or KernelBook's pair of positional and named ones.

`get_init_inputs()` returns `[16, 32]` in KernelBench's files and `[[16], {"dim": 32}]` in
KernelBook's. Called wherever a reference is constructed. A candidate gets what was decided for its
reference: a list of positional arguments, or a dict with the keys ARGS and KWARGS.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ARGS, KWARGS = "args", "kwargs"

Arguments = list[Any] | dict[str, Any]
"""Positional arguments, or a dict of both kinds."""


def constructor_arguments(module: Any, entry_point: str) -> Arguments:
    """Constructor arguments of a problem; none without `get_init_inputs()`."""
    found = list(getattr(module, "get_init_inputs", list)())
    if _is_pair(found) and _accepts(getattr(module, entry_point), *found):
        return {ARGS: list(found[0]), KWARGS: dict(found[1])}
    return found


def call(entry_point: Callable[..., Any], arguments: Arguments) -> Any:
    """Calls an entry point with its constructor arguments."""
    if isinstance(arguments, dict):
        return entry_point(*arguments[ARGS], **arguments[KWARGS])
    return entry_point(*arguments)


def _is_pair(found: list[Any]) -> bool:
    return len(found) == 2 and isinstance(found[0], list | tuple) and isinstance(found[1], dict)


def _accepts(entry_point: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> bool:
    """True unless the signature shows that a list and a dict are the arguments themselves."""
    try:
        inspect.signature(entry_point).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # no signature, as of some classes written in C
        return True
    return True
