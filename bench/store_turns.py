"""Synthetic rollouts: the turns, verdicts and texts of one group (`bench/store_records.py`)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

from forge.records import (
    Completion,
    End,
    Finish,
    Group,
    Purpose,
    Status,
    Timing,
    Trajectory,
    Turn,
    Verdict,
)

FAMILIES = ("elementwise", "softmax", "matmul", "norm", "reduce", "conv", "attention", "loss")
SIBLINGS = 8
MAX_TURNS = 3
FAILURES = (
    (Status.WRONG, "mismatch", 40),
    (Status.WRONG, "shape", 3),
    (Status.COMPILE_ERROR, "syntax_error", 12),
    (Status.COMPILE_ERROR, "not_triton", 9),
    (Status.COMPILE_ERROR, "import_error", 2),
    (Status.RUNTIME_ERROR, "out_of_bounds", 14),
    (Status.RUNTIME_ERROR, "exception", 8),
    (Status.TIMEOUT, "deadline:correct", 3),
    (Status.REJECTED, "no_code_block", 5),
    (Status.REJECTED, "unclosed_thinking", 4),
    (Status.INFRA_ERROR, "judge_died", 1),
)
PHASES = ("screen", "sandbox", "reference", "compile", "correct", "time", "end")


@dataclass
class Player:
    """Plays groups; `num_turns` counts the turns so far."""

    text_bytes: int
    """Characters of all texts of a turn, without the prompt, which siblings share."""
    num_tokens: int = 24
    """Mean completion tokens of a turn; they are in tokens.db and only cost time."""
    program_bytes: int = 0
    """Size of each captured program, compressed; equal answers have equal ones."""
    seed: int = 0
    num_turns: int = 0
    _group_id: int = 0
    _draw: random.Random = field(init=False)
    _corpus: str = field(init=False)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        sources = sorted((Path(__file__).parents[1] / "forge").rglob("*.py"))
        self._corpus = "".join(path.read_text(encoding="utf-8") for path in sources)
        self._lengths = [
            max(1, int(self._draw.lognormvariate(0.0, 0.6) * self.num_tokens)) for _ in range(512)
        ]
        self._ids = [tuple(self._draw.randrange(32_000) for _ in range(n)) for n in self._lengths]
        self._logprobs = [tuple(-self._draw.expovariate(2.0) for _ in ids) for ids in self._ids]

    def problem_id(self, number: int) -> str:
        return f"{FAMILIES[number % len(FAMILIES)]}-{number:04d}"

    def group(
        self,
        number: int,
        *,
        purpose: Purpose,
        stage: int,
        step: int,
        version: int,
        skill: float,
        is_greedy: bool = False,
    ) -> Group:
        group_id, self._group_id = self._group_id, self._group_id + 1
        siblings = SIBLINGS if purpose is Purpose.TRAIN else 1 if is_greedy else 4
        odds = min(0.95, max(0.005, skill * self._draw.lognormvariate(0.0, 0.8)))
        prompt = f"Problem {number}, level {1 + number % 3}.\n" + self.text(number, 900)
        rollouts = tuple(
            self.rollout(group_id, r, number, prompt=prompt, version=version, odds=odds)
            for r in range(siblings)
        )
        return Group(
            group_id=group_id,
            problem_id=self.problem_id(number),
            purpose=purpose,
            stage=stage,
            step=step,
            trajectories=rollouts,
            is_greedy=is_greedy,
            is_flat=len({r.returns for r in rollouts}) == 1,
        )

    def rollout(
        self, group_id: int, rollout: int, number: int, *, prompt: str, version: int, odds: float
    ) -> Trajectory:
        turns: list[Turn] = []
        while len(turns) < MAX_TURNS and not (turns and turns[-1].verdict.is_correct):
            turns.append(
                self.turn(
                    group_id, rollout, len(turns), number, prompt=prompt, version=version, odds=odds
                )
            )
        end = End.CORRECT if turns[-1].verdict.is_correct else End.MAX_TURNS
        return Trajectory(
            group_id=group_id,
            rollout=rollout,
            problem_id=self.problem_id(number),
            turns=tuple(turns),
            end=end,
            returns=tuple(t.reward for t in turns),
        )

    def turn(
        self,
        group_id: int,
        rollout: int,
        turn: int,
        number: int,
        *,
        prompt: str,
        version: int,
        odds: float,
    ) -> Turn:
        self.num_turns += 1
        draw = self._draw
        verdict = self.verdict(odds)
        terms: dict[str, float] = {}
        if verdict.status.is_scored:
            low = verdict.timing.speedup_low if verdict.timing else 0.0
            terms = {
                "compiled": 0.3 * verdict.is_compiled,
                "correct": 0.5 * verdict.is_correct,
                "speedup": max(0.0, 0.2 * (low - 1.0)),
            }
        # One in ten answers is one of three that its problem often gets, as a policy narrows.
        mark = 3 * number + draw.randrange(3) if draw.random() < 0.1 else -self.num_turns
        code = f"# kernel {mark}\n" + self.text(mark, self.text_bytes * 4 // 10)
        if self.program_bytes and verdict.reason != "no_code_block":
            program = random.Random(mark).randbytes(self.program_bytes)
            verdict = replace(verdict, program=program)
        pick = draw.randrange(len(self._ids))
        feedback = "" if verdict.is_correct else verdict.detail
        return Turn(
            group_id=group_id,
            rollout=rollout,
            turn=turn,
            prompt_ids=self._ids[number % 512],
            prompt_text=prompt if turn == 0 else f"{prompt}\n{self.text(self.num_turns, 400)}",
            completion=Completion(
                token_ids=self._ids[pick],
                logprobs=self._logprobs[pick],
                finish=Finish.LENGTH if draw.random() < 0.04 else Finish.STOP,
                min_version=version,
                max_version=version,
            ),
            completion_text=f"<think>\n{self.text(mark, self.text_bytes // 10)}\n</think>\n"
            f"```python\n{code}\n```",
            code=code if verdict.reason != "no_code_block" else "",
            verdict=verdict,
            feedback=f"Your kernel is {verdict.status}.\n{feedback}",
            reward=sum(terms.values()) if terms else None,
            reward_terms=terms,
            generate_s=draw.lognormvariate(1.5, 0.5),
            judge_s=draw.lognormvariate(-1.0, 0.5),
        )

    def verdict(self, odds: float) -> Verdict:
        draw = self._draw
        status, reason, detail = Status.CORRECT, "ok", ""
        if draw.random() >= odds:
            ((status, reason, _),) = draw.choices(FAILURES, [weight for *_, weight in FAILURES])
            detail = f"{reason} at ({draw.randrange(64)}, {draw.randrange(9999)})\n" + self.text(
                draw.randrange(1 << 30), self.text_bytes // 20
            )
        is_timed = status is Status.CORRECT
        speedup = draw.lognormvariate(0.1, 0.5)
        timing = Timing(
            speedup=speedup,
            speedup_low=0.95 * speedup,
            candidate_us=200.0 / speedup,
            baseline_us=200.0,
            candidate_spread_us=2.0,
            baseline_spread_us=2.0,
            achieved_gbps=900.0,
            achieved_tflops=12.0,
            roofline_share=0.4,
        )
        last = len(PHASES) if is_timed else draw.randrange(1, len(PHASES))
        return Verdict(
            status=status,
            reason=reason,
            detail=detail,
            num_launches=draw.randrange(4),
            is_compiled=status in (Status.CORRECT, Status.WRONG),
            timing=timing if is_timed else None,
            torch_share=0.0,
            isolation="namespaces",
            caps="cgroup",
            device="NVIDIA H200",
            phase_s={p: round(draw.expovariate(20.0), 6) for p in PHASES[:last]},
            harness="9f2c51d0",
        )

    def text(self, mark: int, size: int) -> str:
        """Source code of `size` characters; the same mark gives the same text."""
        begin = hash((mark, self.seed)) % (len(self._corpus) - size)
        return self._corpus[begin : begin + size]
