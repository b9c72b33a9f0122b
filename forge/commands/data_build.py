"""`forge data build`: from the settings to the files and the manifest.

    rows ─▶ steps of a row ─▶ choice ─▶ judge ─▶ choice ─▶ train.*, heldout.*, manifest
                  └─ texts ─▶ .build/rows.gz ─────┴──────────────┘

One process, row by row; texts wait on disk. Each verdict is on disk before it counts: a build that
was killed reads the rows again, judges no answer twice, and writes the same bytes as one that was
not.
"""

from __future__ import annotations

import gc
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import xxhash

from forge.commands.counter import open_counter
from forge.commands.data_folder import OutputFolder, common_facts
from forge.config.schema.build import DataBuild
from forge.data.build.choice import Choice, HeldoutProblems
from forge.data.build.output import (
    HELDOUT,
    INPUT,
    MANIFEST,
    TRAIN,
    LeftOutRow,
    ResultLog,
    RowFile,
    counted,
    describe_steps,
    explained,
    find_row_files,
    hash_file,
    length_facts,
    open_sinks,
    output_row,
    write_whole,
)
from forge.data.build.steps import RowSteps, Step
from forge.data.chat import ChatTemplate
from forge.data.pairs.rows import DROPPED, all_rows
from forge.data.prompts.prompt_set import PromptSet
from forge.errors import ConfigError, MachineError
from forge.evalpool.pool import Pool, open_private_pool
from forge.process.devices import inventory
from forge.records import Problem, Split, Status
from forge.runner.prepare.hub import locate_build
from forge.runner.prepare.prompt_facts import prompts_for

MAX_EXPLAINED = 5
IN_FLIGHT = 32
"""Answers at the judges or in their queue; their texts are in memory."""


def describe(manifest: Mapping[str, Any], folder: Path) -> str:
    rows = ", ".join(f"{count} {name}" for name, count in manifest["rows"].items())
    return f"{rows} rows in {folder}; {MANIFEST} has the settings, hashes and reasons"


