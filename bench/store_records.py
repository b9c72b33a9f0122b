"""Records of a synthetic run of any size, in the order of a real run (`bench/store.py`).

A run of N turns: evaluations at the start and every 50 steps, steps of 32 groups of 8 rollouts of
up to 3 turns whose answers get better, and a second attempt that plays the last evaluation before
it again and trains two steps again. Texts are slices of this repository's own source under a line
of their own, so that they compress as code does. Everything follows from the seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from store_turns import FAMILIES, MAX_TURNS, Player

from forge.records import (
    Attempt,
    AttemptEnd,
    Evaluation,
    Event,
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
)

if TYPE_CHECKING:
    from forge.store.write.rows import Record

NUM_PROBLEMS = 2000
GROUPS_A_STEP = 32
EVAL_EVERY = 50
EVAL_PROBLEMS = 100
BEGAN_AT = 1_790_000_000.0
TURNS_A_STEP = 590
"""Turns per step, its share of the evaluations included (measured)."""
TRAIN_KEYS = (
    "loss/mean",
    "entropy/mean",
    "kl_behaviour/mean",
    "grad_norm/value",
    "ratio/mean",
    "ratio/max",
    "clipped/share",
    "learning_rate/value",
    "tokens/sum",
    "samples/count",
    "step/seconds",
    "wait/seconds",
    "logprob_gap/mean",
    "micro_batches/count",
    "forward_tokens/sum",
    "skipped_updates/count",
)
ROLLOUT_KEYS = (
    "reward/mean",
    "pass_at_1/mean",
    "groups/count",
    "flat_groups/count",
    "samples/count",
    "tokens/sum",
    "in_flight_groups/count",
)


@dataclass
class Maker(Player):
    """Makes the records of one run."""

    _sample_id: int = 0

    def records(self, num_turns: int) -> Iterator[Record]:
        """All records, until at least this many turns are made."""
        yield Attempt(
            attempt=1,
            started_at=BEGAN_AT,
            commit="f369244",
            code_diff="",
            versions={"torch": "2.13"},
            machine={"cores": 64},
            seed=self.seed,
        )
        for name in ("serve-0", "serve-1", "judge-0", "judge-1", "trainer"):
            yield ProcessStart(
                attempt=1,
                name=name,
                pid=len(name),
                devices="GPU-0",
                log_path=f"{name}.log",
                started_at=BEGAN_AT,
            )
        yield from self.problems()
        yield from self.evaluation(stage=0, step=0, version=0, skill=0.02)
        num_steps = max(1, num_turns // TURNS_A_STEP)
        resume_at, step = num_steps // 2, 0
        while self.num_turns < num_turns:
            step += 1
            skill = 0.02 + 0.55 * min(1.0, step / num_steps) ** 0.7
            if step == resume_at:  # killed within an evaluation that the next attempt plays again
                step = max(1, step - 2)
                yield from self.plays(30, stage=2, step=step, version=step, skill=skill)
                yield Attempt(
                    attempt=2,
                    started_at=self.now,
                    commit="f369244",
                    code_diff="",
                    versions={},
                    machine={},
                    seed=self.seed,
                )
                resume_at = -1
                yield from self.evaluation(stage=2, step=step, version=step, skill=skill)
            yield from self.step(step, skill=skill)
            if step % EVAL_EVERY == 0:
                yield from self.evaluation(stage=1, step=step, version=step, skill=skill)
        yield ProcessEnd(attempt=2, name="trainer", pid=7, ended_at=self.now, reason="exit 0")
        yield AttemptEnd(attempt=2, ended_at=self.now, exit_code=0, reason="done")

    @property
    def now(self) -> float:
        """The run's clock, also for the writer: 20 turns a second."""
        return BEGAN_AT + self.num_turns / 20

    def problems(self) -> Iterator[Problem]:
        for number in range(NUM_PROBLEMS):
            family = FAMILIES[number % len(FAMILIES)]
            yield Problem(
                problem_id=f"{family}-{number:04d}",
                source=self.text(number, 900),
                family=family,
                level=1 + number % 3,
                split=Split.GRPO,
            )

    def step(self, step: int, *, skill: float) -> Iterator[Record]:
        """Records of one step: groups, samples of groups with a signal, their use, metrics, a
        publish.
        """
        offered: list[Sample] = []
        for _ in range(GROUPS_A_STEP):
            number = self._draw.randrange(NUM_PROBLEMS)
            group = self.group(
                number, purpose=Purpose.TRAIN, stage=1, step=step, version=step - 1, skill=skill
            )
            yield from self.as_played(group)
            if not group.is_flat:
                offered += self.samples(group)
        yield from offered
        for sample in offered:
            yield SampleUse(
                sample_id=sample.sample_id,
                group_id=sample.group_id,
                rollout=sample.rollout,
                turn=sample.turn,
                stage=1,
                step=step,
                advantage=sample.advantage,
                staleness=self._draw.choice((0, 0, 1)),
            )
        values = {f"train/{key}": self._draw.random() for key in TRAIN_KEYS}
        values |= {f"rollout/{key}": self._draw.random() for key in ROLLOUT_KEYS}
        values |= {
            f"idle/{role}/seconds": 10 * self._draw.random()
            for role in ("trainer", "serve", "judge")
        }
        values |= {"step/wall/seconds": 20.0}
        yield Metrics(stage=1, step=step, at=self.now, values=values)
        yield PolicyVersion(
            version=step,
            attempt=1,
            stage=1,
            step=step,
            path="weights",
            sha256="0",
            publish_s=0.4,
            probe_gap=1e-5,
        )
        if step % 10 == 0:
            yield Event(at=self.now, kind="checkpoint", message=f"step {step}", data={"step": step})

    def evaluation(self, *, stage: int, step: int, version: int, skill: float) -> Iterator[Record]:
        """Records of one evaluation: four samples and a greedy rollout for each problem, then the
        result.
        """
        yield from self.plays(EVAL_PROBLEMS, stage=stage, step=step, version=version, skill=skill)
        yield Evaluation(
            stage=f"grpo-{stage}@{step}",
            step=step,
            policy_version=version,
            at=self.now,
            num_problems=EVAL_PROBLEMS,
            num_samples=4,
            max_turns=MAX_TURNS,
            pass_at_1=skill,
            ci_low=skill / 2,
            ci_high=min(1.0, skill * 1.5),
            pass_at_k={1: skill, 4: min(1.0, 2 * skill)},
            pass_at_1_greedy=skill,
            pass_at_1_multi=skill,
            compile_rate=0.8,
            detail={
                "by_family": {f: {"num": 9, "pass_at_1": skill} for f in FAMILIES},
                "pass_at_k_ci": {"1": [0.0, 1.0]},
            },
        )

    def plays(
        self, num_problems: int, *, stage: int, step: int, version: int, skill: float
    ) -> Iterator[Record]:
        for number in range(num_problems):
            for is_greedy in (False, True):
                yield from self.as_played(
                    self.group(
                        number,
                        purpose=Purpose.EVAL,
                        stage=stage,
                        step=step,
                        version=version,
                        skill=skill,
                        is_greedy=is_greedy,
                    )
                )

    def as_played(self, group: Group) -> Iterator[Record]:
        """Records of a group in order of time: each turn, each rollout, then the group."""
        for trajectory in group.trajectories:
            yield from trajectory.turns
            yield trajectory
        yield group

    def samples(self, group: Group) -> Iterator[Sample]:
        for turn in (t for trajectory in group.trajectories for t in trajectory.turns):
            if turn.reward is not None:
                yield Sample(
                    sample_id=self._sample_id,
                    group_id=turn.group_id,
                    rollout=turn.rollout,
                    turn=turn.turn,
                    prompt_ids=turn.prompt_ids,
                    completion_ids=turn.completion.token_ids,
                    logprobs=turn.completion.logprobs,
                    advantage=turn.reward - 0.4,
                    policy_version=turn.completion.min_version,
                )
                self._sample_id += 1
