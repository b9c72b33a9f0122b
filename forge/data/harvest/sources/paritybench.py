"""Problems of a checkout in the form of jansel/pytorch-jit-paritybench.

A file is a GitHub repository's modules, with the arguments that the project found for each:

    generated/test_OWNER_REPOSITORY.py
        TESTCASES = [(Module, lambda: ([...], {...}), lambda: ([...], {...}), True), ...]
                              constructor             forward
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forge.data.harvest.arguments import case_text, level_of, tried
from forge.data.harvest.closure import Closure, CodeFile, Library, NotSelfContained
from forge.data.harvest.records import Found, Rejected

FOLDER = "generated"
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
        paths = (self._root / FOLDER).glob("test_*.py")
        return sorted(f"{FOLDER}/{path.name}" for path in paths if path.is_file())

    def read(self, unit: str) -> Iterator[Found | Rejected]:
        module = unit.removesuffix(".py").replace("/", ".")
        library = Library(self._root)
        file = library.file(module)
        if file is None:
            yield Rejected(origin=unit, kind=KIND, reason="no Python")
            return
        for number, case in enumerate(_cases(file)):
            yield tried(_problem, library, file, case, origin=f"{unit}:{number}", kind=KIND)


def _cases(file: CodeFile) -> list[ast.expr]:
    node = file.definitions.get("TESTCASES")
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
        return node.value.elts
    return []


def _problem(library: Library, file: CodeFile, case: ast.expr, *, origin: str, kind: str) -> Found:
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
    closure = Closure(library, file.module, name)
    if closure.method("forward") is None:
        raise NotSelfContained("no forward of its own")
    made, called = (given, _keywords(named)), (inputs, _keywords(keywords))
    text = case_text(closure, made=made, called=called)
    return Found(
        text=text, origin=origin, name=name, kind=kind, level=level_of(ast.parse(text))
    )  # fmt: skip


def _keywords(node: ast.Dict) -> dict[str, ast.expr]:
    return {
        str(key.value): value
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant)
    }
