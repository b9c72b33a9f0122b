"""`forge kernels export`: the best correct kernel of each problem of a run, as files.

    NAME/kernel.py, problem.py, verdict.json, test_kernel.py, and of a search parent.diff, against
    the answer that it was shown; README.md, NOTICE.md

The texts are templates in `kernels_templates/`. The directory is complete or absent: it is written
beside its place and renamed.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from forge.errors import ConfigError, MachineError
from forge.store.layout import RunPaths
from forge.store.reader import RunReader, open_run
from forge.views.problems import load_kernel

MAX_NAME = 60
LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}")
TOLERANCES = {"fp16": 2e-2, "bf16": 2e-2}
"""rtol and atol of an exported test; of any other precision 0.01. The judge's own bounds are
stricter and by row; a tensor core may round fp32 products to TF32."""
LEFT_OUT = ("group_id", "rollout", "turn", "code_id", "reward")
"""Columns of a turn that mean nothing outside its run."""

_BEST = """
SELECT b.turn_id, p.problem_id, p.entry_point, p.precision,
    (SELECT body FROM texts WHERE text_id = p.source_id) AS source
FROM v_best_kernels b JOIN problems p USING (problem_id) ORDER BY b.rank
"""
_PARENT = "SELECT json_extract(parents, '$[#-1]') FROM groups WHERE group_id = ?"
_COMMIT = "SELECT code_commit FROM attempts ORDER BY attempt DESC LIMIT 1"


def export_kernels(paths: RunPaths, *, out: Path | None, license: str) -> dict[str, Any]:
    """Write the best kernel of each problem; returns the directory, and name, problem and speed-up
    of each kernel. Raises ConfigError: a directory with content, a run
    without correct kernels; MachineError: the directory cannot be written. `out`: directory, absent
    or empty; None for `<run>-kernels` in the working directory. `license`: identifier of a licence,
    as Hugging Face's hub has them.
    """
    if not LICENSE.fullmatch(license):
        raise ConfigError(
            f"--license {license}: an identifier of the hub, such as apache-2.0, mit or other"
        )
    target = empty_directory(out or Path(f"{paths.name}-kernels"))
    with open_run(paths) as reader:
        kernels, origin = load_best(reader), load_origin(reader, license=license)
    _write(kernel_files(kernels, origin), target)
    rows = [
        {
            "name": each.name,
            "problem_id": each.verdict["problem_id"],
            "speedup": each.verdict.get("speedup"),
        }
        for each in kernels
    ]
    return {"path": str(target), "kernels": rows}


def empty_directory(out: Path) -> Path:
    """The directory of `--out`, absolute. Raises ConfigError if it is a file or has content."""
    target = out.expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"--out {target}: is not empty; a new or an empty directory")
    return target


@dataclass(frozen=True, slots=True, kw_only=True)
class BestKernel:
    name: str
    """Unique name: a Python identifier in lower case."""
    problem: str
    """Source of the problem; of one with several shapes, at the first."""
    code: str
    entry_point: str
    precision: str
    verdict: dict[str, Any]
    """Content of verdict.json: problem and run, status, times and device of its judgement, and
    every other time of the same code."""
    parent: tuple[str, str] | None = None
    """Turn and code of the newest answer that its prompt showed (searches)."""

    @property
    def tolerance(self) -> float:
        return TOLERANCES.get(self.precision, 1e-2)


def load_best(reader: RunReader) -> list[BestKernel]:
    """The kernels, best first. Raises ConfigError if the run has none."""
    names: set[str] = set()
    found: list[BestKernel] = []
    for row in reader.rows(_BEST):
        kernel = load_kernel(reader, row["turn_id"])
        if kernel is None:
            continue
        verdict = {k: v for k, v in kernel.turn.items() if k not in LEFT_OUT}
        origin = {"problem_id": row["problem_id"], "run": reader.paths.name}
        found.append(
            BestKernel(
                name=_name(row["problem_id"], names),
                problem=row["source"],
                code=kernel.code,
                entry_point=row["entry_point"],
                precision=row["precision"],
                verdict={**verdict, "times": list(kernel.times), **origin},
                parent=_parent(reader, kernel.turn["group_id"]),
            )
        )
    if not found:
        raise ConfigError(
            f"{reader.paths.name}: found no correct kernel; "
            f'"forge show {reader.paths.name}" shows what its answers were'
        )
    return found


def _parent(reader: RunReader, group_id: int) -> tuple[str, str] | None:
    turn_id = reader.value(_PARENT, (group_id,))
    found = load_kernel(reader, turn_id) if turn_id else None
    return None if found is None else (turn_id, found.code)


def load_origin(reader: RunReader, *, license: str) -> dict[str, str]:
    """Origin of the kernels, for the templates: the run, its model and its problems."""
    experiment = tomllib.loads(reader.value("SELECT experiment FROM runs"))
    model, serve = experiment.get("model", {}), experiment.get("serve", {})
    problems = experiment.get("problems", {})
    parts: list[dict[str, Any]] = problems.get("sources") or [problems]
    sources = {str(each.get("path") or "forge's generator (Apache-2.0)") for each in parts}
    named = serve.get("model_name") or model.get("path")
    return {
        "run": reader.paths.name,
        "model": named or "a random model that this run trained",
        "problems": ", ".join(sorted(sources)),
        "commit": reader.value(_COMMIT) or "",
        "license": license,
    }


def _name(problem_id: str, taken: set[str]) -> str:
    """A new name after the last part of a problem's id; numbered if it is taken."""
    last = re.sub(r"[^a-z0-9]+", "_", problem_id.lower().rpartition("/")[2]).strip("_")
    plain = (last if last[:1].isalpha() else f"k{last}")[:MAX_NAME].rstrip("_")
    name, number = plain, 2
    while name in taken:
        name, number = f"{plain}_{number}", number + 1
    taken.add(name)
    return name


def kernel_files(kernels: Sequence[BestKernel], origin: Mapping[str, str]) -> dict[str, str]:
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("kernels_templates")),
        undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    found = {
        name: templates.get_template(f"{name}.jinja").render(kernels=kernels, origin=origin)
        for name in ("README.md", "NOTICE.md")
    }
    test = templates.get_template("test_kernel.py.jinja")
    for each in kernels:
        found |= {
            f"{each.name}/kernel.py": each.code,
            f"{each.name}/problem.py": each.problem,
            f"{each.name}/verdict.json": json.dumps(each.verdict, indent=1) + "\n",
            f"{each.name}/test_kernel.py": test.render(kernel=each),
        }
        if each.parent is not None:
            before, own = each.parent, each.verdict["turn_id"]
            lines = difflib.unified_diff(
                before[1].splitlines(), each.code.splitlines(), before[0], own, lineterm=""
            )
            found[f"{each.name}/parent.diff"] = "\n".join(lines) + "\n"
    return found


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
