"""`forge data harvest`: from PyTorch code to problems, answers and rows.

    sources ─Found─▶ sieve ─▶ sizes ─▶ examination ─▶ answer ─▶ verdict, repair ─▶ results.jsonl
                                  all in a judge's sandboxed children                   │
                              train.*, heldout.*, problems*.jsonl, README.md, manifest ◀┘

One problem is one task, and as many are under way as judges can take. A result is on disk before it
is counted: a harvest that was killed reads the sources again, runs no problem twice, and writes the
same bytes as one that was not. Ctrl-C writes the files of the problems that are done, without a
manifest. This process parses code and runs none of it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.to_thread

from forge.adapters.pools import JudgeSettings
from forge.commands.counter import Advance, open_counter
from forge.commands.data_build import OUTPUTS, OutputFolder, common_facts
from forge.config.keys import one_of
from forge.config.schema import JudgeTable, PresetName, PromptTable
from forge.config.schema.build import SplitTable
from forge.data.build.choice import HeldoutProblems
from forge.data.build.output import (
    HELDOUT,
    TRAIN,
    LeftOutRow,
    ResultLog,
    counted,
    open_sinks,
    output_row,
    write_whole,
)
from forge.data.chat import ChatTemplate
from forge.data.harvest.closure import TOO_DEEP
from forge.data.harvest.harvested import (
    CARD,
    HELDOUT_SIMILARITY,
    HarvestCounts,
    Harvested,
    Sieve,
    Summary,
    conversations,
    key_of,
    problem_row,
    write_card,
)
from forge.data.harvest.records import Found, HarvestSource, Rejected
from forge.data.harvest.sizes import SizeGroup, replaced, size_groups
from forge.data.harvest.sources import open_sources
from forge.data.mistakes import broken
from forge.data.pairs.rows import DROPPED, hash_file
from forge.data.prompts.prompt_set import PromptSet
from forge.errors import ConfigError, MachineError
from forge.evalpool.pool import Pool, open_private_pool
from forge.records import Problem, Split, Status
from forge.records.problem import Shape
from forge.runner.prepare.hub import locate_data_set
from forge.runner.prepare.prompt_facts import prompts_for

logger = logging.getLogger(__name__)
RESULTS, FORMATS = "results.jsonl", ("parquet", "jsonl")
PROBLEMS, LARGE, ANSWERS = "problems", "problems-large", "answers"
SCORED = "scored"
"""Beginning of the names of problems with held-out ones among them: of another file than any that
a run trains on."""
FILES = (*OUTPUTS, CARD, *(f"{name}.jsonl" for name in (f"{PROBLEMS}*", f"{SCORED}-*", ANSWERS)))
SIZES_CPU_S, ANSWER_CPU_S = 10.0, 30.0
"""Processor time of a child."""
MAX_RUN_S = 1.0
"""Processor time of a problem's construction and first run: more is a whole model, whose answer no
judge on a CPU ends in time."""
MAX_OPERATIONS = 60
"""Operations of a problem that gets an answer, views aside: a whole model has more, and takes the
compiler minutes for a text that no row has room for."""
BUSY_FACTOR = 8.0
"""Times that, which a child may last on a machine that is busy."""
PHASE_S = 90.0
"""Deadline of a judge's phases: generous, so that a busy machine changes no result."""
MAX_BYTES = 4 << 30
"""Largest inputs and outputs of a large problem."""
ENOUGH_BYTES, ENOUGH_FLOPS = 320 << 20, 4e10
"""Inputs and outputs, or operations, that keep a card busy for about 100 us."""
MAX_ANSWER_CHARS = 24_000
"""Longest answer: about 8,000 tokens, as rows of a build have at most."""
MAX_BROKEN = 4
REPAIR_EVERY = 10
MOST_VAIN = 0.5
"""Share of the problems that faults of the machine may cost."""
IN_FLIGHT_A_CORE = 2
"""Problems under way; a judge on a CPU has a core, one with a card all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarvestRequest:
    """The options of the command."""

    sources: Sequence[str]
    out: Path
    policy: str = "own"
    only_problems: bool = False
    keeps_heldout: bool = False
    heldout: Sequence[str] = ()
    similarity: float = 0.9
    heldout_share: float = 0.05
    seed: int = 0
    limit: int | None = None
    tokenizer: Path | None = None
    preset: str = "standard"
    judge: JudgeSettings = field(default_factory=JudgeSettings)


def describe(manifest: Mapping[str, Any], folder: Path) -> str:
    rows = ", ".join(f"{count} {name}" for name, count in manifest["rows"].items())
    return (
        f"{manifest['problems']['train']} problems and {rows} rows in {folder}; README.md has the "
        f"yields, {DROPPED} the reasons"
    )


def harvest(request: HarvestRequest) -> Mapping[str, Any]:
    """Makes problems, answers and rows, or continues, or finds them done; returns the manifest.
    Raises ConfigError: a source, tokenizer or held-out problem that cannot be used, an output
    directory with something else in it, or no problem; MachineError: no sandbox works here, a judge
    failed, or the output cannot be written."""
    task = HarvestTask.of(request)
    folder = OutputFolder(path=request.out, name="--out", facts=task.facts, outputs=FILES)
    return folder.made(task.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarvestTask:
    """A request that has been checked, with all that decides its result."""

    request: HarvestRequest
    sources: Sequence[HarvestSource]
    heldout: HeldoutProblems
    table: JudgeTable
    prompts: PromptSet
    chat: ChatTemplate | None
    facts: Mapping[str, Any]

    @classmethod
    def of(cls, request: HarvestRequest) -> HarvestTask:
        """Raises ConfigError or MachineError."""
        locate = partial(locate_data_set, key="SOURCE: rows")
        sources = open_sources(request.sources, locate=locate)
        heldout = HeldoutProblems(request.heldout, threshold=HELDOUT_SIMILARITY, key="--heldout")
        table = replace(request.judge, policy=request.policy).table()
        table = table.model_copy(
            update={"compile_timeout_s": PHASE_S, "correct_timeout_s": PHASE_S}
        )
        one_of("--preset", request.preset, PresetName)
        prompt = PromptTable.model_validate({"preset": request.preset, "thinking": ""})
        prompts = prompts_for(prompt, table, request.judge.gpus())
        chat = None
        if request.tokenizer is not None:
            chat = ChatTemplate.load(request.tokenizer, thinking=prompts.thinking)
        names = ("policy", "only_problems", "keeps_heldout", "similarity", "heldout_share", "seed",
                 "limit", "preset")  # fmt: skip
        facts = {
            **common_facts("torch", "triton", tokenizer=request.tokenizer),
            "settings": {name: getattr(request, name) for name in names},
            "prompts": prompts.hash,
            "sources": [one.facts() for one in sources],
            "heldout": hashlib.sha256(json.dumps(heldout.sources).encode()).hexdigest(),
        }
        return cls(
            request=request, sources=sources, heldout=heldout, table=table, prompts=prompts,
            chat=chat, facts=facts,
        )  # fmt: skip

    def run(self, work: Path) -> dict[str, Any]:
        """Harvests, and writes the files, also after Ctrl-C. Raises OSError where one cannot be
        written, and MachineError where most problems have no result."""
        log, request = ResultLog(work / RESULTS), self.request
        sieve = Sieve(
            heldout=self.heldout, similarity=request.similarity, keeps_heldout=request.keeps_heldout
        )
        state = _State(sieve=sieve)
        try:
            anyio.run(_harvest_all, self, state, log)
            if len(state.vain) > MOST_VAIN * len(state.keys):
                raise MachineError(
                    f"{len(state.vain)} of {len(state.keys)} problems have no result, for a fault "
                    "of the judges or of the machine; `forge doctor` says whether judges work "
                    "here, and the same command asks for these again"
                )
            for key, result in state.vain.items():
                log.add(key, asdict(result))
            return _write(self, state, log)
        except KeyboardInterrupt:
            with suppress(NoProblem):
                logger.warning("so far %s", describe(_write(self, state, log), request.out))
            raise
        finally:
            log.close()


@dataclass(slots=True, kw_only=True)
class _State:
    """Everything that the sources gave, in their order; texts are in the log."""

    sieve: Sieve
    counts: HarvestCounts = field(default_factory=HarvestCounts)
    keys: list[tuple[str, str]] = field(default_factory=list["tuple[str, str]"])
    """Key and id of each problem that was run, by its number."""
    vain: dict[str, Harvested] = field(default_factory=dict[str, Harvested])
    """Results that a fault of the machine gave twice: they stay unless most are such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A problem on its way to a judge."""

    found: Found
    origin: str
    """With the name of its source."""
    id: str
    key: str


async def _harvest_all(task: HarvestTask, state: _State, log: ResultLog) -> None:
    request = task.request
    entries = _entries(task, state)
    harvests = "problems" if request.only_problems else "answers"
    gpus = request.judge.gpus()
    async with (
        open_counter("problems", total=request.limit) as advance,
        open_private_pool(task.table, gpus=gpus, harvests=harvests) as pool,
        anyio.create_task_group() as tasks,
    ):
        lock = anyio.Lock()

        async def work_on_next() -> None:
            while True:
                async with lock:
                    entry = await anyio.to_thread.run_sync(next, entries, None)
                if entry is None:
                    return
                await _finish(task, state, log, pool, entry, advance)

        num_cores = len(os.sched_getaffinity(0)) if gpus else pool.num_judges
        for _ in range(IN_FLIGHT_A_CORE * num_cores):
            tasks.start_soon(work_on_next)


def _entries(task: HarvestTask, state: _State) -> Iterator[_Entry]:
    """The problems that stay, in order; what does not stay is counted."""
    for source in task.sources:
        for unit in source.units():
            for found in source.read(unit):
                origin = f"{source.name}/{found.origin}"
                if isinstance(found, Rejected):
                    state.counts.drop(
                        LeftOutRow(
                            origin=origin, kind=found.kind, step="self-contained",
                            reason=found.reason, detail=found.detail,
                        )
                    )  # fmt: skip
                    continue
                number = len(state.keys)
                out = state.sieve.refuse(found, origin=origin, number=number)
                if out is not None:
                    state.counts.drop(out)
                    continue
                id = re.sub(r"\s+", "_", origin.replace(".py", "").replace(":", "/"))
                entry = _Entry(found=found, origin=origin, id=id, key=key_of(found, origin))
                state.keys.append((entry.key, id))
                yield entry
                if len(state.keys) == task.request.limit:
                    return


async def _finish(
    task: HarvestTask, state: _State, log: ResultLog, pool: Pool, entry: _Entry, advance: Advance
) -> None:
    result = Harvested.of(log.get(entry.key))
    if result is None:
        result, is_certain = await _Work(task, pool, entry).run()
        if not is_certain:  # a fault of the machine: once more
            result, is_certain = await _Work(task, pool, entry).run()
        if is_certain:
            log.add(entry.key, asdict(result))
        else:
            state.vain[entry.key] = result
    advance("correct" if result.is_pair else result.step and f"not {result.step}")


class _NotPassed(Exception):
    """A step that a problem did not pass."""

    def __init__(self, step: str, reason: str, detail: str = "", *, certain: bool = True) -> None:
        super().__init__(reason)
        self.step, self.reason, self.detail, self.certain = step, reason, detail, certain


class _Work:
    """The steps of one problem in a pool of judges."""

    def __init__(self, task: HarvestTask, pool: Pool, entry: _Entry) -> None:
        self._task, self._pool, self._entry = task, pool, entry
        found = entry.found
        self._result = Harvested(
            origin=entry.origin, kind=found.kind, level=found.level, licence=found.licence,
            name=found.name, text=found.text,
        )  # fmt: skip

    async def run(self) -> tuple[Harvested, bool]:
        """The result, and whether it would be the same again: no fault of a machine made it."""
        try:
            try:
                await self._find_sizes()
            except RecursionError:
                raise _NotPassed("runs", TOO_DEEP) from None
            await self._examine()
            if not self._task.request.only_problems:
                await self._answer()
                await self._judge()
                await self._break()
        except _NotPassed as error:
            self._note(step=error.step, reason=error.reason, detail=error.detail)
            return self._result, error.certain
        return self._result, True

    def _note(self, **values: Any) -> None:
        self._result = replace(self._result, **values)

    async def _find_sizes(self) -> None:
        found = self._entry.found
        texts = [found.text, *found.alternatives]
        groups = self._groups(texts)
        if groups and groups[0].large == (found.text,):
            texts = [one.text for one in groups]  # the text itself has a card's sizes
        done = await self._ask_sizes(texts, groups)
        if len(texts) > 1 and not groups:
            number: int = done["text"]
            texts = [texts[number]]
            groups = self._groups(texts)
            done = await self._ask_sizes(texts, groups)
        if done["cpu_s"] > MAX_RUN_S:
            raise _NotPassed("runs", "too large", f"its first run takes more than {MAX_RUN_S} s")
        if not self._task.request.only_problems and done["operations"] > MAX_OPERATIONS:
            detail = f"{done['operations']} operations"
            raise _NotPassed("runs", f"more than {MAX_OPERATIONS} operations", detail)
        if not done["tensors"]:
            raise _NotPassed("runs", "no tensor among the inputs")
        if not done["outputs"]:
            raise _NotPassed("runs", "no tensor among the outputs")
        self._note(text=texts[done["text"]])
        if "group" in done:
            number: int = done["group"]
            group = groups[number]
            self._note(text=group.text, other=group.other)
            if "large" in done:
                place: int = done["large"]
                self._note(large=group.large[place])

    def _groups(self, texts: Sequence[str]) -> list[SizeGroup]:
        found = self._entry.found
        if len(texts) > 1:
            return []
        text = texts[0]
        if found.others:
            large = (replaced(text, found.large),) if found.large else ()
            others = (replaced(text, one) for one in found.others)
            return [SizeGroup(text=text, other=other, large=large) for other in others]
        return size_groups(text)

    async def _ask_sizes(self, texts: Sequence[str], groups: Sequence[SizeGroup]) -> dict[str, Any]:
        work = {
            "step": "sizes", "source": texts[0], "alternatives": texts[1:],
            "groups": [asdict(one) for one in groups], "cpu_s": SIZES_CPU_S,
            "max_bytes": MAX_BYTES, "enough_bytes": ENOUGH_BYTES, "enough_flops": ENOUGH_FLOPS,
        }  # fmt: skip
        return await self._ask(work, step="runs")

    async def _ask(self, work: Mapping[str, Any], *, step: str) -> dict[str, Any]:
        answer = await self._pool.harvest(work, limit_s=BUSY_FACTOR * work["cpu_s"])
        if "done" in answer:
            return answer["done"]
        raise _NotPassed(
            step, str(answer["failed"]), str(answer["detail"]),
            certain=answer["failed"] != NO_JUDGE,
        )  # fmt: skip

    async def _examine(self) -> None:
        examined = await self._pool.examine(replace(self._problem(), shapes=()))
        if not examined.is_trainable and not self._task.request.keeps_heldout:
            flags = {flag: said for flag, said in examined.flags.items() if flag.is_unusable}
            flags = flags or {f: said for f, said in examined.flags.items() if f.is_trivial}
            flag, said = next(iter(flags.items()))
            raise _NotPassed("examined", str(flag), _NUMBER.sub("…", said))

    async def _answer(self) -> None:
        text = self._result.text
        work = {"step": "answer", "source": text, "cpu_s": ANSWER_CPU_S}
        done = await self._ask(work, step="answered")
        if not done["is_answered"]:
            raise _NotPassed("answered", done["reason"], done["detail"])
        if len(done["code"]) > MAX_ANSWER_CHARS:
            raise _NotPassed("answered", f"more than {MAX_ANSWER_CHARS} characters")
        self._note(
            code=done["code"], policy=done["policy"], products=done["products"],
            kernels=len(done["kernels"]),
        )  # fmt: skip

    async def _judge(self) -> None:
        problem = self._problem()
        verdict = await self._pool.judge(problem, self._result.code, timing=False)
        if verdict.is_correct and verdict.device != "cpu" and self._result.large:
            large = replace(problem, source=self._result.large, shapes=())
            is_timed = self._task.request.keeps_heldout
            verdict = await self._pool.judge(large, self._result.code, timing=is_timed)
            self._note(speedup=None if verdict.timing is None else verdict.timing.speedup)
        self._note(device=verdict.device)
        if not verdict.is_correct:
            certain = verdict.status is not Status.INFRA_ERROR
            reason = f"{verdict.status}: {verdict.reason}"
            raise _NotPassed("judged", reason, verdict.detail[:300], certain=certain)

    async def _break(self) -> None:
        """A broken variant of the answer of one problem in REPAIR_EVERY, with the judge's words."""
        number = int(self._entry.key, 16)
        if number % REPAIR_EVERY:
            return
        rng = Random(number)
        for _ in range(MAX_BROKEN):
            code = broken(self._result.code, rng)
            if code is None:
                return
            problem = replace(self._problem(), shapes=())  # as the prompt has it
            verdict = await self._pool.judge(problem, code, timing=False)
            if verdict.status.is_scored and not verdict.is_correct:
                words = (str(verdict.status), str(verdict.reason), verdict.detail)
                return self._note(broken=code, words=words)

    def _problem(self) -> Problem:
        result = self._result
        shapes = [("as traced", result.text), ("other sizes", result.other)]
        return Problem(
            problem_id=self._entry.id, source=result.text, family=result.kind, level=result.level,
            split=Split.SFT,
            shapes=tuple(Shape(name=name, source=text) for name, text in shapes)
            if result.other
            else (),
        )  # fmt: skip


