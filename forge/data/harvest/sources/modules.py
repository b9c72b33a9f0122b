"""Problems of files: of any tree of Python files with modules, of a package that is installed here
(`package:NAME`), and of problem files in KernelBench's layout. Nothing is imported.

A file that defines `Model`, `get_inputs` and `get_init_inputs` is a problem as it is. Of any other,
each class with a `forward` is tried with arguments that its tests, defaults and names suggest.

Arguments are stated in a checkout in the form of jansel/pytorch-jit-paritybench, of which a file is
a GitHub repository's modules with the arguments that the project found for each:

    generated/test_OWNER_REPOSITORY.py
        TESTCASES = [(Module, lambda: ([...], {...}), lambda: ([...], {...}), True), ...]
                              constructor             forward

and in rows (`rows:PATH`): KernelBook's, and all others that `[problems] format` reads. A row whose
class is not `Model`, or whose arguments are named, becomes a problem in KernelBench's layout; any
other stays as it is. What else a row has, such as an answer, is not read.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, metadata, packages_distributions
from pathlib import Path
from typing import Any

from forge.data.harvest.arguments import Calls, calls_in, case_text, guesses, level_of, tried
from forge.data.harvest.closure import (
    NO_CODE,
    Closure,
    CodeFile,
    Library,
    NotSelfContained,
    code_of,
    read_code,
)
from forge.data.harvest.records import Found, Rejected
from forge.data.harvest.sizes import replaced
from forge.data.pairs.rows import BadRow, Unfit, hash_rows, row_files, rows_of
from forge.data.problem_files import level_of as level_of_path
from forge.data.sources.loading import RowProblem, row_problem
from forge.errors import ConfigError

LAYOUT = frozenset({"Model", "get_inputs", "get_init_inputs"})
SKIPPED = ("docs", "node_modules", "build", "dist", "setup.py", "conftest.py")
"""Folders and files without modules."""
TESTS = re.compile(r"(^|/)(test_[^/]*$|tests?/)")
LICENCES = {
    "MIT License": "MIT",
    "Apache License": "Apache-2.0",
    "BSD 3-Clause": "BSD-3-Clause",
    "Redistribution and use in source and binary forms": "LicenseRef-BSD",
    "GNU GENERAL PUBLIC LICENSE": "LicenseRef-GPL",
    "Mozilla Public License": "MPL-2.0",
}
"""SPDX names by words at the beginning of licences; the last ones may be of several versions."""
OF_PACKAGES = {"apache": "Apache-2.0", "mit": "MIT", "bsd": "LicenseRef-BSD"}
"""SPDX names by a word of what a package states; which of the BSD licences, it does not say."""


class ModuleTree:
    """A directory. A unit is a file."""

    def __init__(self, root: Path, *, name: str = "", package: str = "", licence: str = "") -> None:
        """
        Args:
            name: name of the source; absent: that of the directory.
            package: dotted name of an installed package.
            licence: SPDX name; absent: that of a licence file in the directory.
        """
        self.name = name or root.resolve().name
        self._root = root
        self._package = package
        self._licence = licence or licence_of(root)

    def facts(self) -> dict[str, Any]:
        """A hash of the files. Raises ConfigError for one that cannot be read."""
        hasher = hashlib.sha256()
        for unit in self.units():
            path = self._root / unit
            try:
                hasher.update(unit.encode() + b"\0" + path.read_bytes())
            except OSError as error:
                raise _unreadable(path, error) from error
        return {"source": self.name, "files": len(self.units()), "sha256": hasher.hexdigest()}

    def units(self) -> Sequence[str]:
        """Paths of the files, those of tests and hidden ones aside."""
        return [path for path in self._every if not TESTS.search(path)]

    @cached_property
    def _every(self) -> list[str]:
        files = (path for path in self._root.rglob("*.py") if path.is_file())
        paths = (path.relative_to(self._root).as_posix() for path in files)
        return sorted(
            path
            for path in paths
            if not any(part in SKIPPED or part.startswith(".") for part in path.split("/"))
        )

    def read(self, unit: str) -> Iterator[Found | Rejected]:
        path = self._root / unit
        try:
            file = code_of(path, module=self._module(unit))
        except NO_CODE as error:
            yield Rejected(origin=unit, kind=self.name, reason="no Python", detail=str(error))
            return
        if file.definitions.keys() >= LAYOUT:
            yield Found(
                text=file.text if file.text.endswith("\n") else f"{file.text}\n", origin=unit,
                name=path.stem, kind=self.name, level=level_of_path(path), licence=self._licence,
            )  # fmt: skip
        else:
            library = Library(self._root, package=self._package)
            for node in file.classes():
                origin = f"{unit}:{node.name}"
                yield tried(self._problem, library, file, node.name, origin=origin, kind=self.name)

    def closure(self, module: str, name: str) -> Closure:
        """A class with all that it needs of the tree. Raises NotSelfContained."""
        return Closure(Library(self._root, package=self._package), module, name)

    def modules_of(self, module: str, name: str) -> list[str]:
        """Modules that define a class, at or below one of the tree, which may only export it."""
        defines = re.compile(rf"^class {name}\b", re.MULTILINE)
        return [
            found
            for unit in self.units()
            if f"{(found := self._module(unit))}.".startswith(f"{module}.")
            and defines.search((self._root / unit).read_text(encoding="utf-8", errors="replace"))
        ]

    def _module(self, unit: str) -> str:
        parts = unit.removesuffix(".py").removesuffix("/__init__").split("/")
        parts = [] if parts == ["__init__"] else parts
        return ".".join([*([self._package] if self._package else []), *parts])

    def _problem(
        self, library: Library, file: CodeFile, name: str, *, origin: str, kind: str
    ) -> Found:
        closure = Closure(library, file.module, name)
        first, *others = dict.fromkeys(guesses(closure, calls=self._calls))
        return Found(
            text=first, alternatives=tuple(others), origin=origin, name=name, kind=kind,
            level=level_of(ast.parse(first)), licence=self._licence,
        )  # fmt: skip

    @cached_property
    def _calls(self) -> Calls:
        if self._package:  # its tests are not installed, and all of transformers takes 40 s
            return Calls()
        paths = [self._root / path for path in self._every]
        files = (read_code(path, module="") for path in paths)
        return calls_in(file.tree for file in files if file is not None)


def licence_of(root: Path) -> str:
    """The licence that a file of the directory has; empty if none is known. Raises ConfigError for
    one that cannot be read."""
    for path in sorted([*root.glob("LICEN[CS]E*"), *root.glob("COPYING*")]):
        if path.is_file():
            try:
                head = path.read_text(encoding="utf-8", errors="replace")[:2000]
            except OSError as error:
                raise _unreadable(path, error) from error
            return next((name for words, name in LICENCES.items() if words in head), "")
    return ""


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"SOURCE: {path}: cannot be read: {error.strerror or error}")


def open_package(rest: str) -> ModuleTree:
    """The source that `package:REST` names. Raises ConfigError for one that is not installed, or
    that has no directory of Python files."""
    if not re.fullmatch(r"[A-Za-z_]\w*", rest):
        raise ConfigError(f"package:{rest}: expected package:NAME, as Python imports it")
    found = PathFinder.find_spec(rest)
    if found is None:
        raise ConfigError(
            f"package:{rest}: not installed in forge's environment; "
            f"pip install {rest.replace('_', '-')}, or give the directory of its files"
        )
    folders = found.submodule_search_locations
    if not folders:
        raise ConfigError(f"package:{rest}: one file and no package; give the directory of files")
    return ModuleTree(Path(next(iter(folders))), name=rest, package=rest, licence=_licence(rest))


def _licence(name: str) -> str:
    """The licence that the distribution of a package states; empty if it is none of the known."""
    try:
        stated = metadata(next(iter(packages_distributions().get(name, [name]))))
    except PackageNotFoundError:
        return ""
    if expression := stated.get_all("License-Expression"):
        return expression[0]
    licences = [one[:60] for one in stated.get_all("License") or []]
    licences += [one for one in stated.get_all("Classifier") or [] if one.startswith("License")]
    said = " ".join(licences).lower()
    return next((spdx for word, spdx in OF_PACKAGES.items() if re.search(rf"\b{word}\b", said)), "")


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
            yield tried(_of_case, library, file, case, origin=f"{unit}:{number}", kind=KIND)


def _cases(file: CodeFile) -> list[ast.expr]:
    node = file.definitions.get("TESTCASES")
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
        return node.value.elts
    return []


def _of_case(library: Library, file: CodeFile, case: ast.expr, *, origin: str, kind: str) -> Found:
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


KEY = "SOURCE: rows"
OF_ROWS = ("licenses", "licence", "license")
"""Columns with the licences of a row's code."""