def build_rows(build: DataBuild) -> Mapping[str, Any]:
    """Builds the rows, or continues a build, or finds it done; returns the manifest. Raises
    ConfigError: an input, tokenizer or held-out problem that cannot be used, an output directory
    with something else in it, or no row left; MachineError: the output cannot be written, no
    sandbox works on this machine, or a row has no verdict for a fault of the judges."""
    out, build = build.output.dir, locate_build(build)
    task = _Task(
        build=build,
        files=find_row_files(build.input.path),
        chat=_load_chat(build),
        heldout=HeldoutProblems(build.heldout.paths, threshold=build.duplicates.similarity),
        prompts=prompts_for(build.prompt, build.judge, inventory()),
    )
    folder = OutputFolder(path=out, name="output.dir", facts=task.facts())
    return folder.made(task.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    build: DataBuild
    files: Sequence[RowFile]
    chat: ChatTemplate | None
    heldout: HeldoutProblems
    prompts: PromptSet

    def facts(self) -> dict[str, Any]:
        build = self.build
        return {
            **common_facts(tokenizer=build.tokenizer.path),
            "settings": _settings(build),
            "prompts": self.prompts.hash,
            "inputs": [file.to_json() for file in self.files],
            "heldout": {
                "problems": len(self.heldout.sources),
                "sha256": hashlib.sha256(json.dumps(self.heldout.sources).encode()).hexdigest(),
            },
        }

    def run(self, work: Path) -> dict[str, Any]:
        """Builds the rows and writes the files; returns their part of the manifest."""
        texts = work / "rows.gz"
        choice, num_rows = anyio.run(self._prepare, texts)
        choice.drop_contaminated(self.heldout)
        verdicts: dict[int, dict[str, str]] = {}
        if self.build.filters.judged:
            log = ResultLog(work / "verdicts.jsonl")
            verdicts = anyio.run(self._judge_all, _kept(texts, choice), len(choice.kept), log)
            log.close()
            lost = [v["reason"] for v in verdicts.values() if v["status"] == Status.INFRA_ERROR]
            if lost:
                raise MachineError(
                    f"{len(lost)} of {len(verdicts)} rows have no verdict, for a fault of the "
                    f"judges or of the machine ({', '.join(sorted(set(lost)))}); the same command "
                    "judges these again, and `forge doctor` says whether judges work here"
                )
            choice.drop_judged(
                {
                    number: f"{verdict['status']}: {verdict['reason']}"
                    for number, verdict in verdicts.items()
                    if verdict["status"] != Status.CORRECT
                }
            )
        choice.drop_near_and_split(self.build.duplicates, self.build.split)
        places = {file.name: place for place, file in enumerate(self.files)}
        dropped = sorted(choice.dropped, key=lambda each: _place(each.origin, places))
        steps = describe_steps(dropped, Step, num=num_rows, off=_off(self.build))
        out = self.build.output
        write_whole(out.dir / DROPPED, "".join(each.to_line() for each in dropped).encode())
        if not choice.kept:
            said = [counted(steps) or "none read", *explained(steps)[:MAX_EXPLAINED]]
            raise ConfigError(
                f"{INPUT}: {self.build.input.path}: no row is left; {'; '.join(said)} "
                f"({out.dir / DROPPED})"
            )
        written = self._write(texts, choice, verdicts)
        names = [f"{name}.{form}" for name in written["rows"] for form in out.formats]
        outputs = {name: hash_file(out.dir / name) for name in (*names, DROPPED)}
        return {"steps": steps, **_judged(verdicts), **written, "outputs": outputs}

    async def _prepare(self, texts: Path) -> tuple[Choice, int]:
        """The rows that passed the steps of their own, and the number of all; their texts are put
        into a file. Raises ConfigError for the first broken row with `input.strict`."""
        choice, num_rows = Choice(), 0
        steps = RowSteps(build=self.build, prompts=self.prompts, chat=self.chat)
        async with open_counter("rows", total=None) as advance:
            with (
                _without_collector(),
                gzip.open(texts, "wt", 1, encoding="utf-8", newline="\n") as file,
            ):
                for source in self.files:
                    for place, row in enumerate(all_rows(source.path, key=INPUT), start=1):
                        num_rows += 1
                        found = steps(row, number=num_rows, origin=f"{source.name}:{place}")
                        if isinstance(found, LeftOutRow):
                            self._check_strict(found)
                            choice.dropped.append(found)
                        elif choice.add(found):
                            file.write(json.dumps(found.to_json(), ensure_ascii=False) + "\n")
                        advance()
                        await anyio.lowlevel.checkpoint()
        return choice, num_rows

    def _check_strict(self, found: LeftOutRow) -> None:
        source = self.build.input
        if source.strict and found.step == Step.READ:
            root = source.path if source.path.is_dir() else source.path.parent
            said = f"{found.reason}: {found.detail}" if found.detail else found.reason
            raise ConfigError(f'{INPUT}: {root / found.origin} ("{source.format}"): {said}')

    async def _judge_all(
        self, rows: Iterator[tuple[int, dict[str, Any]]], total: int, log: ResultLog
    ) -> dict[int, dict[str, str]]:
        """Verdicts by the rows' numbers. Raises MachineError: no sandbox works here."""
        table = self.build.judge
        verdicts: dict[int, dict[str, str]] = {}
        async with (
            open_counter("judged", total=total) as advance,
            open_private_pool(table, gpus=() if table.url else inventory()) as pool,
            anyio.create_task_group() as tasks,
        ):

            async def judge_next() -> None:
                for number, row in rows:
                    verdicts[number] = await _judge_one(row, pool, log)
                    advance(verdicts[number]["status"])

            for _ in range(IN_FLIGHT):
                tasks.start_soon(judge_next)
        return verdicts

    def _write(
        self, texts: Path, choice: Choice, verdicts: Mapping[int, Mapping[str, str]]
    ) -> dict[str, Any]:
        """Writes the rows; returns their numbers and lengths."""
        out = self.build.output
        names = (TRAIN, HELDOUT) if self.build.split.heldout_share else (TRAIN,)
        counts = dict.fromkeys(names, 0)
        lengths: list[int] = []
        with open_sinks(out.dir, out.formats, names) as write:
            for number, row in _kept(texts, choice):
                name = HELDOUT if number in choice.heldout else TRAIN
                verdict = verdicts[number]["status"] if number in verdicts else None
                write(name, output_row(row, origin=row["origin"], verdict=verdict))
                counts[name] += 1
                if row["num_tokens"] is not None:
                    lengths.append(row["num_tokens"])
        return {"rows": counts, "tokens": length_facts(lengths)}


def _load_chat(build: DataBuild) -> ChatTemplate | None:
    """The chat template that lengths are counted with. Raises ConfigError of one line."""
    table = build.tokenizer
    if not build.filters.length or table.path is None:
        return None
    try:
        thinking = build.prompt.thinking
        return ChatTemplate.load(table.path, chat_template=table.chat_template, thinking=thinking)
    except ConfigError as error:
        text = str(error).replace("[model]", "[tokenizer]")
        raise ConfigError(f"tokenizer.path: {text}") from None


@contextmanager
def _without_collector() -> Generator[None]:
    """Syntax trees have no cycles; the collector's passes would take half of their time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _kept(texts: Path, choice: Choice) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and texts of the rows that are still in."""
    kept = frozenset(choice.kept)
    with gzip.open(texts, "rt", encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file):
            if number in kept:
                yield number, json.loads(line)


def _place(origin: str, places: Mapping[str, int]) -> tuple[int, int]:
    name, _, number = origin.rpartition(":")
    return places[name], int(number)


def _off(build: DataBuild) -> dict[str, str]:
    """The steps that this build does not apply, and why."""
    filters = build.filters
    switches = (
        (Step.LENGTH, filters.length, "filters.length = false"),
        (Step.QUALITY, filters.quality, "filters.quality = false"),
        (Step.CONTAMINATION, bool(build.heldout.paths), "no heldout.paths"),
        (Step.JUDGED, filters.judged, "filters.judged = false"),
        (Step.NEAR, build.duplicates.near, "duplicates.near = false"),
    )
    return {step: key for step, is_on, key in switches if not is_on}


def _settings(build: DataBuild) -> dict[str, Any]:
    """The settings that decide the rows: without places, which differ between machines."""
    settings = build.model_dump(mode="json", exclude_none=True)
    del settings["output"]["dir"], settings["input"]["path"], settings["input"]["strict"]
    settings["tokenizer"].pop("path", None)
    settings["prompt"] = {
        key: Path(value).name if isinstance(value, str) else value
        for key, value in settings["prompt"].items()
    }
    settings["heldout"]["paths"] = [Path(each).name for each in build.heldout.paths]
    if not build.filters.judged:
        del settings["judge"]
    return settings


def _judged(verdicts: Mapping[int, Mapping[str, str]]) -> dict[str, Any]:
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


async def _judge_one(row: Mapping[str, Any], pool: Pool, log: ResultLog) -> dict[str, str]:
    key = xxhash.xxh3_128_hexdigest(
        json.dumps([row["source"], row["entry_point"], row["code"]]).encode()
    )
    if (found := log.get(key)) is not None:
        return found
    problem = Problem(
        problem_id=row["id"], source=row["source"], family="build", level=1, split=Split.SFT,
        entry_point=row["entry_point"],
    )  # fmt: skip
    verdict = await pool.judge(problem, row["code"], timing=False)
    entry = {
        "status": str(verdict.status), "reason": str(verdict.reason), "device": verdict.device,
        "harness": verdict.harness,
    }  # fmt: skip
    if verdict.status is not Status.INFRA_ERROR:  # a machine's fault is judged again
        log.add(key, entry)
    return entry
