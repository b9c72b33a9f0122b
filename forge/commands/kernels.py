"""`forge kernels export`: the best correct kernel of each problem of a run, as files.

Called by the command line. Reads a run, writes a directory (`kernels_layouts` has its contents),
which is complete or absent: it is written beside its place and renamed. Starts nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.commands.kernels_layouts import check_license, hub_files, plain_files
from forge.errors import ConfigError, MachineError
from forge.store.reader import open_run
from forge.views.kernels import load_kernel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.store.layout import RunPaths
    from forge.store.reader import RunReader

MAX_NAME = 60
LEFT_OUT = ("group_id", "rollout", "turn", "code_id", "reward")
"""Columns of a turn that mean nothing outside its run."""

_BEST = """
SELECT b.turn_id, p.problem_id, p.entry_point, p.precision,
    (SELECT body FROM texts WHERE text_id = p.source_id) AS source
FROM v_best_kernels b JOIN problems p USING (problem_id) ORDER BY b.rank
"""
_COMMIT = "SELECT code_commit FROM attempts ORDER BY attempt DESC LIMIT 1"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BestKernel:
    """A kernel and its problem."""

    name: str
    """Unique name: a Python identifier in lower case."""
    problem_id: str
    problem: str
    """Source of the problem; of one with several shapes, at the first."""
    code: str
    entry_point: str
    """Reference class; the kernel's has `New` after it."""
    precision: str
    verdict: dict[str, Any]
    """Status, times and device of its judgement, and every other time of the same code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of the kernels."""

    run: str
    model: str
    """Model that wrote them: a path or a hub name, or a description."""
    problems: str
    """Source of the problems."""
    commit: str
    license: str
    """Identifier that the user chose."""


def load_best(reader: RunReader) -> list[BestKernel]:
    """The kernels, best first. Raises ConfigError if the run has none."""
    names: set[str] = set()
    found: list[BestKernel] = []
    for row in reader.rows(_BEST):
        kernel = load_kernel(reader, row["turn_id"])
        if kernel is None:
            continue
        verdict = {k: v for k, v in kernel.turn.items() if k not in LEFT_OUT}
        found.append(
            BestKernel(
                name=_name(row["problem_id"], names),
                problem_id=row["problem_id"],
                problem=row["source"],
                code=kernel.code,
                entry_point=row["entry_point"],
                precision=row["precision"],
                verdict={**verdict, "times": list(kernel.times)},
            )
        )
    if not found:
        raise ConfigError(
            f"{reader.paths.name}: found no correct kernel; "
            f'"forge show {reader.paths.name}" shows what its answers were'
        )
    return found


def load_origin(reader: RunReader, *, license: str) -> Origin:
    """The run, its model and its problems, by its experiment."""
    experiment = tomllib.loads(reader.value("SELECT experiment FROM runs"))
    model, serve = experiment.get("model", {}), experiment.get("serve", {})
    named = serve.get("model_name") or model.get("path")
    problems = experiment.get("problems", {})
    parts: list[dict[str, Any]] = problems.get("sources") or [problems]
    sources = {str(each.get("path") or "forge's generator (Apache-2.0)") for each in parts}
    return Origin(
        run=reader.paths.name,
        model=named or "a random model that this run trained",
        problems=", ".join(sorted(sources)),
        commit=reader.value(_COMMIT) or "",
        license=license,
    )


def _name(problem_id: str, taken: set[str]) -> str:
    """A new name after the last part of a problem's id; numbered if it is taken."""
    last = re.sub(r"[^a-z0-9]+", "_", problem_id.lower().rpartition("/")[2]).strip("_")
    plain = (last if last[:1].isalpha() else f"k{last}")[:MAX_NAME].rstrip("_")
    name, number = plain, 2
    while name in taken:
        name, number = f"{plain}_{number}", number + 1
    taken.add(name)
    return name


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
