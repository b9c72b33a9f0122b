"""Simulates runs on 1 to 256 GPUs: where do the supervisor, the store and publishes limit them?

    python bench/scale.py [--gpus 1 8 64] [--tokens 256 1500] [--out scale.json] [--picture x.svg]

The real scheduling code (producer, admission, concurrency, router, seating of judges, turn gate,
publishes) runs on a simulated clock (`scale_loop.py`) with made-up engines, judges and trainers of
measured speed (`Costs`, from bench/RESULTS.md). The supervisor has one core: what a request, a
verdict, a prompt and a row take of it is charged, and what the schedulers take is measured while
they run. GPUs are shared 4:2:2 among trainer, engines and judges, as in the recipes for 8; the
groups of a step grow with the trainers. Up to 8 GPUs are also played with a supervisor that takes
no time: the GPUs' own speed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from scale_loop import SimulatedLoop

import forge.evalpool.asking as asking
from forge.config.schema import JudgeTable, RewardTable
from forge.evalpool.pool import Pool
from forge.evalpool.seat import Seat
from forge.evalpool.seating import Seating
from forge.process.busy import BusyClock
from forge.process.limits import collect_less_often
from forge.records import (
    Completion,
    EngineLoad,
    Finish,
    Problem,
    Prompt,
    Reason,
    Split,
    Status,
    Timing,
    Turn,
    Verdict,
)
from forge.rollout.batches import Batch, BatchPlan
from forge.rollout.pacing import PublishedSteps
from forge.rollout.play import Rules
from forge.rollout.ports import Ports
from forge.rollout.producer import produce_batches
from forge.rollout.sampling.sampler import make_sampler
from forge.runner.weights.gate import TurnGate, Turnover
from forge.serve.port import OLD_ADAPTERS, PREFIX_CACHE
from forge.serve.publishing import Publishing
from forge.serve.weights import Weights

if TYPE_CHECKING:
    from forge.serve.served import SampleRequest

SHARES = {"train": 0.5, "serve": 0.25, "judge": 0.25}
GROUPS_A_CARD = 16
"""Groups of a step for each card of the trainer: 512 rollouts a step on 8 GPUs. More than
LARGEST_PLAYED are not played in a step: a supervisor at its limit is as fast with fewer."""
LARGEST_PLAYED = 512
GROUP_SIZE, MAX_TURNS = 8, 2
CORRECT_SHARE = 0.4
PROMPT_TOKENS = 512
STEPS, FIRST_COUNTED = 3, 2
LARGEST_FREE = 8
CARDS_A_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Measured prices; sections of bench/RESULTS.md."""

    tokens_per_s: float = 28_347
    """Of one H200, Qwen3-0.6B, 256 sequences ("Serving on a GPU")."""
    slots: int = 256
    verdicts_per_s: float = 41.6
    """Of one H100, 16 in flight ("The judge on a GPU")."""
    verdict_s: float = 0.074
    """One verdict without others."""
    samples_per_s: float = 115.0
    """Of one H200, Qwen3-0.6B ("Trainers": 128 in 1.113 s)."""
    publish_s: float = 0.40
    """A whole 0.6B to an engine of the machine ("Publishing")."""
    weight_bytes: float = 1.2e9
    link_bytes_per_s: float = 1.25e9
    """10 Gbit/s, not measured: between nodes."""
    generate_cpu_s: float = 0.34e-3
    """Of the supervisor, per request to an engine with 256 in flight (`scale_costs.py`)."""
    verdict_cpu_s: float = 0.36e-3
    prompter_cpu_s: float = 0.31e-3
    row_cpu_s: float = 0.62e-3
    """Of the store's threads, per turn ("The store at a million turns")."""
    rows_per_s: float = 4_444
    """Turns that the store can write ("The store at a million turns")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One simulated run, in the steps that count."""

    gpus: int
    tokens: int
    turns_per_s: float
    free_turns_per_s: float
    """The same with a supervisor that takes no time."""
    supervisor_cores: float
    """CPU seconds of the supervisor per second: at most 1, where it is the limit."""
    wanted_cores: float
    """Cores that the speed of the GPUs would need."""
    scheduler_ms: float
    """CPU of the scheduling code per turn."""
    store_share: float
    """Of the rate that the store can write, at the speed of the GPUs."""
    publish_share: float
    """Of a step's time, with each node's copy sent from the head one after the other."""
    step_s: float


