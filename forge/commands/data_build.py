"""`forge data build`: from the settings to the files and the manifest.

    inputs ─chunks─▶ workers ─shards─▶ choice ─▶ judge ─▶ choice ─▶ train.*, heldout.*, manifest

Joins the pure steps of `forge/data/build/` with processes (`data_worker`) and with the judge.
Everything up to the choice, and every verdict, is on disk in `.build/`: a build that was killed
continues with the next chunk, judges no answer twice, and writes the same bytes as one that was
not.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import xxhash

from forge.commands.counter import open_counter
from forge.commands.data_worker import RowWork, load_chat, prepare
from forge.data.build.choice import Choice, HeldoutProblems
from forge.data.build.output import (
    HELDOUT,
    MANIFEST,
    TRAIN,
    describe_steps,
    dropped_lines,
    explained,
    hash_file,
    open_sinks,
    origin_of,
    output_row,
    settings_json,
)
from forge.data.build.rows import find_row_files, plan_chunks
from forge.data.build.shards import write_whole
from forge.data.build.steps import Step
from forge.data.pairs.rows import DROPPED
from forge.errors import ConfigError, MachineError
from forge.evalpool.pool import open_private_pool
from forge.process.devices import inventory
from forge.records import Problem, Split, Status
from forge.runner.prepare.hub import TOKENIZER_FILES, locate_build
from forge.runner.prepare.prompt_facts import prompts_for
from forge.version import __version__

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

    from forge.config.schema import JudgeTable
    from forge.config.schema.build import DataBuild
    from forge.data.build.rows import RowFile
    from forge.data.prompts.prompt_set import PromptSet
    from forge.evalpool.pool import Pool
    from forge.process.devices import Gpu

WORK = ".build"
OUTPUTS = (f"{TRAIN}.*", f"{HELDOUT}.*", ".*.partial", DROPPED)
"""Files of a build; another one that was not finished leaves some of them."""
PACKAGES = ("numpy", "pyarrow", "tokenizers", "xxhash", "jinja2")
"""Packages whose version may change the bytes."""
MAX_EXPLAINED = 5
"""Rows that the error of a build without a row explains."""
IN_FLIGHT = 32
"""Answers at the judges or in their queue; their texts are in memory."""


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
    folder, build = build.output.dir, locate_build(build)
    load_chat(build)
    heldout = HeldoutProblems(build.heldout.paths, threshold=build.duplicates.similarity)
    files = find_row_files(build.input.path)
    prompts = prompts_for(build.prompt, build.judge, inventory())
    facts = facts_of(build, files, heldout, prompts)
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    if (done := find_finished(folder, key)) is not None:
        return Built(folder=folder, manifest=done)
    with work_folder(folder, key) as work:
        rows = RowWork(build=build, files=files, prompts=prompts, folder=work)
        prepare(rows, workers=workers, is_shown=is_shown)
        manifest = _choose_and_write(rows, heldout, is_shown=is_shown)
        manifest = {"key": key, **facts, **manifest}
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        write_whole(folder / MANIFEST, text.encode())
        shutil.rmtree(work)
    return Built(folder=folder, manifest=manifest)


def _choose_and_write(work: RowWork, heldout: HeldoutProblems, *, is_shown: bool) -> dict[str, Any]:
    build, files, shards = work.build, work.files, work.shards
    numbers = [chunk.number for chunk in plan_chunks(files)]
    facts = [shards.facts(number) for number in numbers]
    choice = Choice(shards=facts)
    choice.drop_exact()
    choice.drop_contaminated(heldout)
    verdicts: dict[int, dict[str, str]] = {}
    if build.filters.judged:
        kept = frozenset(choice.kept)
        rows = (row for n in numbers for row in shards.rows(n) if row["number"] in kept)
        log = VerdictLog(work.folder / "verdicts.jsonl")
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
    steps = describe_steps(dropped, files=files, num_rows=num_rows, off=_off(build))
    lines = "".join(dropped_lines(dropped, files))
    write_whole(build.output.dir / DROPPED, lines.encode())
    if not choice.kept:
        counts = (f"{num} {why}" for step in steps for why, num in step["reasons"].items())
        said = "; ".join([", ".join(counts) or "none read", *explained(steps)[:MAX_EXPLAINED]])
        where = build.output.dir / DROPPED
        raise ConfigError(f"input.path: {build.input.path}: no row is left; {said} ({where})")
    written = _write(work, choice, verdicts, numbers)
    names = [f"{name}.{form}" for name in written["rows"] for form in build.output.formats]
    outputs = {name: hash_file(build.output.dir / name) for name in (*names, DROPPED)}
    return {
        "steps": steps,
        **_judged(verdicts),
        **written,
        "outputs": outputs,
    }


def _write(
    work: RowWork, choice: Choice, verdicts: Mapping[int, Mapping[str, str]], numbers: list[int]
) -> dict[str, Any]:
    """Writes the rows; returns their numbers and lengths."""
    build, shards = work.build, work.shards
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
            origin = origin_of(number, work.files)
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


def facts_of(
    build: DataBuild, files: list[RowFile], heldout: HeldoutProblems, prompts: PromptSet
) -> dict[str, Any]:
    """Everything that decides the rows."""
    tokenizer = build.tokenizer.path
    settings = settings_json(build)
    settings["input"].pop("strict")
    return {
        "forge": __version__,
        "code": hash_code(),
        "versions": {name: version(name) for name in PACKAGES},
        "settings": settings,
        "prompts": prompts.hash,
        "inputs": [file.to_json() for file in files],
        "tokenizer": hash_tokenizer(tokenizer),
        "heldout": {
            "problems": len(heldout.sources),
            "sha256": hashlib.sha256(json.dumps(heldout.sources).encode()).hexdigest(),
        },
    }


def hash_tokenizer(folder: Path | None) -> dict[str, str]:
    """Hashes of a tokenizer's files."""
    files = [] if folder is None else [folder / name for name in TOKENIZER_FILES]
    return {path.name: hash_file(path) for path in files if path.is_file()}


