"""Synthetic records for the tests of store and views: a small run in memory, from a seed."""

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from forge.records import (
    Attempt,
    AttemptEnd,
    Completion,
    End,
    Evaluation,
    Event,
    Finish,
    Group,
    Metrics,
    PolicyVersion,
    Problem,
    ProcessEnd,
    ProcessStart,
    Purpose,
    Sample,
    SampleUse,
    Split,
    Status,
    Timing,
    Trajectory,
    Turn,
    Verdict,
)  # fmt: skip
from forge.store.reader import open_run
from forge.store.schema.views import view_names
from forge.store.write.writer import open_writer
from forge.views.statistics import measure_speed

EXPERIMENT = """name = "toy"
[model]
init = "tiny"
[[stage]]
kind = "eval"
[[stage]]
kind = "grpo"
steps = 3
learning_rate = 1e-4
"""


@dataclass(frozen=True)
class Options:
    """A `[store]` table as the writer sees it."""

    texts: str = "plain"
    keep_tokens: str = "all"
    min_free_bytes: int = 0


def problem(number: int = 0, *, family: str = "softmax", level: int = 1) -> Problem:
    source = f"# problem {number}\nclass Model: ...\n"
    name = f"{family}-{number:04d}"
    return Problem(problem_id=name, source=source, family=family, level=level, split=Split.GRPO)


def verdict(
    status: Status = Status.CORRECT, *, timing: Timing | None = None, num_launches: int = 1
) -> Verdict:
    is_correct = status is Status.CORRECT
    return Verdict(
        status=status, timing=timing, num_launches=num_launches,
        reason="ok" if is_correct else "mismatch",
        detail="" if is_correct else f"first mismatch at (0, 3): {status}",
        is_compiled=status in (Status.CORRECT, Status.WRONG),
        isolation="namespaces", phase_s={"extract": 0.001, "correct": 0.05}, harness="abc",
    )  # fmt: skip


def timing(speedup: float) -> Timing:
    return Timing(
        speedup=speedup, speedup_low=speedup * 0.9, candidate_us=100.0 / speedup,
        baseline_us=100.0, candidate_spread_us=1.0, baseline_spread_us=1.0,
    )  # fmt: skip


def turn(
    group_id: int,
    rollout: int = 0,
    number: int = 0,
    *,
    status: Status = Status.CORRECT,
    code: str = "",
    version: int = 0,
    prompt: str = "Write a kernel for softmax.",
    completion: str = "",
    speed: Timing | None = None,
    num_launches: int = 1,
    num_tokens: int = 12,
) -> Turn:
    reward = {Status.CORRECT: 0.8, Status.WRONG: 0.3}.get(status, 0.0) if status.is_scored else None
    terms = {} if reward is None else {
        "compiled": 0.3 * (reward > 0), "correct": 0.5 * (reward > 0.5)
    }  # fmt: skip
    body = code or f"@triton.jit\ndef kernel_{group_id}_{rollout}_{number}(): ...\n"
    thought = f"<think>g{group_id} r{rollout} t{number}</think>"
    return Turn(
        group_id=group_id, rollout=rollout, turn=number, prompt_ids=(1, 2, 3, number),
        prompt_text=prompt,
        completion=Completion(
            token_ids=tuple(range(num_tokens)),
            logprobs=tuple(-0.1 * i for i in range(num_tokens)),
            finish=Finish.STOP, min_version=version, max_version=version,
        ),
        completion_text=completion or f"{thought}\n```python\n{body}```",
        code=body, verdict=verdict(status, timing=speed, num_launches=num_launches),
        feedback="Outputs differ." if status is not Status.CORRECT else "Correct.",
        reward=reward, reward_terms=terms, generate_s=0.2, judge_s=0.1,
    )  # fmt: skip


