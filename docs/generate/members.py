"""Docstrings of fields and enumeration members, which Python does not keep."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from typing import Any


def docs_of(kind: type[Any]) -> list[tuple[str, str, str]]:
    """Name, type and docstring of each field of a dataclass."""
    found = member_docs(kind)
    return [(each.name, str(each.type), found.get(each.name, "")) for each in fields(kind)]


def member_docs(kind: type[Any]) -> dict[str, str]:
    """The string below each assignment in the body of a class, by name."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for member, after in zip(tree.body, tree.body[1:], strict=False):
        match member, after:
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as doc)),
            ):
                docs[name] = " ".join(doc.split())
            case _:
                pass
    return docs
