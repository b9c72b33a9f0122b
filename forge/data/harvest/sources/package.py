"""The source `package:NAME` of a harvest: the modules of a package that is installed here.

Its files are read where they lie; nothing is imported.
"""

from __future__ import annotations

import re
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, metadata, packages_distributions
from pathlib import Path

from forge.data.harvest.sources.modules import ModuleTree
from forge.errors import ConfigError

LICENCES = {"apache": "Apache-2.0", "mit": "MIT", "bsd": "LicenseRef-BSD"}
"""SPDX names by a word of what a package states; which of the BSD licences, it does not say."""


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
    return next((spdx for word, spdx in LICENCES.items() if re.search(rf"\b{word}\b", said)), "")