class Engine:
    """A made-up engine, as a server of `Publishing`."""

    num_deaths, is_draining, is_up = 0, False, True
    features = frozenset({PREFIX_CACHE, OLD_ADAPTERS})

    def __init__(self, name: str, play: Play, *, speed: float) -> None:
        self.name, self.play = name, play
        self.load = self.generated_tokens = 0
        self.busy = BusyClock(now=anyio.current_time)
        self.step_s = play.costs.slots / play.costs.tokens_per_s / speed
        self.slots = anyio.Semaphore(play.costs.slots)
        self.version = 0

    @property
    def health(self) -> dict[str, Any]:
        running = min(self.load, self.play.costs.slots)
        share = running / self.play.costs.slots
        return {"kv_use": 0.55 * share, "running": running, "waiting": self.load - running}

    async def complete(self, request: SampleRequest) -> list[Completion]:
        async with self.slots:
            version = self.version
            num = self.play.draw_length()
            await anyio.sleep(num * self.step_s)
        self.play.loop.charge(self.play.costs.generate_cpu_s)
        ids, logprobs = self.play.tokens[:num], self.play.logprobs[:num]
        return [
            Completion(
                token_ids=ids, logprobs=logprobs, finish=Finish.STOP, min_version=version,
                max_version=version,
            )
        ]  # fmt: skip

    async def serve(self, weights: Weights, *, timeout_s: float) -> None:
        await anyio.sleep(self.play.costs.publish_s)
        self.version = weights.version

    async def wake(self) -> None: ...

    def doubt(self) -> None: ...


class Card:
    """A made-up judge's card: timed work is exclusive, the rest is not."""

    def __init__(self, play: Play, *, speed: float) -> None:
        self.turn_s = 1 / play.costs.verdicts_per_s / speed
        self.rest_s = max(play.costs.verdict_s - self.turn_s, 0.0)
        self.turn = anyio.Lock()

    async def judge(self) -> None:
        await anyio.sleep(self.rest_s)
        async with self.turn:
            await anyio.sleep(self.turn_s)


class Prompter:
    """Prompts and extraction at their price."""

    def __init__(self, play: Play) -> None:
        self.play, self.numbers = play, itertools.count()

    def prompt(self, problem: Problem, attempts: Sequence[object]) -> Prompt:
        base = hash(problem.problem_id) % 1000
        return Prompt(ids=tuple(range(base, base + PROMPT_TOKENS)))

    def decode(self, token_ids: Sequence[int]) -> str:
        self.play.loop.charge(self.play.costs.prompter_cpu_s)
        return ""

    def feedback(self, verdict: Verdict) -> str:
        return ""

    def extract(self, problem: Problem, completion_text: str) -> tuple[str, Reason]:
        return f"{next(self.numbers)}", Reason.NO_CODE_BLOCK


class Rows:
    """A store at its price, on the supervisor's core."""

    def __init__(self, play: Play) -> None:
        self.play, self.num_turns = play, 0

    async def put(self, *records: Any) -> None:
        num = sum(isinstance(record, Turn) for record in records)
        self.num_turns += num
        self.play.loop.charge(num * self.play.costs.row_cpu_s)


