"""Evaluations: play held-out problems with one set of weights, measure, store.

Between the steps of a grpo stage, every `eval.every` steps and on request, `Midway` plays a fixed
part of the held-out problems:

    publish of such a step ──▶ hold the trainer ──▶ play ──▶ release

Groups for training are played meanwhile, as far as staleness allows. A restarted trainer publishes
its checkpoint again: it is not started before the release, and no step is evaluated twice.

With `eval.both_baselines` further judges with the other baseline judge the best timed kernel of
each problem once more. A baseline belongs to the problem, so the speed-ups of its other kernels
follow from their times. Each measurement is an event: a resumed run measures only what is missing.

An eval stage that was interrupted keeps its finished groups, read back from the store without token
ids and log-probabilities, and plays the others.

Problems that the run has trained on before, by rows of SFT or by rollouts, are counted: an
evaluation on them says how well answers were remembered, so it is labelled everywhere. Problems are
compared by their text and by the normal form of their code, since rows of a file have other names,
sizes and prompts. What trained the model before this run is unknown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import anyio
import anyio.to_thread

from forge.config.schema import EvalStage, EvalTable, GrpoStage, JudgeTable, ServeTable, SftStage
from forge.data.sources.normal_form import digests_in
from forge.data.sources.splitting import digest_of, num_shared
from forge.errors import ConfigError
from forge.evalpool.pool import Pool, open_pool
from forge.process.sockets import open_socket_dir
from forge.records import End, Evaluation, Group, Problem, Purpose, Split, Trajectory, Turn
from forge.rollout.play import GroupPlace, Rules, play_group
from forge.rollout.ports import Ports
from forge.rollout.seeds import problem_place
from forge.runner.live.progress import group_numbers
from forge.runner.prepare.prepare import load_pairs
from forge.runner.stages.desk import TrainerDesk
from forge.runner.stages.run_context import RunContext
from forge.store.layout import RunPaths
from forge.store.reader import RunReader, open_run
from forge.store.resume import events, read_groups
from forge.views.statistics import evaluate_groups, measure_speed

ROLLOUTS_PER_SLOT = 1.5
"""Rollouts played at once per sequence slot of the engines: while some are judged, others use their
slots, and few wait."""
KEPT = "evaluation_continued"
"""Kind of the event by which a resumed evaluation keeps finished groups (`v_replayed`)."""
_FINISHED = """
WITH finished AS (SELECT * FROM groups g
    WHERE g.purpose = 'eval' AND g.stage = :stage AND g.step = :step AND g.num_rollouts > 0
    AND NOT EXISTS (SELECT 1 FROM groups l WHERE l.purpose = 'eval' AND l.stage = g.stage
        AND l.step = g.step AND l.problem_id = g.problem_id AND l.is_greedy = g.is_greedy
        AND l.attempt > g.attempt))
"""
_TURNS = f"""{_FINISHED}
SELECT t.*, f.is_flat FROM finished f CROSS JOIN v_turns t ON t.group_id = f.group_id
"""
_WITHOUT_TURNS = f"""{_FINISHED}
SELECT f.*, r.rollout, r.ended, NULL AS turn
FROM finished f JOIN trajectories r USING (group_id) WHERE r.num_turns = 0
"""
_PLAYED = """
SELECT p.source_id FROM sample_uses u JOIN groups g USING (group_id)
JOIN problems p ON p.problem_id = g.problem_id
UNION SELECT p.source_id FROM events e, json_each(e.data, '$.problems') n
JOIN problems p ON p.problem_id = n.value
WHERE e.kind = 'sft_rows' AND json_extract(e.data, '$.stage') < :stage
"""
_SAME = f"SELECT problem_id FROM problems WHERE source_id IN ({_PLAYED})"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    samples: int
    """Rollouts of each problem at `temperature`."""
    greedy: bool
    max_turns: int
    temperature: float = 1.0

    @classmethod
    def of(cls, table: EvalTable, stage: EvalStage) -> EvalSettings:
        """The stage's keys where it has them, otherwise those of `[eval]`."""
        keys = {"samples", "greedy", "max_turns", "temperature"}
        own = stage.model_dump(include=keys, exclude_none=True)
        return cls(**{**table.model_dump(include=keys), **own})


