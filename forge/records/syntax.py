"""Python's syntax trees, made by one thread at a time."""

from __future__ import annotations

import ast
import threading

_ONE = threading.Lock()


def syntax_tree(source: str) -> ast.Module:
    """The tree of a source. Before 3.11.8, two threads in `ast.parse` at once now and then end in
    SystemError (python/cpython#106905). Raises as `ast.parse`."""
    with _ONE:
        return ast.parse(source)
