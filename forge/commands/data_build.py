"""`forge data build`: from the settings to the files and the manifest.

    rows ─▶ steps of a row ─▶ choice ─▶ judge ─▶ choice ─▶ train.*, heldout.*, manifest
                  └─ texts ─▶ .build/rows.gz ─────┴──────────────┘

One process, row by row; texts wait on disk. Each verdict is on disk before it counts: a build that
was killed reads the rows again, judges no answer twice, and writes the same bytes as one that was
not. The output directory is made once, by one process; .build/ has the facts that decide its files.
One with the same facts is found done or continued; with others, or with files of somebody else, it
is refused.
"""

from __future__ import annotations

import fcntl
import gc
import gzip
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import xxhash

from forge.commands.counter import open_counter
from forge.config.schema.build import DataBuild
from forge.data.build import output
from forge.data.build.choice import Choice, HeldoutProblems
from forge.data.build.steps import RowSteps, Step
from forge.data.chat import ChatTemplate
from forge.data.pairs.rows import DROPPED, all_rows, hash_file
from forge.data.prompts.prompt_set import PromptSet
from forge.errors import ConfigError, MachineError
from forge.evalpool.pool import Pool, open_private_pool
from forge.process.devices import inventory
from forge.records import Problem, Split, Status
from forge.runner.prepare.hub import TOKENIZER_FILES, locate_build
from forge.runner.prepare.prompt_facts import prompts_for
from forge.version import __version__

WORK = ".build"
OUTPUTS = (f"{output.TRAIN}.*", f"{output.HELDOUT}.*", ".*.partial", DROPPED)
"""Files of a build; another one that was not finished leaves some of them."""
PACKAGES = ("numpy", "pyarrow", "tokenizers", "xxhash", "jinja2")
"""Packages whose version may change the bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFolder:
    path: Path
    name: str
    """Key or option that messages name."""
    facts: Mapping[str, Any]
    outputs: Sequence[str] = OUTPUTS

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()

    def made(self, make: Callable[[Path], Mapping[str, Any]]) -> Mapping[str, Any]:
        """The manifest of the finished directory, which `make` fills if it is not done yet. Raises
        ConfigError: the directory has another build, or files of somebody else; MachineError: it
        cannot be written. `make`: gets the folder of work, writes the files, and returns its part
        of the manifest."""
        if (done := self._finished()) is not None:
            return done
        try:
            with self._work() as work:
                manifest = {"key": self.key, **self.facts, **make(work)}
                text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
                output.write_whole(self.path / output.MANIFEST, text.encode())
                shutil.rmtree(work)
        except OSError as error:
            said = error.strerror or error
            raise MachineError(f"{self.name}: {self.path}: cannot be written: {said}") from error
        return manifest

    def _finished(self) -> Mapping[str, Any] | None:
        """The manifest of the same work if it is done and its files are unchanged."""
        folder, path = self.path, self.path / output.MANIFEST
        if path.is_file():
            try:
                found: dict[str, Any] = json.loads(path.read_text())
            except ValueError:
                found = dict[str, Any]()
            if found.get("key") != self.key:
                raise self._of_others(found)
            hashes: dict[str, str] = found["outputs"]
            if all(
                (folder / n).is_file() and hash_file(folder / n) == h for n, h in hashes.items()
            ):
                return found
            path.unlink()
        elif not (folder / WORK).is_dir() and folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(
                f"{self.name}: {folder}: is not empty, and no build made what is in it; name "
                "another"
            )
        return None

    def _of_others(self, found: Mapping[str, Any]) -> ConfigError:
        """The error for a directory of work with other facts."""
        before = _flat(found)
        names = [name for name, one in _flat(self.facts).items() if before.get(name) != one]
        said = f" ({', '.join(names)})" if found else ""
        return ConfigError(
            f"{self.name}: {self.path}: holds a build of other settings, inputs or code{said}; "
            "name another directory, or delete this one"
        )

    @contextmanager
    def _work(self) -> Generator[Path]:
        """The folder of work under way, for one process. Raises ConfigError for results of other
        facts."""
        folder, work = self.path, self.path / WORK
        try:
            work.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder, os.O_RDONLY)
        except (NotADirectoryError, FileExistsError):
            raise ConfigError(f"{self.name}: {folder}: found a file; a directory") from None
        except OSError as error:
            raise MachineError(f"{self.name}: {work}: cannot be made: {error.strerror}") from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"{self.name}: {folder}: another build is writing to it"
                ) from None
            mark, facts = work / "facts.json", json.dumps(self.facts, sort_keys=True)
            if not mark.is_file() or mark.read_text() != facts:
                if any(file.stat().st_size for file in work.glob("*.jsonl")):
                    raise self._of_others(json.loads(mark.read_text()) if mark.is_file() else {})
                shutil.rmtree(work)
                for old in (path for pattern in self.outputs for path in folder.glob(pattern)):
                    old.unlink()
                work.mkdir()
                output.write_whole(mark, facts.encode())
            yield work
        finally:
            os.close(lock)


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts, those of a table as `table.name`."""
    found: dict[str, Any] = {}
    for name, value in facts.items():
        table: dict[str, Any] = value if hasattr(value, "items") else {}
        found |= {f"{name}.{key}": one for key, one in table.items()} or {name: value}
    return found