def group(
    group_id: int,
    statuses: list[list[Status]],
    *,
    problem_id: str = "softmax-0000",
    purpose: Purpose = Purpose.TRAIN,
    stage: int = 1,
    step: int = 1,
    version: int = 0,
    is_greedy: bool = False,
    speed: Timing | None = None,
) -> Group:
    """A group whose rollout r has one turn per status in `statuses[r]`."""
    trajectories = []
    for rollout, row in enumerate(statuses):
        turns = tuple(
            turn(
                group_id, rollout, number, status=status, version=version,
                speed=speed if status is Status.CORRECT else None,
            )
            for number, status in enumerate(row)
        )  # fmt: skip
        end = End.CORRECT if row[-1] is Status.CORRECT else End.MAX_TURNS
        if not row[-1].is_scored:
            end = End.INFRA if row[-1] is Status.INFRA_ERROR else End.UNJUDGEABLE
        trajectories.append(
            Trajectory(
                group_id=group_id, rollout=rollout, problem_id=problem_id, turns=turns, end=end,
                returns=tuple(t.reward for t in turns),
            )
        )  # fmt: skip
    return Group(
        group_id=group_id, problem_id=problem_id, purpose=purpose, stage=stage, step=step,
        trajectories=tuple(trajectories), is_greedy=is_greedy,
        is_flat=len({t.returns for t in trajectories}) == 1,
    )  # fmt: skip


def with_turns(played: Group, change: Callable[[Turn], Turn]) -> Group:
    """The group with each of its turns changed."""
    trajectories = tuple(
        replace(each, turns=tuple(map(change, each.turns))) for each in played.trajectories
    )
    return replace(played, trajectories=trajectories)


def samples(group: Group, *, first_id: int) -> list[Sample]:
    turns = [t for trajectory in group.trajectories for t in trajectory.turns]
    return [
        Sample(
            sample_id=first_id + i, group_id=t.group_id, rollout=t.rollout, turn=t.turn,
            prompt_ids=t.prompt_ids, completion_ids=t.completion.token_ids,
            logprobs=t.completion.logprobs, advantage=0.5 - i,
            policy_version=t.completion.min_version,
        )
        for i, t in enumerate(turns)
    ]  # fmt: skip


def use(sample: Sample, *, stage: int = 1, step: int = 1, staleness: int = 0) -> SampleUse:
    return SampleUse(
        sample_id=sample.sample_id, group_id=sample.group_id, rollout=sample.rollout,
        turn=sample.turn, stage=stage, step=step, advantage=sample.advantage, staleness=staleness,
    )  # fmt: skip


def attempt(number: int = 1) -> Attempt:
    return Attempt(
        attempt=number, started_at=1_000.0 * number, commit="f369244", code_diff="",
        versions={"torch": "2.13"}, machine={"cores": 2}, seed=0,
    )  # fmt: skip


def evaluation(
    stage: str = "eval-0", *, step: int = 0, at: float = 1.0, pass_at_1: float = 0.25,
    timed: Group | None = None,
) -> Evaluation:  # fmt: skip
    """`timed`: the group whose figures of speed it has."""
    rollouts = [] if timed is None else [(timed.problem_id, one) for one in timed.trajectories]
    return Evaluation(
        stage=stage, step=step, policy_version=step, at=at, num_problems=2, num_samples=2,
        max_turns=2, pass_at_1=pass_at_1, ci_low=pass_at_1 / 2, ci_high=pass_at_1 * 1.5,
        pass_at_k={1: pass_at_1, 2: 0.5}, pass_at_1_greedy=0.5, pass_at_1_multi=0.5,
        compile_rate=0.75,
        detail={
            "by_family": {"softmax": {"num": 4, "pass_at_1": pass_at_1, "compile_rate": 0.75}},
            "pass_at_k_ci": {"1": [0.1, 0.4], "2": [0.2, 0.8]},
            "num_judged_problems": 2, "num_trained_problems": 0, "unjudgeable": {},
            **({"speed": measure_speed(rollouts)} if rollouts else {}),
        },
    )  # fmt: skip


