"""`forge judge --run`: judges the stored answers of a run again; its own verdicts stay.

    turns with a candidate ─▶ one request for each pair of problem and source ─▶ verdicts_again

A pass is one row of `judgings`. A pass that was cut off is continued by the same command with the
same settings; a whole one is followed by a new one. The run's lock is held, so nothing else writes
to its store. A verdict that the machine prevented (`infra_error`) is not stored: the pass stays
open, and the next command judges what it lacks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forge.adapters.pools import PHASES, JudgeSettings
from forge.commands.counter import Advance, open_counter
from forge.config.load import load_experiment
from forge.config.schema import Experiment, JudgeTable
from forge.data.problems import load_problems
from forge.errors import ConfigError, MachineError
from forge.evalpool.cards import require_target
from forge.evalpool.pool import Pool, open_private_pool
from forge.process.devices import Gpu
from forge.records import Status
from forge.records.problem import ReferenceModule
from forge.records.run import JudgedAgain, Judging
from forge.store.layout import RunPaths, open_run_lock
from forge.store.reader import RunReader, open_run, refuse_damage
from forge.store.write.writer import Writer, open_writer
from forge.views.text import printable

OPTIONS = ("protocol", "policy", "target", "isolation", "workers")
AS_SERVED = "as served"
"""Protocol and policy of a pass by a served pool."""
AHEAD = 2
"""Requests in flight per candidate that the judges take at once: none waits for the next."""

_PENDING = """
SELECT g.problem_id, t.code_id FROM turns t JOIN groups g USING (group_id)
WHERE t.code_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM verdicts_again a WHERE a.judging = ?
    AND a.group_id = t.group_id AND a.rollout = t.rollout AND a.turn = t.turn)
GROUP BY g.problem_id, t.code_id ORDER BY min(t.turn_row)
"""
_TURNS = """
SELECT t.group_id, t.rollout, t.turn FROM turns t JOIN groups g USING (group_id)
WHERE t.code_id = ? AND g.problem_id = ? ORDER BY 1, 2, 3
"""
_PROBLEMS = "SELECT problem_id, text(source_id) AS source, entry_point, precision FROM problems"
MAX_CHANGED = 40
MAX_DETAIL = 80
_CHANGED = """
SELECT turn_id, problem_id, own_status, own_reason, status, reason, detail FROM v_judged_again
WHERE judging = ? AND is_changed ORDER BY group_id, rollout, turn
"""
_COUNTS = """
SELECT own_status, status, count(*) AS num_turns FROM v_judged_again WHERE judging = ?
GROUP BY own_status, status
"""


def judge_again(
    paths: RunPaths, settings: JudgeSettings, *, given: Sequence[str]
) -> dict[str, Any]:
    """Judge every stored answer of a run, and report what changed. Raises ConfigError: the run is
    running, or its problems have changed; MachineError: its store is damaged or incomplete, or no
    sandbox works on this machine. `given`: options of `settings` that replace keys of the run's
    `[judge]`."""
    with open_run_lock(paths):
        refuse_damage(paths)
        experiment = load_experiment(paths.experiment, is_here=False)
        table, gpus = _table(experiment, settings, given), settings.gpus()
        judging, failed = anyio.run(_judge_all, paths, experiment, table, gpus)
    with open_run(paths) as reader:
        return read_report(reader, judging, num_failed=failed)


def _table(experiment: Experiment, settings: JudgeSettings, given: Sequence[str]) -> JudgeTable:
    """The run's `[judge]` with the given options, for judges on this machine or at --url."""
    chosen = settings.table()
    if settings.url is not None:
        return chosen
    key = experiment.serve.api_key_env
    named = (*given, "policy") if "protocol" in given else given  # which follows the protocol
    update: dict[str, Any] = {name: getattr(chosen, name) for name in OPTIONS if name in named}
    update["env"] = {**({key: ""} if key else {}), **experiment.judge.env}
    if "timeout" in given:
        update |= {name: getattr(chosen, name) for name in PHASES}
    table = experiment.judge.model_copy(update={**update, "url": [], "also": []})
    require_target(table.target)
    return table