def common_facts(*packages: str, tokenizer: Path | None) -> dict[str, Any]:
    """Facts that decide the files of any build: versions, code, tokenizer."""
    files = [] if tokenizer is None else [tokenizer / name for name in TOKENIZER_FILES]
    return {
        "forge": __version__,
        "code": _hash_code(),
        "versions": {name: _version(name) for name in (*PACKAGES, *packages)},
        "tokenizer": {path.name: hash_file(path) for path in files if path.is_file()},
    }


def _version(name: str) -> str:
    """The version of a package by the name of its import; triton's distribution has several."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ", ".join(map(version, packages_distributions().get(name, ())))


def _hash_code() -> str:
    root = Path(__file__).parents[1] / "data"
    kinds = (".py", ".jinja", ".toml", ".txt")
    paths = sorted(path for path in root.rglob("*") if path.suffix in kinds)
    hasher = hashlib.sha256()
    for path in paths:
        hasher.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return hasher.hexdigest()


MAX_EXPLAINED = 5
IN_FLIGHT = 32
"""Answers at the judges or in their queue; their texts are in memory."""


def describe(manifest: Mapping[str, Any], folder: Path) -> str:
    rows = ", ".join(f"{count} {name}" for name, count in manifest["rows"].items())
    return f"{rows} rows in {folder}; {output.MANIFEST} has the settings, hashes and reasons"


def build_rows(build: DataBuild) -> Mapping[str, Any]:
    """Builds the rows, or continues a build, or finds it done; returns the manifest. Raises
    ConfigError: an input, tokenizer or held-out problem that cannot be used, an output directory
    with something else in it, or no row left; MachineError: the output cannot be written, no
    sandbox works on this machine, or a row has no verdict for a fault of the judges."""
    out, build = build.output.dir, locate_build(build)
    task = _Task(
        build=build,
        files=output.find_row_files(build.input.path),
        chat=_load_chat(build),
        heldout=HeldoutProblems(build.heldout.paths, threshold=build.duplicates.similarity),
        prompts=prompts_for(build.prompt, build.judge, inventory()),
    )
    folder = OutputFolder(path=out, name="output.dir", facts=task.facts())
    return folder.made(task.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    build: DataBuild
    files: Sequence[output.RowFile]
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
            log = output.ResultLog(work / "verdicts.jsonl")
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
        steps = output.describe_steps(dropped, Step, num=num_rows, off=_off(self.build))
        out = self.build.output
        output.write_whole(out.dir / DROPPED, "".join(each.to_line() for each in dropped).encode())
        if not choice.kept:
            said = [output.counted(steps) or "none read", *output.explained(steps)[:MAX_EXPLAINED]]
            raise ConfigError(
                f"{output.INPUT}: {self.build.input.path}: no row is left; {'; '.join(said)} "
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
                    for place, row in enumerate(all_rows(source.path, key=output.INPUT), start=1):
                        num_rows += 1
                        found = steps(row, number=num_rows, origin=f"{source.name}:{place}")
                        if isinstance(found, output.LeftOutRow):
                            self._check_strict(found)
                            choice.dropped.append(found)
                        elif choice.add(found):
                            file.write(json.dumps(found.to_json(), ensure_ascii=False) + "\n")
                        advance()
                        await anyio.lowlevel.checkpoint()
        return choice, num_rows

    def _check_strict(self, found: output.LeftOutRow) -> None:
        source = self.build.input
        if source.strict and found.step == Step.READ:
            root = source.path if source.path.is_dir() else source.path.parent
            said = f"{found.reason}: {found.detail}" if found.detail else found.reason
            raise ConfigError(f'{output.INPUT}: {root / found.origin} ("{source.format}"): {said}')

    async def _judge_all(
        self, rows: Iterator[tuple[int, dict[str, Any]]], total: int, log: output.ResultLog
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
        names = (
            (output.TRAIN, output.HELDOUT) if self.build.split.heldout_share else (output.TRAIN,)
        )
        counts = dict.fromkeys(names, 0)
        lengths: list[int] = []
        with output.open_sinks(out.dir, out.formats, names) as write:
            for number, row in _kept(texts, choice):
                name = output.HELDOUT if number in choice.heldout else output.TRAIN
                verdict = verdicts[number]["status"] if number in verdicts else None
                write(name, output.output_row(row, origin=row["origin"], verdict=verdict))
                counts[name] += 1
                if row["num_tokens"] is not None:
                    lengths.append(row["num_tokens"])
        return {"rows": counts, "tokens": output.length_facts(lengths)}


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


async def _judge_one(row: Mapping[str, Any], pool: Pool, log: output.ResultLog) -> dict[str, str]:
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
