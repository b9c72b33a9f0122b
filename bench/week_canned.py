"""The canned parts of a simulated run (`week.py`): engine, judge, prompter, trainer. No model.

Everything else is the run's own: producer, buffer, sampler, batch files, desk, turn gate,
publishes, evaluations, store, roll-ups, status. Answers are texts of a real size, most of them new.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.config.schema import JudgeTable, PromptTable, ServeTable
from forge.data.prompts.prompt_set import make_prompts
from forge.evalpool.pool import Pool, candidate_key
from forge.evalpool.seating import JudgeKind, Seat, Seating, State
from forge.process.child import ChildSpec
from forge.records import (
    Completion,
    EngineLoad,
    Finish,
    Problem,
    Prompt,
    Reason,
    Split,
    Verdict,
)
from forge.serve.replicas import Replicas
from forge.serve.weights import Weights
from forge.train.checkpoints import checkpoint_dir

if TYPE_CHECKING:
    from forge.data.prompts.prompt_set import Exchange
    from forge.runner.stages.desk import TrainerDesk
    from forge.runner.stages.run_context import RunContext

FAMILIES = ("elementwise", "softmax", "norm", "matmul")
NUM_PROBLEMS = 400
NUM_HELDOUT = 4
REPEATED = 0.25
"""Share of answers that occurred before."""
KIND = JudgeKind(device="cpu", isolation="namespaces", harness="0123456789abcdef")
TRAIN_METRICS = {
    f"train/{name}": 0.5
    for name in (
        "loss/mean", "entropy/mean", "kl_behaviour/mean", "grad_norm/value", "ratio/mean",
        "ratio/max", "clipped/share", "learning_rate/value", "tokens/sum", "samples/count",
        "step/seconds", "wait/seconds", "micro_batches/count", "skipped_updates/count",
    )
}  # fmt: skip
SOURCE = "\n".join(
    f"    y{line} = tl.load(x_ptr + {line} * stride, mask=mask)" for line in range(8)
)


def problems() -> list[Problem]:
    """Problems of three levels, the last few held out."""
    return [
        Problem(
            problem_id=f"{FAMILIES[number % len(FAMILIES)]}-{number:04d}",
            source=f"class Model: ...  # {number}\n{SOURCE}",
            family=FAMILIES[number % len(FAMILIES)],
            level=1 + number % 3,
            split=Split.GRPO if number < NUM_PROBLEMS - NUM_HELDOUT else Split.HELDOUT,
        )
        for number in range(NUM_PROBLEMS)
    ]


PROMPTS = make_prompts(PromptTable())


class CannedPrompter:
    """Prompts of 40 tokens. A completion's first token says which answer it is."""

    def prompt(self, problem: Problem, attempts: Sequence[Exchange]) -> Prompt | None:
        return Prompt(ids=tuple(range(40)), text=problem.source)

    def decode(self, token_ids: Sequence[int]) -> str:
        return f"```python\n# {token_ids[0]}, {'right' if token_ids[1] else 'wrong'}\n{SOURCE}\n```"

    def feedback(self, verdict: Verdict) -> str:
        return PROMPTS.feedback_message(verdict).content

    def extract(self, problem: Problem, completion_text: str) -> tuple[str, Reason]:
        return completion_text[10:-4], Reason.OK


class CannedReplicas(Replicas):
    """A replica that answers at once, and takes any weights."""

    def __init__(self, folder: Path) -> None:
        spec = ChildSpec(
            name="serve-0", argv=("none",), log_path=folder / "serve-0.log", env={},
            socket_path=folder / "serve-0.sock", config={},
        )  # fmt: skip
        start = Weights(full=folder)
        super().__init__([spec], table=ServeTable(), weights=start, stop_token_ids=[0])
        self._served_version = 0
        self._num_answers = 0
        self._draw = random.Random(0)

    @property
    def features(self) -> frozenset[str]:
        return frozenset()

    def load(self) -> EngineLoad | None:
        return EngineLoad(kv_use=0.7, running=1, waiting=0, slots=32)

    async def generate(
        self, prompt: Prompt, *, n: int, max_tokens: int, temperature: float, seed: int
    ) -> list[Completion]:
        self.all[0].generated_tokens += 24 * n
        return [self._completion(is_right=index % 2 == 0) for index in range(n)]

    def _completion(self, *, is_right: bool) -> Completion:
        number = self._num_answers = self._num_answers + 1
        if self._draw.random() < REPEATED:
            number = self._draw.randrange(64)
        return Completion(
            token_ids=(number, int(is_right), *range(22)),
            logprobs=tuple(-0.5 for _ in range(24)),
            finish=Finish.STOP,
            min_version=self._served_version,
            max_version=self._served_version,
        )

    async def publish(self, path: Path, version: int, *, rolling: bool = False) -> None:
        self._served_version = version


class CannedPool(Pool):
    """A judge that knows from the code whether it is right; with the pool's own cache."""

    def __init__(self) -> None:
        seat = Seat("judge-0", state=State.UP, kinds=(KIND,))
        super().__init__(JudgeTable(), Seating([seat]))

    async def judge(self, problem: Any, code: str, **options: bool) -> Verdict:
        key = candidate_key(problem, code)
        verdict = self._cache.find(key, kinds=self.seating.kinds)
        if verdict is None:
            self._num_judged += 1
            verdict = Verdict.from_json(_answer(is_right=", right" in code, number=len(code)))
            self._cache.remember(key, verdict)
        return verdict


def _answer(*, is_right: bool, number: int) -> Mapping[str, Any]:
    """JSON of a verdict, with texts of its own as from a socket."""
    detail = "" if is_right else f"mismatch at (0, {number}): " + "expected 1.25, got 0.5; " * 12
    return {
        "status": "correct" if is_right else "wrong",
        "reason": "ok" if is_right else "mismatch",
        "detail": detail,
        "is_compiled": True,
        "num_launches": 1,
        "timing": "none",
        "isolation": "".join(KIND.isolation),
        "device": "".join(KIND.device),
        "harness": "".join(KIND.harness),
        "phase_s": {"compile": 0.05, "correct": 0.05},
    }


async def train(
    run: RunContext,
    desk: TrainerDesk,
    *,
    steps: int,
    save_every: int,
    on_step: Callable[[int], None],
) -> None:
    """A trainer without its process: takes, reports, publishes and saves every batch."""
    desk.trainer_starts()
    while desk.trained_step < steps:
        answer = await desk.take(desk.trained_step)
        if answer["kind"] != "batch":
            continue
        step = answer["step"]
        path = run.paths.weights / f"grpo-0-{step}"
        path.mkdir(parents=True)
        (path / "model.safetensors").write_bytes(b"weights")
        await desk.trained(step, TRAIN_METRICS)
        with desk.publishing():
            await desk.publish(path, step, None)
        if step % save_every == 0:
            checkpoint_dir(desk.checkpoints.folder, step).mkdir(parents=True)
            await desk.saved(step)
        on_step(step)