class ProblemRows:
    """Files of rows. A unit is a file."""

    def __init__(self, path: Path, *, name: str) -> None:
        """Raises ConfigError for a path without rows."""
        self.name = name
        root = path if path.is_dir() else path.parent
        files = row_files(path, key=KEY)
        self._files = {file.relative_to(root).as_posix(): file for file in files}

    def facts(self) -> dict[str, Any]:
        """A hash of the files. Raises ConfigError for one that cannot be read."""
        hasher = hashlib.sha256()
        for unit, path in self._files.items():
            hasher.update(f"{unit}\0{hash_rows(path, key=KEY)}".encode())
        return {"source": self.name, "files": len(self._files), "sha256": hasher.hexdigest()}

    def units(self) -> Sequence[str]:
        return list(self._files)

    def read(self, unit: str) -> Iterator[Found | Rejected]:
        """The problems of a file. Raises ConfigError for a file that is not whole."""
        for number, row in enumerate(rows_of(self._files[unit], key=KEY), start=1):
            origin = place = f"{unit.rpartition('.')[0]}/{number}"
            try:
                problem = row_problem(row, number=number, name=origin)
            except (BadRow, Unfit) as error:
                detail = str(error)
                yield Rejected(origin=origin, kind=self.name, reason="broken row", detail=detail)
                continue
            if repository := row.get("repo_name"):  # its rows stay on one side of a split
                origin = f"{repository}:{place.replace(':', '-')}"
            yield tried(_of_row, row, problem, origin=origin, kind=problem.family or self.name)


