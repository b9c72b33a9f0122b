"""Problems of any tree of Python files with modules, of a package that is installed here
(`package:NAME`), and of problem files in KernelBench's layout. Nothing is imported.

A file that defines `Model`, `get_inputs` and `get_init_inputs` is a problem as it is. Of any other,
each class with a `forward` is tried with arguments that its tests, defaults and names suggest.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, metadata, packages_distributions
from pathlib import Path
from typing import Any

from forge.data.harvest.arguments import level_of, tried
from forge.data.harvest.closure import Closure, CodeFile, Library, read_code
from forge.data.harvest.guesses import Calls, calls_in, guesses
from forge.data.harvest.records import Found, Rejected
from forge.data.problem_files import level_of as level_of_path
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
        file = read_code(path, module=self._module(unit), is_package=path.name == "__init__.py")
        if file is None:
            yield Rejected(origin=unit, kind=self.name, reason="no Python")
        elif file.definitions.keys() >= LAYOUT:
            yield Found(
                text=file.text if file.text.endswith("\n") else f"{file.text}\n", origin=unit,
                name=path.stem, kind=self.name, level=level_of_path(path), licence=self._licence,
            )  # fmt: skip
        else:
            yield from self._classes(unit, file)

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

    def _classes(self, unit: str, file: CodeFile) -> Iterator[Found | Rejected]:
        library = Library(self._root, package=self._package)
        for node in file.classes():
            origin = f"{unit}:{node.name}"
            yield tried(self._problem, library, file, node.name, origin=origin, kind=self.name)

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