def small_run(seed: int = 0) -> list:
    """Every record type, in the order that a run writes them: one evaluation, three steps of two
    groups."""
    rng = random.Random(seed)
    out: list = [
        attempt(),
        ProcessStart(
            attempt=1, name="serve-0", pid=11, devices="cpu", log_path="x.log", started_at=1_000.5
        ),
        problem(0),
        problem(1, family="matmul", level=2),
        Event(at=1_001.0, kind="stage_start", message="eval", data={"stage": 0}),
    ]
    for i, name in enumerate(("softmax-0000", "matmul-0001")):
        rows = [[Status.CORRECT], [Status.WRONG, Status.CORRECT]]
        out.append(group(i, rows, problem_id=name, purpose=Purpose.EVAL, stage=0, step=0))
    out += [evaluation(), Event(at=1_002.0, kind="stage_end", message="eval", data={"stage": 0})]
    out.append(Event(at=1_003.0, kind="stage_start", message="grpo", data={"stage": 1}))
    sample_id = 0
    for step in (1, 2, 3):
        for name in ("softmax-0000", "matmul-0001"):
            group_id = 2 * step + (name == "matmul-0001")
            rows = [
                [rng.choice([Status.WRONG, Status.COMPILE_ERROR]), Status.CORRECT],
                [Status.TIMEOUT],
            ]
            played = group(group_id, rows, problem_id=name, step=step, version=step - 1)
            offered = samples(played, first_id=sample_id)
            sample_id += len(offered)
            out += [played, *offered]
            if step < 3:
                out += [use(s, step=step, staleness=step - 1) for s in offered]
        values = {
            "train/loss/mean": 1.0 / step,
            "step/wall/seconds": float(step),
            "idle/trainer/seconds": 0.4 * step,
            "idle/judges/seconds": 1.2 if step == 3 else 0.0,  # 0.4 of the last, the longest step
        }
        out.append(Metrics(stage=1, step=step, at=1_010.0 + step, values=values))
        out.append(
            PolicyVersion(
                version=step, attempt=1, stage=1, step=step, path="w", sha256="0", publish_s=0.1,
                probe_gap=1e-5,
            )
        )  # fmt: skip
    out += [
        evaluation("grpo-1@3", step=3, at=2.0, pass_at_1=0.5),
        ProcessEnd(attempt=1, name="serve-0", pid=11, ended_at=1_050.0, reason="exit 0"),
        AttemptEnd(attempt=1, ended_at=1_051.0, exit_code=0, reason="done"),
    ]
    return out


def resumed_run() -> list:
    """`small_run`, killed after step 2 and during another evaluation, and resumed before step 2: it
    trains step 2 and plays the evaluation again."""
    records = small_run()
    offered = [r for r in records if isinstance(r, SampleUse) and r.step == 2]

    def played(group_id: int, name: str) -> Group:
        rows = [[Status.CORRECT], [Status.WRONG]]
        return group(group_id, rows, problem_id=name, purpose=Purpose.EVAL, stage=2, step=3)

    return [
        *records,
        played(20, "softmax-0000"),
        attempt(2),
        *offered,
        played(21, "softmax-0000"),
        played(22, "matmul-0001"),
    ]


def make_root(root: Path) -> None:
    """Creates the run directory as the supervisor does, with the resolved experiment."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "experiment.toml").write_text(EXPERIMENT)


async def write_run(
    root: Path, records: list, *, texts: str = "plain", keep_tokens: str = "all"
) -> Path:
    """Creates a run directory with these records."""
    make_root(root)
    async with open_writer(root, Options(texts=texts, keep_tokens=keep_tokens)) as writer:
        await writer.put(*records)
        await writer.flush()
    return root


def edit(database: Path, sql: str, *values: object) -> None:
    """Changes a database by hand."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute(sql, values)


def read_views(root: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows of each view that is shown, by its name."""
    views = [view for view in view_names() if view.startswith("v_")]
    with open_run(root) as reader:
        return {
            view: sorted(reader.query(f"SELECT * FROM {view}").rows, key=repr) for view in views
        }
