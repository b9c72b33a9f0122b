"""Problems of a checkout in the form of jansel/pytorch-jit-paritybench.

A file is a GitHub repository's modules, with the arguments that the project found for each:

    generated/test_OWNER_REPOSITORY.py
        TESTCASES = [(Module, lambda: ([...], {...}), lambda: ([...], {...}), True), ...]
                              constructor             forward
"""

from __future__ import annotations

import ast
import hashlib
from typing import TYPE_CHECKING, Any

from forge.data.harvest.arguments import CONFIG, constructor_call, forward_call, level_of
from forge.data.harvest.closure import TOO_DEEP, Library, NotSelfContained, globals_of
from forge.data.harvest.records import Found, Rejected

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from forge.data.harvest.closure import CodeFile

FOLDER = "generated"
MOCK = "_mock_config"
KIND = "paritybench"


class Paritybench:
    """A checkout. A unit is a file."""

    name = KIND

    def __init__(self, root: Path) -> None:
        self._root = root

    @staticmethod
    def is_one(root: Path) -> bool:
        """True for a checkout in this form."""
        return any((root / FOLDER).glob("test_*.py"))

    def facts(self) -> dict[str, Any]:
        """A hash of names and sizes of the files."""
        hasher = hashlib.sha256()
        for unit in self.units():
            hasher.update(f"{unit} {(self._root / unit).stat().st_size}\n".encode())
        return {"source": self.name, "files": len(self.units()), "sha256": hasher.hexdigest()}

    def units(self) -> Sequence[str]:
        """Paths of the files."""
        paths = (self._root / FOLDER).glob("test_*.py")
        return sorted(f"{FOLDER}/{path.name}" for path in paths if path.is_file())

    def read(self, unit: str) -> Iterator[Found | Rejected]:
        """The cases of a file."""
        module = unit.removesuffix(".py").replace("/", ".")
        library = Library(self._root)
        file = library.file(module)
        if file is None:
            yield Rejected(origin=unit, kind=KIND, reason="no Python")
            return
        for number, case in enumerate(_cases(file)):
            origin = f"{unit}:{number}"
            try:
                yield _problem(library, file, case, origin)
            except NotSelfContained as error:
                yield Rejected(origin=origin, kind=KIND, reason=str(error), detail=error.detail)
            except RecursionError:
                yield Rejected(origin=origin, kind=KIND, reason=TOO_DEEP)


def _cases(file: CodeFile) -> list[ast.expr]:
    node = file.definitions.get("TESTCASES")
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
        return node.value.elts
    return []


def _problem(library: Library, file: CodeFile, case: ast.expr, origin: str) -> Found:
    match case:
        case ast.Tuple(
            elts=[
                ast.Name(id=name),
                ast.Lambda(body=ast.Tuple(elts=[ast.List(elts=given), ast.Dict() as named])),
                ast.Lambda(body=ast.Tuple(elts=[ast.List(elts=inputs), ast.Dict() as keywords])),
                *_,
            ]
        ):
            pass
        case _:
            raise NotSelfContained("unknown form of a case")
    closure = library.closure(file.module, name)
    if closure.method("forward") is None:
        raise NotSelfContained("no forward of its own")
    called = forward_call(closure.method("forward"), inputs, _keywords(keywords))
    constructed = constructor_call(closure.method("__init__"), given, _keywords(named), config=MOCK)
    used = globals_of(ast.Expr(constructed.arguments)) | globals_of(ast.Expr(called))
    closure.require(used - {"torch"})
    text = closure.text(inputs=called, arguments=constructed.arguments, first=constructed.first)
    if constructed.first:
        text = f"from types import {CONFIG}\n{text}"
    return Found(
        text=text, origin=origin, name=name, kind=KIND, level=level_of(ast.parse(text))
    )  # fmt: skip


def _keywords(node: ast.Dict) -> dict[str, ast.expr]:
    return {
        str(key.value): value
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant)
    }
