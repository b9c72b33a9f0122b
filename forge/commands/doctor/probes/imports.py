# pyright: strict
"""`python -m forge.commands.doctor.probes.imports CONFIG.json`: imports packages, one by one.

Runs in the interpreter that will use them. Packages such as transformers load their parts on first
use, so a target may name a part: `trl.trainer.grpo_trainer:GRPOTrainer`.
"""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from importlib import metadata
from typing import TYPE_CHECKING, Any

from forge.commands.doctor.probes.answer import AnswerFile, describe, run_probe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def import_all(config: Mapping[str, Any], answer: AnswerFile) -> None:
    """Import each target; then report torch's build and versions that do not fit together."""
    for name, target in config["targets"]:
        answer.begin(f"importing {name}", importing=name)
        try:
            answer.say(name=name, version=import_target(name, target))
        except BaseException as error:  # a SystemExit or a Rust panic is a failed import too
            traceback.print_exc()
            is_missing = isinstance(error, ModuleNotFoundError) and error.name == name
            answer.say(name=name, failed=describe(error), is_missing=is_missing)
    answer.begin("reading versions")
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "version"):
        build = {"cuda": torch.version.cuda, "hip": torch.version.hip}
        answer.say(torch={"version": str(torch.__version__), **build})
    answer.say(unmet=sorted(find_unmet(config["needs"])))


def import_target(name: str, target: str) -> str:
    """Import `module` or `module:attribute`. Returns the version of `name`, "?" if it has none."""
    module, _, attribute = target.partition(":")
    imported = importlib.import_module(module)
    if attribute:
        getattr(imported, attribute)
    version = getattr(importlib.import_module(name), "__version__", None)
    return str(version or _version(name) or "?")


def find_unmet(needs: Mapping[str, str]) -> Iterator[str]:
    """Requirements among packages that the installed versions do not meet, for people.

    Args:
        needs: forge's own requirements, as {"torch": ">=2.9"}; also the packages to look at.
    """
    try:  # not ours: transformers and vLLM bring it
        requirement: Any = importlib.import_module("packaging.requirements").Requirement
    except ImportError:
        return
    lines = [("forge", f"{name}{versions}") for name, versions in needs.items()]
    for package in needs:
        lines += [(package, line) for line in _requires(package)]
    for package, line in lines:
        required = requirement(line)
        found = _version(required.name) if _canonical(required.name) in needs else None
        applies = required.marker is None or required.marker.evaluate({"extra": ""})
        if found and applies and not required.specifier.contains(found, prereleases=True):
            owner = " ".join(filter(None, (package, _version(package))))
            yield f"{owner} needs {required.name}{required.specifier}, found {found}"


def _requires(package: str) -> list[str]:
    try:
        return metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return []


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    run_probe(import_all)