async def _judge_all(
    paths: RunPaths, experiment: Experiment, table: JudgeTable, gpus: Sequence[Gpu]
) -> tuple[int, int]:
    """The number of the pass, and of candidates that the machine prevented from being judged."""
    async with open_writer(paths, experiment.store) as writer:
        # After the writer, which migrates an older store.
        with open_run(paths) as reader:
            judging = _find_pass(reader, _new_pass(table, gpus))
            problems = _problems(reader, experiment)
            kernels = [
                (_known(problems, problem_id, paths), code_id)
                for problem_id, code_id in reader.query(_PENDING, (judging.judging,)).rows
            ]
            await writer.put(judging)
            work = partial(_judge_kernel, judging=judging, reader=reader, writer=writer)
            failed = await _run_pass(work, kernels, table, gpus) if kernels else 0
            if not failed:
                await writer.put(replace(judging, ended_at=time.time()))
    return judging.judging, failed


async def _run_pass(
    work: Callable[[ReferenceModule, int, Pool], Awaitable[Status]],
    kernels: Sequence[tuple[ReferenceModule, int]],
    table: JudgeTable,
    gpus: Sequence[Gpu],
) -> int:
    """Judge the kernels; returns how many the machine prevented."""
    failed, rest = 0, iter(kernels)

    async def judge_each(pool: Pool, count: Advance) -> None:
        nonlocal failed
        for problem, code_id in rest:
            status = await work(problem, code_id, pool)
            failed += status is Status.INFRA_ERROR
            count(status)

    async with (
        open_counter("judged", total=len(kernels)) as count,
        open_private_pool(table, gpus=gpus) as pool,
        anyio.create_task_group() as tasks,
    ):
        num = AHEAD * sum(seat.capacity for seat in pool.seating.seats)
        for _ in range(min(num, len(kernels))):
            tasks.start_soon(judge_each, pool, count)
    return failed


async def _judge_kernel(
    problem: ReferenceModule,
    code_id: int,
    pool: Pool,
    *,
    judging: Judging,
    reader: RunReader,
    writer: Writer,
) -> Status:
    """Judge a candidate, and record the verdict for each turn that has it."""
    verdict = await pool.judge(problem, reader.value("SELECT text(?)", (code_id,)))
    if verdict.status is not Status.INFRA_ERROR:
        make = partial(JudgedAgain, judging=judging.judging, judged_at=time.time(), verdict=verdict)
        rows = reader.query(_TURNS, (code_id, problem.problem_id)).rows
        await writer.put(*(make(group_id=g, rollout=r, turn=t) for g, r, t in rows))
    return verdict.status


def _new_pass(table: JudgeTable, gpus: Sequence[Gpu]) -> Judging:
    names = {"protocol": table.protocol, "policy": table.policy}
    device = ", ".join(gpu.name for gpu in gpus) or "cpu"
    if table.url:  # the pool judges by its own settings, on its own devices
        names, device = dict.fromkeys(names, AS_SERVED), table.url[0]
    return Judging(
        judging=0, began_at=time.time(), ended_at=None, **names, device=device,
        settings=table.model_dump(mode="json", exclude={"env", "workers"}),
    )  # fmt: skip


def _find_pass(reader: RunReader, new: Judging) -> Judging:
    """The last pass, if it was cut off and had the same settings; else the new one with the next
    number."""
    rows = reader.rows(
        "SELECT judging, began_at, ended_at, device, json(settings) = json(?) AS is_same "
        "FROM judgings ORDER BY judging DESC LIMIT 1",
        (json.dumps(new.settings),),
    )
    last = rows[0] if rows else {"judging": 0, "ended_at": 0.0}
    if last["ended_at"] is None and last["is_same"] and last["device"] == new.device:
        return replace(new, judging=last["judging"], began_at=last["began_at"])
    return replace(new, judging=last["judging"] + 1)