def hash_code() -> str:
    """Hash of the code that makes rows, with its tables and templates."""
    root = Path(__file__).parents[1] / "data"
    kinds = (".py", ".jinja", ".toml", ".txt")
    paths = sorted(path for path in root.rglob("*") if path.suffix in kinds)
    hasher = hashlib.sha256()
    for path in paths:
        hasher.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return hasher.hexdigest()


def find_finished(folder: Path, key: str, *, name: str = "output.dir") -> Mapping[str, Any] | None:
    """The manifest of the same build if it is done and its files are unchanged.

    Raises:
        ConfigError: the directory has another build, or files of somebody else.
    """
    path = folder / MANIFEST
    if path.is_file():
        try:
            found: dict[str, Any] = json.loads(path.read_text())
        except ValueError:
            found = dict[str, Any]()
        if found.get("key") != key:
            raise ConfigError(
                f"{name}: {folder}: holds a build of other settings, inputs or code; name "
                "another directory, or delete this one"
            )
        outputs: dict[str, str] = found["outputs"]
        if all((folder / n).is_file() and hash_file(folder / n) == h for n, h in outputs.items()):
            return found
        path.unlink()
    elif not (folder / WORK).is_dir() and folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"{name}: {folder}: is not empty, and no build made what is in it; name another"
        )
    return None


@contextmanager
def work_folder(
    folder: Path, key: str, *, name: str = "output.dir", outputs: Sequence[str] = OUTPUTS
) -> Generator[Path]:
    """The folder of a build under way, for one process; shards and outputs of another key are
    deleted."""
    work = folder / WORK
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    except (NotADirectoryError, FileExistsError):
        raise ConfigError(f"{name}: {folder}: found a file; a directory") from None
    except OSError as error:
        raise MachineError(f"{name}: {work}: cannot be made: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{name}: {folder}: another build is writing to it") from None
        mark = work / "key"
        if not mark.is_file() or mark.read_text() != key:
            shutil.rmtree(work)
            for old in (path for pattern in outputs for path in folder.glob(pattern)):
                old.unlink()
            work.mkdir()
            write_whole(mark, key.encode())
        for old in work.glob("worker-*.error"):
            old.unlink()
        yield work
    finally:
        os.close(lock)


class VerdictLog:
    """Status, reason and circumstances by the hash of a module and an answer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, dict[str, str]] = {}
        text = path.read_text() if path.is_file() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # a line that was cut by a kill
            path.write_text(whole)
        for line in whole.splitlines():
            entry = json.loads(line)
            self._known[entry.pop("key")] = entry

    def get(self, key: str) -> dict[str, str] | None:
        """The verdict of a key."""
        return self._known.get(key)

    def add(self, key: str, entry: dict[str, str]) -> None:
        """Keeps a verdict."""
        self._known[key] = entry
        with self._path.open("a") as file:
            file.write(json.dumps({"key": key, **entry}) + "\n")


def judge_rows(
    rows: Iterable[Mapping[str, Any]],
    table: JudgeTable,
    *,
    total: int,
    log: VerdictLog,
    is_shown: bool,
) -> dict[int, dict[str, str]]:
    """Verdicts by the rows' numbers.

    Raises:
        MachineError: no sandbox works on this machine.
    """
    gpus = () if table.url else inventory()
    return anyio.run(partial(_judge_all, iter(rows), table, gpus, total, log, is_shown))


async def _judge_all(
    rows: Iterator[Mapping[str, Any]],
    table: JudgeTable,
    gpus: Sequence[Gpu],
    total: int,
    log: VerdictLog,
    is_shown: bool,
) -> dict[int, dict[str, str]]:
    verdicts: dict[int, dict[str, str]] = {}
    async with (
        open_counter("judged", total=total, is_shown=is_shown) as advance,
        open_private_pool(table, gpus=gpus) as pool,
        anyio.create_task_group() as tasks,
    ):

        async def judge_next() -> None:
            for row in rows:
                entry = await _judge_one(row, pool, log)
                verdicts[row["number"]] = entry
                advance(entry["status"])

        for _ in range(IN_FLIGHT):
            tasks.start_soon(judge_next)
    return verdicts


async def _judge_one(row: Mapping[str, Any], pool: Pool, log: VerdictLog) -> dict[str, str]:
    key = xxhash.xxh3_128_hexdigest(
        json.dumps([row["source"], row["entry_point"], row["code"]]).encode()
    )
    found = log.get(key)
    if found is not None:
        return found
    problem = Problem(
        problem_id=row["id"],
        source=row["source"],
        family="build",
        level=1,
        split=Split.SFT,
        entry_point=row["entry_point"],
    )
    verdict = await pool.judge(problem, row["code"], timing=False)
    entry = {
        "status": str(verdict.status), "reason": verdict.reason, "device": verdict.device,
        "harness": verdict.harness,
    }  # fmt: skip
    if verdict.status is not Status.INFRA_ERROR:  # a machine's fault is judged again
        log.add(key, entry)
    return entry