async def evaluate(
    run: RunContext, problems: Sequence[Problem], settings: EvalSettings, *, label: str, stage: int,
    step: int, show: bool, kept: Sequence[Group] = (),
) -> Evaluation:  # fmt: skip
    """Play every problem `samples` times and, if asked, once greedily, and store the evaluation.

    Args:
        label: `eval-2`, or `grpo-3@5` for one between the steps of a grpo stage.
        show: Drive the progress display, which a training stage uses otherwise.
        kept: Groups of an earlier attempt, which are not played again.
    """
    playing = Playing(
        run=run, rules=_rules_of(run, settings), stage=stage, step=step, show=show,
        sources={problem.problem_id: problem.origin for problem in problems},
    )  # fmt: skip
    playing.groups += kept
    if show:
        playing.show_begin(label, len(problems))
    version = await playing.play_all(problems)
    result = await anyio.to_thread.run_sync(
        lambda: evaluate_groups(
            playing.groups, problems, stage=label, step=step, version=version,
            max_turns=settings.max_turns, at=time.time(),
        )
    )  # fmt: skip
    trained = await anyio.to_thread.run_sync(partial(count_trained, run, problems, stage=stage))
    shared = await anyio.to_thread.run_sync(num_shared, problems, run.problems)
    detail = {**result.detail, "num_trained_problems": trained, "num_shared_problems": shared}
    result = replace(result, detail={**detail, "baseline": run.experiment.judge.baseline})
    await run.writer.put(result)
    return result


@dataclass(slots=True, kw_only=True)
class Playing:
    run: RunContext
    rules: Sequence[Rules]
    """One for samples, and one for greedy rollouts if there are any."""
    stage: int
    step: int
    show: bool
    groups: list[Group] = field(default_factory=list[Group])
    """Finished groups, those of an earlier attempt included."""
    sources: Mapping[str, str] = field(default_factory=dict[str, str])

    def show_begin(self, label: str, num_problems: int) -> None:
        progress = self.run.progress
        total = num_problems * sum(rule.group_size for rule in self.rules)
        busy = self.run.busy()
        progress.enter(label, stage=self.stage, total=total, unit="rollouts", busy=busy)
        progress.done += sum(len(group.trajectories) for group in self.groups)

    async def play_all(self, problems: Sequence[Problem]) -> int:
        """Plays what an earlier attempt has not. Returns the policy version that played."""
        done = {(group.problem_id, group.is_greedy) for group in self.groups}
        sizes = [rule.group_size for rule in self.rules]
        limiter = anyio.CapacityLimiter(groups_in_flight(self.run.experiment.serve, sizes))
        async with self.run.pinned_ports() as ports:
            version = self.run.weights.version
            async with anyio.create_task_group() as tasks:
                for problem in problems:
                    for rule in self.rules:
                        if (problem.problem_id, rule.temperature == 0.0) not in done:
                            tasks.start_soon(self._play, problem, rule, ports, limiter)
        return version

    async def _play(
        self, problem: Problem, rule: Rules, ports: Ports, limiter: anyio.CapacityLimiter
    ) -> None:
        async with limiter:
            place = GroupPlace(
                group_id=next(self.run.group_ids), purpose=Purpose.EVAL, stage=self.stage,
                step=self.step, seed_place=problem_place(problem.problem_id),
            )  # fmt: skip
            self.groups.append(await play_group(problem, place=place, rules=rule, ports=ports))
            if self.show:
                self._show_group(rule)

    def _show_group(self, rule: Rules) -> None:
        progress = self.run.progress
        progress.done += rule.group_size
        sampled = [group for group in self.groups if not group.is_greedy]
        parts = {"pass@1": sampled}
        for group in sampled if len(set(self.sources.values())) > 1 else ():
            parts.setdefault(self.sources[group.problem_id], []).append(group)
        progress.numbers = {name: group_numbers(each)["pass_rate"] for name, each in parts.items()}


def _rules_of(run: RunContext, settings: EvalSettings) -> list[Rules]:
    seed = run.experiment.eval.seed
    rules_of = partial(run.rules, max_turns=settings.max_turns, seed=seed)
    rules = [rules_of(group_size=settings.samples, temperature=settings.temperature)]
    if settings.greedy:
        rules.append(rules_of(group_size=1, temperature=0.0))
    return rules


def groups_in_flight(serve: ServeTable, sizes: Sequence[int]) -> int:
    """Number of groups played at once, so that they fill the slots of all replicas. `sizes`:
    rollouts in each group of a problem."""
    slots = serve.slots * serve.num_servers
    return max(2, math.ceil(ROLLOUTS_PER_SLOT * slots * len(sizes) / sum(sizes)))