NO_JUDGE = "no judge answered"
_NUMBER = re.compile(r"\d+(\.\d+)?(e[-+]?\d+)?%?")


class NoProblem(ConfigError):
    """No problem of the sources can be used."""


def _write(task: HarvestTask, state: _State, log: ResultLog) -> dict[str, Any]:
    """Writes all files but the manifest, of the problems with a result; returns its part about
    them. Raises NoProblem."""
    request, out = task.request, task.request.out
    kept: list[int] = []
    for number, (key, _) in enumerate(state.keys):
        result = Harvested.of(log.get(key))
        if result is None:  # under way at Ctrl-C
            continue
        state.counts.add(result)
        if result.is_problem:
            kept.append(number)
    steps = state.counts.steps()
    if not kept:
        words = ", ".join(request.sources)
        raise NoProblem(f"SOURCE: {words}: no problem; {counted(steps) or 'no class with forward'}")
    split = SplitTable(heldout_share=request.heldout_share, seed=request.seed)
    apart = state.sieve.set_apart(kept, split)
    write_whole(out / DROPPED, "".join(one.to_line() for one in state.counts.dropped).encode())
    summary = Summary()
    names = [f"{name}{end}" for name in (PROBLEMS, LARGE) for end in ("", "-heldout")]
    if request.keeps_heldout:
        names = [f"{SCORED}-{PROBLEMS}", f"{SCORED}-{LARGE}", ANSWERS]
    problems = {name: out / f".{name}.jsonl.partial" for name in names}
    files = {name: path.open("w", encoding="utf-8") for name, path in problems.items()}
    with open_sinks(out, FORMATS, (TRAIN, HELDOUT)) as write_row:
        for number in kept:
            key, id = state.keys[number]
            result = Harvested.of(log.get(key))
            assert result is not None
            is_apart = number in apart
            for name, text in ((PROBLEMS, result.text), (LARGE, result.large)):
                if text:
                    row = problem_row(result, id=id, text=text)
                    at = f"{name}-heldout" if is_apart else name
                    file = files[f"{SCORED}-{name}" if request.keeps_heldout else at]
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
            summary.add_problem(result, is_apart=is_apart)
            if not result.is_pair:
                continue
            if request.keeps_heldout:
                row = {"id": id, "code": result.code, "speedup": result.speedup}
                files[ANSWERS].write(json.dumps(row, ensure_ascii=False) + "\n")
                continue
            for messages in conversations(result, id, task.prompts):
                tokens = None if task.chat is None else task.chat.count_tokens(messages)
                row = {
                    "id": id, "messages": [asdict(one) for one in messages],
                    "num_turns": sum(one.role == "assistant" for one in messages),
                    "num_tokens": tokens,
                }  # fmt: skip
                made = output_row(row, origin=result.origin, verdict="correct")
                write_row(HELDOUT if is_apart else TRAIN, made)
                summary.add_row(row, is_apart=is_apart)
    for name, file in files.items():
        file.close()
        problems[name].replace(out / f"{name}.jsonl")
    found = summary.to_json()
    write_card(out, summary, steps=steps, kinds=state.counts.by_kind(), settings=task.facts)
    names = [f"{name}.{form}" for name in (TRAIN, HELDOUT) for form in FORMATS]
    names += [DROPPED, CARD, *(f"{name}.jsonl" for name in problems)]
    outputs = {name: hash_file(out / name) for name in names}
    return {**found, "steps": steps, "kinds": state.counts.by_kind(), "outputs": outputs}
