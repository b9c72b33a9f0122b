"""Writes the best kernels of a run in one of two layouts.

    files         NAME/kernel.py, problem.py, verdict.json, test_kernel.py; README.md, NOTICE.md
    kernels-hub   a project for Hugging Face's kernel-builder, and its build (`hub`)

A directory is complete or absent: it is written beside its place and renamed.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.commands.kernels.best import load_best, load_origin
from forge.commands.kernels.hub import check_license, hub_files
from forge.commands.kernels.texts import notice, speed_of, test_of
from forge.errors import ConfigError, MachineError
from forge.store.reader import open_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.commands.kernels.best import BestKernel, Origin
    from forge.store.layout import RunPaths


class KernelLayout(StrEnum):
    """Layout of exported kernels."""

    FILES = "files"
    """A directory for each kernel."""
    HUB = "kernels-hub"
    """One project for the kernel hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedKernels:
    """A written directory."""

    path: Path
    kernels: Sequence[BestKernel]

    def to_json(self) -> dict[str, Any]:
        """The directory, and name, problem and speed-up of each kernel."""
        rows = [
            {
                "name": each.name,
                "problem_id": each.problem_id,
                "speedup": each.verdict.get("speedup"),
            }
            for each in self.kernels
        ]
        return {"path": str(self.path), "kernels": rows}


def export_kernels(
    paths: RunPaths, *, layout: str, out: Path | None, license: str
) -> ExportedKernels:
    """Write the best kernel of each problem.

    Args:
        out: directory, absent or empty; None for `<run>-kernels` in the working directory.
        license: identifier of a licence, as Hugging Face's hub has them.

    Raises:
        ConfigError: another layout, a directory with content, a run without correct kernels.
        MachineError: the directory cannot be written.
    """
    if layout not in tuple(KernelLayout):
        raise ConfigError(f"--layout {layout}: one of {', '.join(KernelLayout)}")
    check_license(license)
    target = (out or Path(f"{paths.name}-kernels")).expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"--out {target}: is not empty; a new or an empty directory")
    with open_run(paths) as reader:
        kernels, origin = load_best(reader), load_origin(reader, license=license)
    is_hub = layout == KernelLayout.HUB
    files = hub_files(kernels, origin) if is_hub else plain_files(kernels, origin)
    _write(files, target)
    return ExportedKernels(path=target, kernels=kernels)


def plain_files(kernels: Sequence[BestKernel], origin: Origin) -> dict[str, str]:
    """Contents of the layout `files` by path."""
    files = {"README.md": _readme(kernels, origin), "NOTICE.md": notice(origin)}
    for kernel in kernels:
        folder = kernel.name
        verdict = {**kernel.verdict, "problem_id": kernel.problem_id, "run": origin.run}
        files |= {
            f"{folder}/kernel.py": kernel.code,
            f"{folder}/problem.py": kernel.problem,
            f"{folder}/verdict.json": json.dumps(verdict, indent=1) + "\n",
            f"{folder}/test_kernel.py": test_of(kernel, file="test_kernel.py"),
        }
    return files


def _readme(kernels: Sequence[BestKernel], origin: Origin) -> str:
    rows = "".join(
        f"| `{each.name}` | {each.problem_id} | {speed_of(each)} |\n" for each in kernels
    )
    return (
        f"# Kernels of {origin.run}\n\nThe best correct kernel of each problem, best first. "
        "`pytest NAME` tests one. NOTICE.md is about licences.\n\n"
        f"| kernel | problem | speed-up |\n|---|---|---|\n{rows}"
    )


def _write(files: Mapping[str, str], target: Path) -> None:
    spare = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        for name, content in files.items():
            path = spare / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8", errors="replace")
        if target.is_dir():
            target.rmdir()
        spare.replace(target)
    except OSError as error:
        shutil.rmtree(spare, ignore_errors=True)
        raise MachineError(f"{target}: cannot be written: {error.strerror}") from error