def _problems(reader: RunReader, experiment: Experiment) -> dict[str, ReferenceModule]:
    """The run's problems as it recorded them; shapes, which are not recorded, are loaded again.

    Raises ConfigError if problems with shapes have changed since, or cannot be loaded.
    """
    stored = {row["problem_id"]: ReferenceModule(**row) for row in reader.rows(_PROBLEMS)}
    if not any(part.shapes for part in experiment.problems.parts()):
        return stored
    loaded = {
        problem.problem_id: problem
        for problem in load_problems(experiment.problems, seed=experiment.seed)
    }
    changed = [
        name for name, problem in stored.items()
        if name not in loaded or loaded[name].source != problem.source
    ]  # fmt: skip
    if changed:
        raise ConfigError(
            f"{reader.paths.experiment}: problems.shapes: {changed[0]} has changed since the run "
            f"({len(changed)} of {len(stored)} problems have); the files as the run had them"
        )
    return {**stored, **loaded}


def _known(
    problems: Mapping[str, ReferenceModule], problem_id: str, paths: RunPaths
) -> ReferenceModule:
    if problem_id not in problems:
        raise MachineError(f"{paths.run_db}: no row of the problem {problem_id}")
    return problems[problem_id]


def read_report(reader: RunReader, judging: int, *, num_failed: int) -> dict[str, Any]:
    """The output of `--json`: a pass; `counts`, turns by their status in the run and now;
    `changed`, turns whose status changed; turns without a candidate; candidates that the machine
    failed on."""
    own = "SELECT protocol, policy, device FROM judgings WHERE judging = ?"
    about = reader.one(own, (judging,)) or {}
    counts, changed = reader.rows(_COUNTS, (judging,)), reader.rows(_CHANGED, (judging,))
    without = reader.value("SELECT count(*) FROM turns WHERE code_id IS NULL")
    return {
        "run": reader.paths.name, "judging": judging, **about, "counts": counts,
        "changed": changed, "num_without_code": without, "num_failed": num_failed,
        "num_turns": sum(each["num_turns"] for each in counts), "num_changed": len(changed),
    }  # fmt: skip


def render(report: Mapping[str, Any]) -> RenderableType:
    """The table of statuses, and the changed turns."""
    head = (
        "{run}: {num_turns} turns judged again (pass {judging}: protocol {protocol}, policy "
        "{policy}, on {device}); {num_changed} changed; {num_without_code} without a candidate"
    )
    parts: list[RenderableType] = [Text(printable(head.format(**report))), Text("")]
    if report["counts"]:
        parts += [_matrix(report["counts"]), Text("")]
    if report["changed"]:
        parts.append(_list(report["changed"]))
    if (more := report["num_changed"] - MAX_CHANGED) > 0:
        parts.append(Text(f"{more} more: --json, or forge sql {report['run']} (v_judged_again)"))
    if report["num_failed"]:
        words = "candidates that the machine could not judge; the same command judges them"
        parts.append(Text(f"{report['num_failed']} {words}", style="yellow"))
    return Group(*parts)


def _matrix(counts: Sequence[Mapping[str, Any]]) -> Table:
    found = {(each["own_status"], each["status"]): each["num_turns"] for each in counts}
    columns = _in_order({now for _, now in found})
    table = Table("in the run \\ now", *columns, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for own in _in_order({own for own, _ in found}):
        table.add_row(own, *(str(found.get((own, now), "")) for now in columns))
    return table


def _list(changed: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("turn", "problem", "in the run", "now", "", box=None, pad_edge=False)
    table.columns[-1].no_wrap = True
    for row in changed[:MAX_CHANGED]:
        cells = (
            row["turn_id"], row["problem_id"], f"{row['own_status']} ({row['own_reason']})",
            f"{row['status']} ({row['reason']})",
            " | ".join(row["detail"].split("\n"))[:MAX_DETAIL],
        )  # fmt: skip
        table.add_row(*(Text(printable(str(cell))) for cell in cells))
    return table


def _in_order(names: set[str]) -> list[str]:
    """Statuses in the order of `Status`; those of another version last."""
    known = [str(status) for status in Status]
    return sorted(names, key=lambda name: (name not in known, [*known, name].index(name)))