def _of_row(row: Mapping[str, Any], problem: RowProblem, *, origin: str, kind: str) -> Found:
    try:
        file = CodeFile(problem.source, module="row")
    except (SyntaxError, ValueError, MemoryError):
        raise NotSelfContained("no Python") from None
    text, name = problem.source, problem.entry_point
    given, inputs = _returned(file, "get_init_inputs"), _returned(file, "get_inputs")
    if name != "Model" or _pair(given) or "_paritybench_helpers" in text:
        if not isinstance(inputs, ast.List):
            raise NotSelfContained("unknown form of get_inputs")
        made = _pair(given) or (getattr(given, "elts", []), {})
        closure = Closure(Library(None, files={"row": file}), "row", name)
        text = case_text(closure, made=made, called=(inputs.elts, {}))
    licences = next((row[name] for name in OF_ROWS if row.get(name)), "")
    return Found(
        text=text, origin=origin, name=name, kind=kind, level=level_of(ast.parse(text)),
        licence=", ".join(map(str, licences)) if isinstance(licences, list) else str(licences),
    )  # fmt: skip


def _returned(file: CodeFile, function: str) -> ast.expr | None:
    """The expression that a function of one statement returns."""
    match file.definitions.get(function):
        case ast.FunctionDef(body=[ast.Return(value=value)]):
            return value
        case _:
            return None


def _pair(node: ast.expr | None) -> tuple[list[ast.expr], dict[str, ast.expr]] | None:
    """Positional and named arguments of `[[...], {...}]`; None for any other expression. Raises
    NotSelfContained for names that are no constants."""
    match node:
        case ast.List(elts=[ast.List(elts=given), ast.Dict(keys=keys, values=values)]):
            names = [one.value for one in keys if isinstance(one, ast.Constant)]
            if len(names) != len(values):
                raise NotSelfContained("unknown form of get_init_inputs")
            return given, dict(zip(map(str, names), values, strict=True))
        case _:
            return None


def open_rows(rest: str, locate: Callable[[Path], Path]) -> ProblemRows:
    """The source that `rows:REST` names. Raises ConfigError for a path without rows."""
    if not rest:
        raise ConfigError("rows: expected rows:PATH, a file, directory or data set on the hub")
    return ProblemRows(locate(Path(rest)), name=Path(rest).stem)
