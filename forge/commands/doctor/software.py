"""The system, Python, the C compiler and the packages of this interpreter.

A package counts if it imports: the metadata of an installation says nothing about its libraries.
"""

from __future__ import annotations

import platform
import shutil
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge.commands.doctor.finding import Finding, error, warning
from forge.commands.doctor.probe import run_probe
from forge.errors import pip_install
from forge.exits import EXTRAS
from forge.serve.engines import PYTHON_AT_LEAST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

PACKAGES = {
    "torch": "torch",
    "triton": "triton.compiler",
    "transformers": "transformers:AutoModelForCausalLM",
    "peft": "peft:LoraConfig",
    "datasets": "datasets:Dataset",
    "trl": "trl.trainer.grpo_trainer:GRPOTrainer",
}
"""Packages of judges and trainers, and the part of each that these import."""
NEEDS = {
    "torch": ">=2.9",
    "triton": ">=3.5",
    "transformers": ">=5",
    "trl": ">=1.16,<1.17",
    "peft": ">=0.18",
    "datasets": ">=4",
}
"""forge's requirements, as in pyproject.toml."""
IMPORT_S = 120.0
"""Maximum time for the imports of a child: a cold network disk takes a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Result of importing a package."""

    version: str = ""
    fault: str = ""
    """The error; empty if it imported."""
    is_missing: bool = False
    """True if there is no such package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """The build of an imported torch."""

    version: str
    cuda: str | None
    """Version of CUDA that it is built for; None for another build."""
    hip: str | None
    """Version of ROCm's HIP; None for another build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """Results of importing packages in an interpreter."""

    packages: Mapping[str, Imported] = field(default_factory=dict[str, Imported])
    torch: TorchBuild | None = None
    unmet: Sequence[str] = ()
    """Requirements that the installed versions do not meet."""


async def import_packages(
    targets: Mapping[str, str],
    *,
    folder: Path,
    label: str,
    needs: Mapping[str, str],
    python: str = "",
    gpus: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
) -> Imports:
    """Import targets in one child; after a crash the rest in a new one.

    Args:
        targets: part to import by package.
        needs: required versions by package, checked against what is installed.
        python, gpus, extra: as of `run_probe`.
    """
    found = dict[str, Imported]()
    torch: TorchBuild | None = None
    unmet: Sequence[str] = ()
    rest = list(targets.items())
    while rest:
        outcome = await run_probe(
            "imports", label=f"{label}-{len(rest)}", folder=folder, deadline_s=IMPORT_S,
            config={"targets": rest, "needs": needs}, python=python, gpus=gpus, extra=extra,
        )  # fmt: skip
        found |= dict(_read(answer) for answer in outcome.answers if "name" in answer)
        if build := outcome.get("torch"):
            torch = TorchBuild(**build)
        unmet = outcome.get("unmet") or unmet
        if not outcome.fault:
            break
        # The child ended during an import, or before the first.
        crashed = outcome.get("importing") or rest[0][0]
        found.setdefault(crashed, Imported(fault=outcome.fault))
        rest = [(name, target) for name, target in rest if name not in found]
        if outcome.is_late:
            found |= {name: Imported(fault=f"not tried: {crashed} hangs") for name, _ in rest}
            break
    return Imports(packages=found, torch=torch, unmet=unmet)


def _read(answer: Mapping[str, Any]) -> tuple[str, Imported]:
    return answer["name"], Imported(
        version=answer.get("version", ""),
        fault=answer.get("failed", ""),
        is_missing=answer.get("is_missing", False),
    )


def check_system(*, has_gpus: bool) -> Iterator[Finding]:
    """System, Python and C compiler of this process."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    if sys.platform == "linux":
        yield Finding(name="system", found=system)
    else:
        yield error("system", system, fix="runs need Linux; reading commands work here")
    version, least = platform.python_version(), "{}.{}".format(*PYTHON_AT_LEAST)
    if sys.version_info >= PYTHON_AT_LEAST:
        yield Finding(name="python", found=version)
    else:
        yield error("python", version, fix=f"Python {least} or later")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    yield check_compiler(compiler, has_gpus=has_gpus)


def check_compiler(compiler: str | None, *, has_gpus: bool) -> Finding:
    """Triton compiles its launchers with it on GPUs."""
    if compiler is not None:
        return Finding(name="C compiler", found=compiler)
    fix = "apt install gcc; Triton compiles its launchers with it on GPUs"
    return (error if has_gpus else warning)("C compiler", "none", fix=fix)


def check_packages(imports: Imports) -> Iterator[Finding]:
    """A finding per package of judges and trainers, and one for versions that do not fit."""
    for name in PACKAGES:
        one = imports.packages.get(name) or Imported(fault="not tried")
        if one.is_missing:
            extra = "judge" if name in EXTRAS["judge"] else "train"
            yield error(name, "not installed", fix=f'{pip_install(extra)}, or "make setup"')
        elif one.fault:
            fix = f'"make setup", or pip install --force-reinstall "{name}{NEEDS[name]}"'
            yield error(name, f"does not import: {one.fault}", fix=fix)
        else:
            yield Finding(name=name, found=one.version)
    if imports.unmet:
        fix = '"make setup" installs versions that fit'
        yield warning("versions", "; ".join(imports.unmet), fix=fix)
