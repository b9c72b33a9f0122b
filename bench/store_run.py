"""Records of a synthetic run of any size, in the order of a real run (`bench/store.py`).

Steps of 32 groups of 8 rollouts of up to 3 turns, whose answers get better, and an evaluation every
50 steps. Texts are slices of this repository's own source, so that they compress as code does.
Everything follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forge.records import (
    Attempt,
    AttemptEnd,
    Completion,
    End,
    Evaluation,
    Finish,
    Group,
    Metrics,
    PolicyVersion,
    Problem,
    Purpose,
    Sample,
    SampleUse,
    Split,
    Status,
    Timing,
    Trajectory,
    Turn,
    Verdict,
)

FAMILIES = ("elementwise", "softmax", "matmul", "norm", "reduce", "conv", "attention", "loss")
NUM_PROBLEMS, GROUPS_A_STEP, SIBLINGS, MAX_TURNS = 2000, 32, 8, 3
EVAL_EVERY, EVAL_PROBLEMS = 50, 100
BEGAN_AT = 1_790_000_000.0
TURNS_A_STEP = 590
"""Turns of a step, its share of the evaluations included (measured)."""
NUM_METRICS = 28
FAILURES = {
    (Status.WRONG, "mismatch"): 40,
    (Status.COMPILE_ERROR, "syntax_error"): 20,
    (Status.RUNTIME_ERROR, "out_of_bounds"): 22,
    (Status.TIMEOUT, "deadline:correct"): 3,
    (Status.REJECTED, "no_code_block"): 9,
}
"""Verdicts of answers that are not correct, with their weights."""
PHASES = ("screen", "sandbox", "reference", "compile", "correct", "time", "end")


class SyntheticRun:
    """Makes the records of one run; `num_turns` counts the turns so far."""

    def __init__(self, *, text_bytes: int, num_tokens: int = 24, seed: int = 0) -> None:
        """`text_bytes` is the size of a turn's texts, `num_tokens` the mean of a completion."""
        self.num_turns, self._text_bytes, self._seed = 0, text_bytes, seed
        self._draw = draw = random.Random(seed)
        sources = sorted((Path(__file__).parents[1] / "forge").rglob("*.py"))
        self._corpus = "".join(path.read_text(encoding="utf-8") for path in sources)
        lengths = [max(1, int(draw.lognormvariate(0.0, 0.6) * num_tokens)) for _ in range(512)]
        self._ids = [tuple(draw.randrange(32_000) for _ in range(size)) for size in lengths]
        self._logprobs = [tuple(-draw.expovariate(2.0) for _ in ids) for ids in self._ids]
        self._group_id = self._sample_id = -1

    @property
    def now(self) -> float:
        """The run's clock, also for the writer: 20 turns a second."""
        return BEGAN_AT + self.num_turns / 20

    def records(self, num_turns: int) -> Iterator[Any]:
        """All records, until at least this many turns are made."""
        about: dict[str, Any] = {
            "commit": "f369244",
            "code_diff": "",
            "versions": {},
            "machine": {},
        }
        yield Attempt(attempt=1, started_at=BEGAN_AT, seed=self._seed, **about)
        for number in range(NUM_PROBLEMS):
            yield Problem(
                problem_id=problem_id(number), source=self._text(number, 900),
                family=FAMILIES[number % len(FAMILIES)], level=1 + number % 3, split=Split.GRPO,
            )  # fmt: skip
        num_steps, step = max(1, num_turns // TURNS_A_STEP), 0
        while self.num_turns < num_turns:
            step += 1
            skill = 0.02 + 0.55 * min(1.0, step / num_steps) ** 0.7
            yield from self._step(step, skill=skill)
            if step % EVAL_EVERY == 0:
                yield from self._evaluation(step, skill=skill)
        yield AttemptEnd(attempt=1, ended_at=self.now, exit_code=0, reason="done")

    def _step(self, step: int, *, skill: float) -> Iterator[Any]:
        """Records of one step: groups, samples of groups with a signal, their use, metrics, a
        publish."""
        offered: list[Sample] = []
        for _ in range(GROUPS_A_STEP):
            number = self._draw.randrange(NUM_PROBLEMS)
            group = self._group(number, step=step, skill=skill, size=SIBLINGS)
            yield from as_played(group)
            if not group.is_flat:
                offered += self._samples(group)
        yield from offered
        for sample in offered:
            yield SampleUse(
                sample_id=sample.sample_id, group_id=sample.group_id, rollout=sample.rollout,
                turn=sample.turn, stage=1, step=step, advantage=sample.advantage,
                staleness=self._draw.choice((0, 0, 1)),
            )  # fmt: skip
        values = {f"train/key{number}/mean": self._draw.random() for number in range(NUM_METRICS)}
        values |= {f"idle/{role}/seconds": self._draw.random() for role in ("trainer", "serve")}
        yield Metrics(stage=1, step=step, at=self.now, values=values | {"train/loss/mean": 0.1})
        yield PolicyVersion(
            version=step, attempt=1, stage=1, step=step, path="weights", sha256="0", publish_s=0.4,
            probe_gap=1e-5,
        )  # fmt: skip

    def _evaluation(self, step: int, *, skill: float) -> Iterator[Any]:
        for number in range(EVAL_PROBLEMS):
            yield from as_played(self._group(number, step=step, skill=skill, size=4, is_eval=True))
        yield Evaluation(
            stage=f"grpo-1@{step}", step=step, policy_version=step, at=self.now,
            num_problems=EVAL_PROBLEMS, num_samples=4, max_turns=MAX_TURNS, pass_at_1=skill,
            ci_low=skill / 2, ci_high=min(1.0, skill * 1.5), pass_at_k={1: skill},
            pass_at_1_greedy=skill, pass_at_1_multi=skill, compile_rate=0.8,
            detail={
                "num_judged_problems": EVAL_PROBLEMS,
                "by_family": {family: {"num": 9, "pass_at_1": skill} for family in FAMILIES},
            },
        )  # fmt: skip

    def _group(
        self, number: int, *, step: int, skill: float, size: int, is_eval: bool = False
    ) -> Group:
        self._group_id += 1
        odds = min(0.95, max(0.005, skill * self._draw.lognormvariate(0.0, 0.8)))
        prompt = f"Problem {number}.\n" + self._text(number, 900)
        rollouts = tuple(
            self._rollout(rollout, number, prompt=prompt, step=step, odds=odds)
            for rollout in range(size)
        )
        return Group(
            group_id=self._group_id, problem_id=problem_id(number), trajectories=rollouts,
            purpose=Purpose.EVAL if is_eval else Purpose.TRAIN, stage=1, step=step,
            is_flat=len({rollout.returns for rollout in rollouts}) == 1,
        )  # fmt: skip

    def _rollout(
        self, rollout: int, number: int, *, prompt: str, step: int, odds: float
    ) -> Trajectory:
        turns: list[Turn] = []
        while len(turns) < MAX_TURNS and not (turns and turns[-1].verdict.is_correct):
            turns.append(
                self._turn(rollout, len(turns), number, prompt=prompt, step=step, odds=odds)
            )
        is_correct = turns[-1].verdict.is_correct
        return Trajectory(
            group_id=self._group_id, rollout=rollout, problem_id=problem_id(number),
            turns=tuple(turns), end=End.CORRECT if is_correct else End.MAX_TURNS,
            returns=tuple(turn.reward for turn in turns),
        )  # fmt: skip

    def _turn(
        self, rollout: int, turn: int, number: int, *, prompt: str, step: int, odds: float
    ) -> Turn:
        self.num_turns += 1
        draw, verdict = self._draw, self._verdict(odds)
        correct = 0.5 * verdict.is_correct
        terms = {"compiled": 0.3 * verdict.is_compiled, "correct": correct, "speedup": correct / 5}
        # One in ten answers is one of three that its problem often gets, as a policy narrows.
        mark = 3 * number + draw.randrange(3) if draw.random() < 0.1 else -self.num_turns
        code = f"# kernel {mark}\n" + self._text(mark, self._text_bytes * 4 // 10)
        pick = draw.randrange(len(self._ids))
        thinking = self._text(mark, self._text_bytes // 10)
        return Turn(
            group_id=self._group_id, rollout=rollout, turn=turn, prompt_ids=self._ids[number % 512],
            prompt_text=prompt if turn == 0 else f"{prompt}\n{self._text(self.num_turns, 400)}",
            completion=Completion(
                token_ids=self._ids[pick], logprobs=self._logprobs[pick], finish=Finish.STOP,
                min_version=step, max_version=step,
            ),
            completion_text=f"<think>\n{thinking}\n</think>\n```python\n{code}\n```",
            code=code, verdict=verdict, feedback=f"{verdict.status}.\n{verdict.detail}",
            reward=sum(terms.values()), reward_terms=terms,
            generate_s=draw.lognormvariate(1.5, 0.5), judge_s=draw.lognormvariate(-1.0, 0.5),
        )  # fmt: skip

    def _verdict(self, odds: float) -> Verdict:
        draw = self._draw
        is_correct, speedup = draw.random() < odds, draw.lognormvariate(0.1, 0.5)
        ((status, reason),) = draw.choices(list(FAILURES), list(FAILURES.values()))
        timing = Timing(
            speedup=speedup, speedup_low=0.95 * speedup, candidate_us=200.0 / speedup,
            baseline_us=200.0, candidate_spread_us=2.0, baseline_spread_us=2.0,
            achieved_gbps=900.0, achieved_tflops=12.0, roofline_share=0.4,
        )  # fmt: skip
        text = self._text(draw.randrange(1 << 30), self._text_bytes // 20)
        return Verdict(
            status=Status.CORRECT if is_correct else status, reason="ok" if is_correct else reason,
            detail="" if is_correct else text, num_launches=draw.randrange(4),
            is_compiled=is_correct or status is Status.WRONG, torch_share=0.0,
            timing=timing if is_correct else None, isolation="namespaces", caps="cgroup",
            device="NVIDIA H200", harness="9f2c51d0",
            phase_s={phase: round(draw.expovariate(20.0), 6) for phase in PHASES},
        )  # fmt: skip

    def _samples(self, group: Group) -> Iterator[Sample]:
        for turn in (turn for trajectory in group.trajectories for turn in trajectory.turns):
            self._sample_id += 1
            yield Sample(
                sample_id=self._sample_id, group_id=turn.group_id, rollout=turn.rollout,
                turn=turn.turn, prompt_ids=turn.prompt_ids, advantage=(turn.reward or 0) - 0.4,
                completion_ids=turn.completion.token_ids, logprobs=turn.completion.logprobs,
                policy_version=turn.completion.min_version,
            )  # fmt: skip

    def _text(self, mark: int, size: int) -> str:
        """Source code of `size` characters; the same mark gives the same text."""
        begin = hash((mark, self._seed)) % (len(self._corpus) - size)
        return self._corpus[begin : begin + size]


def problem_id(number: int) -> str:
    return f"{FAMILIES[number % len(FAMILIES)]}-{number:04d}"


def as_played(group: Group) -> Iterator[Any]:
    """Records of a group in order of time: each turn, each rollout, then the group."""
    for trajectory in group.trajectories:
        yield from trajectory.turns
        yield trajectory
    yield group