async def run_eval_stage(run: RunContext, stage: EvalStage, index: int) -> Evaluation:
    heldout = run.problems_of(Split.HELDOUT)
    problems = spread(heldout, stage.num_problems or len(heldout))
    settings = EvalSettings.of(run.experiment.eval, stage)
    kept = await keep_finished(run, problems, settings, stage=index)
    return await evaluate(
        run, problems, settings, label=stage.label(index), stage=index, step=run.weights.step,
        show=True, kept=kept,
    )  # fmt: skip


def spread(problems: Sequence[Problem], count: int) -> list[Problem]:
    """`count` problems at even distances in the list, so that a part has every family of the
    whole."""
    if count >= len(problems):
        return list(problems)
    return [problems[i * len(problems) // count] for i in range(count)]


async def keep_finished(
    run: RunContext, problems: Sequence[Problem], settings: EvalSettings, *, stage: int
) -> list[Group]:
    """Groups that an interrupted attempt at this stage finished, under the same prompts, weights
    and settings and without a fault of the machine. Recorded, since they still count."""
    if run.attempt <= 1:
        return []

    def read() -> list[Group]:
        with open_run(run.paths) as reader:
            return finished_groups(reader, stage=stage, step=run.weights.step)

    names = {problem.problem_id for problem in problems}
    found = [
        group
        for group in await anyio.to_thread.run_sync(read)
        if group.problem_id in names and _is_same(group, settings, run)
    ]
    if found:
        message = f"eval-{stage}: {len(found)} groups of earlier attempts are kept"
        await run.record(KEPT, message, says=True, stage=stage, step=run.weights.step)
    return found


def _is_same(group: Group, settings: EvalSettings, run: RunContext) -> bool:
    """True if the group would be played in the same way now."""
    size = (1 if settings.greedy else 0) if group.is_greedy else settings.samples
    return len(group.trajectories) == size and all(
        each.end is not End.INFRA
        and len(each.turns) <= settings.max_turns
        and (each.end is not End.MAX_TURNS or len(each.turns) == settings.max_turns)
        and all(
            turn.prompt_hash == run.prompts.hash
            and turn.completion.min_version == turn.completion.max_version == run.weights.version
            for turn in each.turns
        )
        for each in group.trajectories
    )


def finished_groups(reader: RunReader, *, stage: int, step: int) -> list[Group]:
    """Complete groups of the evaluations of one stage and step, oldest first; of groups of one
    problem those of the last attempt that began one."""
    place = {"stage": stage, "step": step}
    rows = [*reader.rows(_TURNS, place), *reader.rows(_WITHOUT_TURNS, place)]
    rows.sort(key=lambda row: (row["group_id"], row["rollout"], row["turn"] or 0))
    return read_groups(rows)


def count_trained(run: RunContext, problems: Sequence[Problem], *, stage: int) -> int:
    """Number of these problems that stages up to `stage` trained on. Reads files and the store:
    call it in a thread."""
    with open_run(run.paths) as reader:
        played = {name for (name,) in reader.query(_SAME, {"stage": stage}).rows}
    asked, digests = frozenset[str](), frozenset[str]()
    sources = {s.source for s in run.experiment.stage[:stage] if isinstance(s, SftStage)}
    if "data" in sources:
        asked, digests = _read_asked(run.paths)
    digests |= {digest_of(each) for each in run.problems if each.problem_id in played}
    return sum(
        problem.problem_id in played
        or run.prompts.first_messages(problem)[-1].content in asked
        or problem.source.strip() in asked
        or digest_of(problem) in digests
        for problem in problems
    )


@lru_cache(maxsize=1)  # the rows of a run do not change, and thousands take seconds
def _read_asked(paths: RunPaths) -> tuple[frozenset[str], frozenset[str]]:
    """Texts of the users' messages in the SFT rows of a run, and the digests of models in them."""
    pairs = load_pairs(paths)
    asked = {each.content for pair in pairs for each in pair.messages if each.role == "user"}
    return frozenset(asked), frozenset(found for text in asked for found in digests_in(text))


EXCUSE_EVERY_S = 1.0
"""Far below every deadline that a held trainer could miss."""


def evaluated_steps(run: RunContext, stage: int) -> set[int]:
    """Steps of a stage with a stored evaluation. Reads the store: call it in a thread."""
    with open_run(run.paths) as reader:
        sql = "SELECT step FROM v_evaluations WHERE stage_index = ? AND stage LIKE '%@%'"
        found = reader.query(sql, (stage,))
    return {step for (step,) in found.rows}


class Midway:
    """Evaluations between the steps of one stage.

    The weights must not change during an evaluation, so the trainer is held at its next `take`;
    otherwise a publish would have to wait, and all turns with it.
    """

    def __init__(
        self, run: RunContext, stage: GrpoStage, desk: TrainerDesk, *, evaluated: Iterable[int] = ()
    ) -> None:
        """`evaluated`: Steps that earlier attempts evaluated."""
        self._run, self._stage, self._desk = run, stage, desk
        table = run.experiment.eval
        self._send, self._receive = anyio.create_memory_object_stream[int](1)
        self._problems = spread(run.problems_of(Split.HELDOUT), table.num_problems)
        self._settings = EvalSettings(
            samples=1, greedy=False, max_turns=table.max_turns, temperature=table.temperature
        )
        self._asked = set(evaluated)
        self._done = anyio.Event()

    def ask(self) -> str:
        """Request an evaluation after the current step; returns a message for the user. Raises
        ConfigError during the last step."""
        desk, last = self._desk, self._stage.steps
        label = self._stage.label(desk.stage)
        if max(desk.trained_step, self._desk.published.step) + 1 >= last:
            raise ConfigError(
                f"{label}: its last step runs, {last} of {last}; what comes out is evaluated by a "
                'stage of kind "eval" after it'
            )
        desk.is_evaluation_wanted = True
        return f"{label}: evaluates after the step that runs"

    def after(self, step: int) -> None:
        """Called at each publish. An evaluation is skipped if another one already waits."""
        every = self._run.experiment.eval.every
        is_wanted = step == self._desk.evaluated_step
        is_due = is_wanted or bool(every and step % every == 0)
        if is_due and step < self._stage.steps and step not in self._asked:
            with suppress(anyio.WouldBlock):
                self._send.send_nowait(step)
                self._asked.add(step)
                self._desk.hold()
                if is_wanted:
                    self._desk.is_evaluation_wanted, self._desk.evaluated_step = False, 0

    async def run(self) -> None:
        """Play the evaluations as they become due, until `finish`. A stop drops the current one."""
        async with self._send, self._receive:
            async for step in self._receive:
                async with self._run.stop.dropping() as beside:
                    beside.start_soon(self._excuse_trainer)
                    label = f"{self._stage.label(self._desk.stage)}@{step}"
                    result = await evaluate(
                        self._run, self._problems, self._settings, label=label,
                        stage=self._desk.stage, step=step, show=False,
                    )  # fmt: skip
                    found = result.detail
                    is_trained = found["num_trained_problems"] or found["num_shared_problems"]
                    name = "trained_on" if is_trained else "held_out"
                    numbers = self._run.progress.numbers
                    numbers[name] = result.pass_at_1
                    for source, part in found["by_source"].items():
                        numbers[f"{name} {source}"] = part["pass_at_1"]
                if not self._receive.statistics().current_buffer_used:
                    self._desk.release()
        self._done.set()

    async def _excuse_trainer(self) -> None:
        """Keep waits for the next publish from timing out while the trainer is held."""
        while True:
            self._desk.published.advance(self._desk.published.step)
            await anyio.sleep(EXCUSE_EVERY_S)

    async def finish(self) -> None:
        """Accept no more evaluations and wait for the current one, whose requests have their own
        deadlines."""
        self._send.close()
        await self._done.wait()


KIND = "other_baseline"
OTHER = {"eager": "compile", "compile": "eager"}
IN_PROGRESS = 4
"""Kernels judged at once per GPU: one is timed while others are compiled and checked."""

_BEST = """
SELECT problem_id, code, baseline_us FROM (SELECT *, row_number() OVER (
        PARTITION BY problem_id ORDER BY speedup_low DESC, turn_id) AS place
    FROM v_turns WHERE purpose IN ('eval', 'search') AND stage = ? AND is_correct
    AND speedup IS NOT NULL)
WHERE place = 1
"""


async def with_other_baseline(
    run: RunContext, result: Evaluation, judge: JudgeTable, *, stage: int
) -> Evaluation:
    """The evaluation with `speed_other` in its detail, stored again; unchanged where nothing was
    timed. Raises as `open_pool`."""
    known = await measure_other(run, judge, stage=stage)
    if known is None:
        return result
    trajectories = await anyio.to_thread.run_sync(lambda: _sampled(run, stage))
    speed = {"baseline": OTHER[judge.baseline], **against_other(trajectories, known)}
    result = replace(result, detail={**result.detail, "speed_other": speed})
    await run.writer.put(result)
    return result


async def measure_other(
    run: RunContext, judge: JudgeTable, *, stage: int
) -> dict[str, float] | None:
    """The other baseline's time over the own one's by problem, those of earlier attempts included;
    None where the stage timed nothing. Raises as `open_pool`."""
    other = OTHER[judge.baseline]
    best, known = await anyio.to_thread.run_sync(lambda: _measured(run, stage, other))
    left = {name: row for name, row in best.items() if name not in known}
    if not best:
        return None
    if left:
        run.progress.enter(
            f"stage {stage}: {other}", stage=stage, total=len(left), unit="kernels", busy=run.busy()
        )
        table = judge.model_copy(update={"baseline": other, "also": []})
        log_dir = run.log_dir / KIND
        log_dir.mkdir(exist_ok=True)
        with open_socket_dir() as sockets:
            async with open_pool(
                table, socket_dir=sockets, log_dir=log_dir, observer=run.observer,
                gpus=run.placement.judge,
            ) as pool:  # fmt: skip
                known |= await measure_ratios(run, pool, left, other=other, stage=stage)
    return known


async def measure_ratios(
    run: RunContext, pool: Pool, kernels: Mapping[str, Mapping[str, Any]], *, other: str, stage: int
) -> dict[str, float]:
    """The other baseline's time over the own one's, by problem. A problem whose kernel gets no time
    is left out."""
    problems = {problem.problem_id: problem for problem in run.problems}
    limiter = anyio.CapacityLimiter(IN_PROGRESS * max(1, len(run.placement.judge)))
    found: dict[str, float] = {}

    async def measure(problem: Problem, row: Mapping[str, Any]) -> None:
        async with limiter:
            verdict = await pool.judge(problem, row["code"])
        run.progress.done += 1
        name, timing = problem.problem_id, verdict.timing
        if timing is None:
            message = f"{name}: no time against {other}: {verdict.status} {verdict.reason}"
            await run.record(KIND, message, stage=stage, problem=name, status=verdict.status)
            return
        found[name] = timing.baseline_us / row["baseline_us"]
        message = f"{name}: {other} {timing.baseline_us:.1f} us"
        await run.record(
            KIND, message, stage=stage, problem=name, baseline=other, ratio=found[name],
            baseline_us=timing.baseline_us, candidate_us=timing.candidate_us,
            speedup=timing.speedup,
        )  # fmt: skip

    async with anyio.create_task_group() as tasks:
        for name, row in kernels.items():
            tasks.start_soon(measure, problems[name], row)
    return found


def against_other(
    rollouts: list[tuple[str, Trajectory]], ratios: Mapping[str, float]
) -> dict[str, Any]:
    """`measure_speed` with every speed-up times the ratio of its problem. Problems with a correct
    kernel and no ratio are left out and counted in `num_left_out`."""
    correct = ((name, turn.verdict.is_correct) for name, each in rollouts for turn in each.turns)
    left_out = {name for name, is_correct in correct if is_correct} - ratios.keys()
    scaled = [
        (
            name,
            replace(each, turns=tuple(_scaled(turn, ratios.get(name, 1.0)) for turn in each.turns)),
        )
        for name, each in rollouts
        if name not in left_out
    ]
    return {"num_left_out": len(left_out), **measure_speed(scaled)}


def _scaled(turn: Turn, ratio: float) -> Turn:
    timing = turn.verdict.timing
    if timing is None:
        return turn
    timing = replace(timing, speedup=timing.speedup * ratio)
    return replace(turn, verdict=replace(turn.verdict, timing=timing))


def _measured(
    run: RunContext, stage: int, other: str
) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    with open_run(run.paths) as reader:
        best = {row["problem_id"]: row for row in reader.rows(_BEST, (stage,))}
        known = {
            event.data["problem"]: event.data["ratio"]
            for event in events(reader, kind=KIND)
            if event.data["stage"] == stage and event.data.get("baseline") == other
        }
    return best, known


def _sampled(run: RunContext, stage: int) -> list[tuple[str, Trajectory]]:
    with open_run(run.paths) as reader:
        groups = finished_groups(reader, stage=stage, step=run.weights.step)
    return [(g.problem_id, each) for g in groups if not g.is_greedy for each in g.trajectories]