class Play:
    """One simulated run."""

    def __init__(self, gpus: int, tokens: int, costs: Costs, loop: SimulatedLoop) -> None:
        self.gpus, self.costs, self.loop = gpus, costs, loop
        self.random = random.Random(gpus)
        self.mean_tokens = tokens
        longest = tokens * 8
        self.tokens, self.logprobs = tuple(range(longest)), (-0.5,) * longest
        self.rows = Rows(self)
        self.cards = {role: max(share * gpus, 1e-9) for role, share in SHARES.items()}
        self.marks: list[tuple[float, int, float, float]] = []
        """Time, turns, charged and own CPU at the end of each step."""

    def draw_length(self) -> int:
        """Tokens of one answer, with a long tail."""
        drawn = self.random.lognormvariate(-0.18, 0.6) * self.mean_tokens
        return min(max(1, int(drawn)), len(self.tokens))

    def _each(self, role: str) -> tuple[int, float]:
        """Number of cards of a role, and the part of each that it has: less than 4 are shared."""
        num = max(1, round(self.cards[role]))
        return num, min(self.cards[role] / num, 1.0)

    async def run(self) -> None:
        """Play STEPS steps."""
        num_engines, speed = self._each("serve")
        engines: list[Any] = [
            Engine(f"serve-{index}", self, speed=speed) for index in range(num_engines)
        ]
        start = Weights(full=Path("start"))
        served = Publishing[Any](
            engines, weights=start, stop_token_ids=(0,), slots=self.costs.slots,
            request_timeout_s=600, through_restart_s=600, wait_s=600,
        )  # fmt: skip
        served.note_up()
        gate = TurnGate(timeout_s=600)
        gate.turnover = Turnover.LIVE
        num_groups = min(GROUPS_A_CARD * self._each("train")[0], LARGEST_PLAYED)
        seating = self._seat_judges()
        published = PublishedSteps()
        plan = BatchPlan(
            stage=0, first_step=1, last_step=STEPS, groups_per_step=num_groups, max_replacements=0,
            max_staleness=1, scale="group", train_truncated=True, publish_timeout_s=1e6,
            judge_capacity=sum(seat.capacity for seat in seating.seats),
        )  # fmt: skip
        rules = Rules(
            group_size=GROUP_SIZE, max_turns=MAX_TURNS, gamma=0.4, credit="turn", temperature=1.0,
            max_completion_tokens=len(self.tokens), reward=RewardTable(), seed=0,
        )  # fmt: skip

        async def generate(prompt: Prompt, **options: Any) -> list[Completion]:
            async with gate.turn():
                return await served.generate(prompt, **options)

        load: Callable[[], EngineLoad | None] = served.load
        ports = Ports(
            generate=generate, judge=Pool(JudgeTable(), seating).judge, sink=self.rows,
            prompter=Prompter(self), load=load, is_apart=True,
        )  # fmt: skip
        problems = [_problem(number) for number in range(max(64, 2 * num_groups))]
        send, receive = anyio.create_memory_object_stream[Batch](0)

        async def train() -> None:
            num, speed = self._each("train")
            async with receive:
                async for batch in receive:
                    await anyio.sleep(len(batch.samples) / self.costs.samples_per_s / num / speed)
                    async with gate.publish():
                        await served.publish(Path(f"v{batch.step}"), batch.step)
                    published.advance(batch.step)
                    now, loop = anyio.current_time(), self.loop
                    self.marks.append((now, self.rows.num_turns, loop.charged_s, loop.own_s))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(train)
            await produce_batches(
                plan, sampler=make_sampler("uniform", problems, seed=0), rules=rules, ports=ports,
                published=published, group_ids=itertools.count(1), sample_ids=itertools.count(1),
                out=send, step_of=lambda version: version,
            )  # fmt: skip

    def _seat_judges(self) -> Seating:
        num, speed = self._each("judge")
        seats = [Seat(name=f"judge-{index}", capacity=16) for index in range(num)]
        seating = Seating(seats)
        for seat in seats:
            client: Any = Card(self, speed=speed)
            seating.judge_opened(seat, client, is_trusted=True)
        return seating

    async def verdict(self, client: Any, _request: object, *, timeout_s: float) -> Verdict:
        """In place of `ask_verdict`."""
        await client.judge()
        self.loop.charge(self.costs.verdict_cpu_s)
        is_correct = self.random.random() < CORRECT_SHARE
        timing = Timing(
            speedup=1.3, speedup_low=1.0 + self.random.random(), candidate_us=80.0,
            baseline_us=104.0, candidate_spread_us=2.0, baseline_spread_us=2.0,
            achieved_gbps=900.0, achieved_tflops=12.0, roofline_share=0.4,
        )  # fmt: skip
        return Verdict(
            status=Status.CORRECT if is_correct else Status.WRONG,
            reason="ok" if is_correct else "mismatch", detail="", is_compiled=True, num_launches=1,
            device="cuda", timing=timing if is_correct else None,
        )  # fmt: skip


def _problem(number: int) -> Problem:
    return Problem(
        problem_id=f"p{number}", source=f"# {number}\n", family="matmul", level=1, split=Split.GRPO
    )


def play(gpus: int, tokens: int, costs: Costs, *, is_free: bool) -> dict[str, float]:
    """One simulated run, and its rates in the steps that count."""
    loop = SimulatedLoop()
    loop.is_free = is_free
    played = Play(gpus, tokens, costs, loop)
    before, asking.ask_verdict = asking.ask_verdict, played.verdict
    try:
        anyio.run(played.run, backend_options={"loop_factory": lambda: loop})
    finally:
        asking.ask_verdict = before
    first, last = played.marks[FIRST_COUNTED - 2], played.marks[-1]
    seconds, turns, charged, own = (b - a for a, b in zip(first, last, strict=True))
    steps = len(played.marks) - FIRST_COUNTED + 1
    return {
        "turns_per_s": turns / seconds,
        "step_s": seconds / steps,
        "cores": (charged + own) / seconds,
        "cpu_s": (charged + own) / turns,
        "scheduler_s": own / turns,
    }


