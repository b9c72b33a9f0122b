"""`forge data build`: from the settings to the files and the manifest.

    inputs ─chunks─▶ workers ─shards─▶ choice ─▶ judge ─▶ choice ─▶ train.*, heldout.*, manifest

Everything up to the choice is on disk in `.build/`: a build that was killed continues with the next
chunk, and writes the same bytes as one that was not.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.commands.data.folder import facts_of, find_finished, work_folder
from forge.commands.data.judging import VerdictLog, judge_rows
from forge.commands.data.preparing import prepare
from forge.commands.data.worker import load_chat
from forge.data.build.choice import Choice
from forge.data.build.heldout import HeldoutProblems
from forge.data.build.output import (
    DROPPED,
    HELDOUT,
    MANIFEST,
    TRAIN,
    broken_rows,
    describe_steps,
    dropped_lines,
    hash_file,
    open_sinks,
    origin_of,
    output_row,
)
from forge.data.build.rows import find_row_files, plan_chunks
from forge.data.build.shards import ShardFolder, write_whole
from forge.data.build.steps import Dropped, Step
from forge.errors import ConfigError
from forge.process.devices import inventory
from forge.records import Status
from forge.runner.prepare.prompt_facts import prompts_for

if TYPE_CHECKING:
    from forge.config.schema.build import DataBuild
    from forge.data.build.rows import RowFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The result of a build."""

    folder: Path
    manifest: Mapping[str, Any]

    def describe(self) -> str:
        """The files in one line."""
        rows = ", ".join(f"{count} {name}" for name, count in self.manifest["rows"].items())
        return f"{rows} rows in {self.folder}; {MANIFEST} has the settings, hashes and reasons"


def build_rows(build: DataBuild, *, workers: int | None = None, is_shown: bool = True) -> Built:
    """Builds the rows, or continues a build, or finds it done.

    Raises:
        ConfigError: an input, tokenizer or held-out problem that cannot be used, an output
            directory with something else in it, or no row left.
        MachineError: the output cannot be written.
    """
    folder = build.output.dir
    load_chat(build)
    heldout = HeldoutProblems(build.heldout.paths, threshold=build.duplicates.similarity)
    files = find_row_files(build.input.path)
    prompts = prompts_for(build.prompt, build.judge, inventory())
    facts = facts_of(build, files, heldout, prompts)
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    if (done := find_finished(folder, key)) is not None:
        return Built(folder=folder, manifest=done)
    with work_folder(folder, key) as work:
        prepare(build, files, prompts, folder=work, workers=workers, is_shown=is_shown)
        manifest = _choose_and_write(build, files, heldout, work=work, is_shown=is_shown)
        manifest = {"key": key, **facts, **manifest}
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        write_whole(folder / MANIFEST, text.encode())
        shutil.rmtree(work)
    return Built(folder=folder, manifest=manifest)


def _choose_and_write(
    build: DataBuild,
    files: list[RowFile],
    heldout: HeldoutProblems,
    *,
    work: Path,
    is_shown: bool,
) -> dict[str, Any]:
    shards = ShardFolder(path=work)
    numbers = [chunk.number for chunk in plan_chunks(files)]
    facts = [shards.facts(number) for number in numbers]
    choice = Choice(shards=facts)
    choice.drop_exact()
    choice.drop_contaminated(heldout)
    verdicts: dict[int, dict[str, str]] = {}
    if build.filters.judged:
        kept = frozenset(choice.kept)
        rows = (row for n in numbers for row in shards.rows(n) if row["number"] in kept)
        log = VerdictLog(work / "verdicts.jsonl")
        verdicts = judge_rows(rows, build.judge, total=len(kept), log=log, is_shown=is_shown)
        choice.drop_judged(
            {
                number: f"{verdict['status']}: {verdict['reason']}"
                for number, verdict in verdicts.items()
                if verdict["status"] != Status.CORRECT
            }
        )
    choice.drop_near_and_split(build.duplicates, build.split)
    dropped = [*(each for shard in facts for each in shard.dropped), *choice.dropped]
    num_rows = sum(file.num_rows for file in files)
    steps = describe_steps(dropped, num_rows=num_rows, off=_off(build))
    if not choice.kept:
        raise ConfigError(f"input.path: {build.input.path}: no row is left; {_reasons(dropped)}")
    written = _write(build, files, choice, verdicts, shards=shards, numbers=numbers)
    lines = "".join(dropped_lines(dropped, files))
    write_whole(build.output.dir / DROPPED, lines.encode())
    names = [f"{name}.{form}" for name in written["rows"] for form in build.output.formats]
    outputs = {name: hash_file(build.output.dir / name) for name in (*names, DROPPED)}
    return {
        "steps": steps,
        "broken": broken_rows(dropped, files),
        **_judged(verdicts),
        **written,
        "outputs": outputs,
    }


def _write(
    build: DataBuild,
    files: list[RowFile],
    choice: Choice,
    verdicts: Mapping[int, Mapping[str, str]],
    *,
    shards: ShardFolder,
    numbers: list[int],
) -> dict[str, Any]:
    """Writes the rows; returns their numbers and lengths."""
    kept, apart = frozenset(choice.kept), choice.heldout
    names = (TRAIN, HELDOUT) if build.split.heldout_share else (TRAIN,)
    counts = dict.fromkeys(names, 0)
    lengths: list[int] = []
    with open_sinks(build.output.dir, build.output.formats, names) as sinks:
        for row in (row for number in numbers for row in shards.rows(number)):
            number: int = row["number"]
            if number not in kept:
                continue
            name = HELDOUT if number in apart else TRAIN
            verdict = verdicts[number]["status"] if number in verdicts else None
            origin = origin_of(number, files)
            sinks.write(name, output_row(row, origin=origin, verdict=verdict))
            counts[name] += 1
            if row["num_tokens"] is not None:
                lengths.append(row["num_tokens"])
    lengths.sort()
    tokens = {"total": sum(lengths)}
    if lengths:
        tokens |= {"min": lengths[0], "median": lengths[len(lengths) // 2], "max": lengths[-1]}
    return {"rows": counts, "tokens": tokens}


def _off(build: DataBuild) -> dict[Step, str]:
    """The steps that this build does not apply, and why."""
    off: dict[Step, str] = {}
    if build.input.format != "kernelbook":
        off[Step.REWRITE] = f'no Inductor code in format "{build.input.format}"'
    elif not build.input.rewrite:
        off[Step.REWRITE] = "input.rewrite = false"
    filters = build.filters
    switches = (
        (Step.LENGTH, filters.length, "filters.length = false"),
        (Step.QUALITY, filters.quality, "filters.quality = false"),
        (Step.CONTAMINATION, bool(build.heldout.paths), "no heldout.paths"),
        (Step.JUDGED, filters.judged, "filters.judged = false"),
        (Step.NEAR, build.duplicates.near, "duplicates.near = false"),
    )
    return off | {step: key for step, is_on, key in switches if not is_on}


def _judged(verdicts: Mapping[int, Mapping[str, str]]) -> dict[str, Any]:
    """Verdicts by status and reason, and what gave them."""
    if not verdicts:
        return {}
    counts = Counter(f"{each['status']}: {each['reason']}" for each in verdicts.values())
    return {
        "verdicts": dict(sorted(counts.items())),
        "judges": {
            name: sorted({each[name] for each in verdicts.values()})
            for name in ("device", "harness")
        },
    }


def _reasons(dropped: list[Dropped]) -> str:
    """The counts by reason, the largest first."""
    counts = Counter(each.reason for each in dropped)
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common(5)) or "none read"
