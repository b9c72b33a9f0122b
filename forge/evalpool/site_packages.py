# pyright: strict
"""Distributions of this interpreter that references may import: `judge.site_packages`.

The sandbox shows their files to references alone, commands and plans refuse a name that is not
installed, and a judge's message for a failed import says what to list. Imports none of them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata

from forge.errors import ConfigError

OPTION = "--site-packages"
KEY = "judge.site_packages"
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(\w{1,100})'")
_UNREADABLE = re.compile(r"PermissionError: \[Errno 13\] Permission denied: '[^']*\b__init__\.py'")
"""At the isolation `landlock` a package that is not shown can be found, and not read."""
_HUB = re.compile(r"huggingface\.co|LocalEntryNotFoundError|OfflineModeIsEnabled")
_OUTSIDE = frozenset({"..", "__pycache__", "/"})


def require_installed(names: Iterable[str], *, key: str = KEY) -> None:
    """Raises ConfigError, one line (which begins with `key`) for each name that cannot be shown:
    not installed in this interpreter, or without files in its site-packages."""
    faults = [f"{key}: {fault}" for name in names if (fault := _fault(name))]
    if faults:
        raise ConfigError("\n".join(faults))


def with_needs(names: Iterable[str]) -> list[str]:
    """The installed ones among distributions and, recursively, the distributions that they
    require, by their normalized names. Extras are left out."""
    found: list[str] = []
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        key = normalized(name)
        if key in found:
            continue
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.append(key)
        needs = [re.match(r"[A-Za-z0-9._-]+", line) for line in requires if "extra ==" not in line]
        waiting += [match.group() for match in needs if match is not None]
    return sorted(found)


def importable_paths(names: Iterable[str]) -> list[str]:
    """Packages, modules and records of installed distributions: entries of site-packages."""
    paths = {path for name in names for path in _paths(metadata.distribution(name))}
    return sorted(paths)


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """Versions of distributions and all that they require, by name."""
    return {name: metadata.version(name) for name in with_needs(names)}


def normalized(name: str) -> str:
    """The name as package indexes compare it: `Foo_Bar` and `foo-bar` are one distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def with_advice(text: str) -> str:
    """The text of a reference's failure, and what to do if an import or a model hub is missing."""
    advice = _advice(text)
    return f"{text}; {advice}" if advice else text


def _advice(text: str) -> str:
    if (match := _MISSING.search(text)) and match[1] not in sys.stdlib_module_names:
        owners = sorted(set(metadata.packages_distributions().get(match[1], ())))
        if not owners:
            return (
                f"{match[1]} is not installed in {sys.executable}: install it there and list its "
                f"distribution in {KEY} ({OPTION})"
            )
        return (
            f"{match[1]} is installed, but references see only what {KEY} lists: add "
            f'"{owners[0]}" ({OPTION} {owners[0]})'
        )
    if _UNREADABLE.search(text):
        return f"list the distribution of the package that it imports in {KEY} ({OPTION})"
    if _HUB.search(text):
        return (
            "references reach no model hub: they get the config.json of a model that the Hugging "
            "Face cache of this machine has, and random weights. Download it: hf download MODEL "
            "config.json"
        )
    return ""


def _fault(name: str) -> str:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return f"{name} is not installed in {sys.executable}; allowed: distributions that pip lists"
    if any(not path.endswith((".dist-info", ".egg-info")) for path in _paths(found)):
        return ""
    if not found.requires:
        return (
            f"{name} has no files in site-packages of {sys.executable} (an editable install?); "
            "install it as a wheel"
        )
    return ""


def _paths(found: metadata.Distribution) -> Sequence[str]:
    tops = {file.parts[0] for file in found.files or () if file.parts[0] not in _OUTSIDE}
    paths = [str(found.locate_file(top)) for top in tops if not top.endswith(".pth")]
    suffixes = (".py", ".so")
    return [p for p in paths if os.path.isdir(p) or (p.endswith(suffixes) and os.path.exists(p))]