@cache
def own_speed(gpus: int, tokens: int, costs: Costs) -> dict[str, float]:
    """Rates with a supervisor that takes no time."""
    return play(gpus, tokens, costs, is_free=True)


def simulate(gpus: int, tokens: int, costs: Costs) -> Outcome:
    """One number of GPUs, with a supervisor that takes time and with one that takes none. Without
    that limit twice the GPUs are twice as fast, as the groups of a step grow with them, so more
    than LARGEST_FREE are not played a second time."""
    real = play(gpus, tokens, costs, is_free=False)
    free = dict(own_speed(min(gpus, LARGEST_FREE), tokens, costs))
    free["turns_per_s"] *= max(gpus / LARGEST_FREE, 1.0)
    nodes = math.ceil(SHARES["serve"] * gpus / CARDS_A_NODE) if gpus > CARDS_A_NODE else 0
    publish_s = costs.publish_s + nodes * costs.weight_bytes / costs.link_bytes_per_s
    return Outcome(
        gpus=gpus,
        tokens=tokens,
        turns_per_s=real["turns_per_s"],
        free_turns_per_s=free["turns_per_s"],
        supervisor_cores=real["cores"],
        wanted_cores=free["turns_per_s"] * real["cpu_s"],
        scheduler_ms=1e3 * real["scheduler_s"],
        store_share=free["turns_per_s"] / costs.rows_per_s,
        publish_share=publish_s / free["step_s"],
        step_s=real["step_s"],
    )


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """The picture: speed and limits by GPUs, a column for each length of answer."""
    from matplotlib.figure import Figure

    lengths = sorted({each.tokens for each in outcomes})
    figure = Figure(figsize=(4.2 * len(lengths), 6.4), layout="constrained")
    axes = figure.subplots(2, len(lengths), squeeze=False, sharex=True)
    for column, tokens in enumerate(lengths):
        rows = sorted((o for o in outcomes if o.tokens == tokens), key=lambda one: one.gpus)
        x = [one.gpus for one in rows]
        top, bottom = axes[0][column], axes[1][column]
        top.loglog(x, [o.free_turns_per_s for o in rows], "--", label="the GPUs' own speed")
        top.loglog(x, [o.turns_per_s for o in rows], "o-", label="with the supervisor")
        top.set_title(f"answers of {tokens:,} tokens")
        bottom.loglog(x, [o.wanted_cores for o in rows], "o-", label="supervisor, cores")
        bottom.loglog(x, [o.store_share for o in rows], "s-", label="store, share of its rate")
        bottom.loglog(x, [o.publish_share for o in rows], "^-", label="publish, share of a step")
        bottom.axhline(1.0, color="grey", linewidth=0.8)
        bottom.axvline(64, color="grey", linewidth=0.8, linestyle=":")
        bottom.set_xticks(x, [str(each) for each in x])
        bottom.minorticks_off()
        bottom.set_xlabel("GPUs (trainer : engines : judges = 4 : 2 : 2)")
    axes[0][0].set_ylabel("turns a second")
    axes[1][0].set_ylabel("needed at the GPUs' own speed; 1 is a limit")
    axes[0][0].legend(frameon=False)
    axes[1][0].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """The command line above."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1500, 6000])
    parser.add_argument("--cost", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    collect_less_often()  # as a supervisor does
    changed: Mapping[str, float] = {
        name: float(value) for name, _, value in (one.partition("=") for one in options.cost)
    }
    costs = Costs(**changed)  # type: ignore[arg-type]
    outcomes: list[Outcome] = []
    for tokens, gpus in itertools.product(options.tokens, options.gpus):
        outcomes.append(simulate(gpus, tokens, costs))
        shown = {k: round(v, 4 - len(str(int(v)))) for k, v in asdict(outcomes[-1]).items()}
        print(json.dumps(shown), flush=True)
    if options.out:
        rows = [asdict(each) for each in outcomes]
        options.out.write_text(json.dumps({"costs": asdict(costs), "runs": rows}, indent=1) + "\n")
    if options.picture:
        draw(outcomes, options.picture)


if __name__ == "__main__":
    main()
