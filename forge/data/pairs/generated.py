"""SFT rows of generated problems: answers, and repairs with broken answers before the answer.

Called while a run is prepared. Feedback in repairs is real: `judge` judges each broken answer. A
broken answer that the judge accepts is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

import anyio

from forge.data.compositions import Composition, Style, answer
from forge.data.families.half import Dtype
from forge.data.pairs.mistakes import break_answer
from forge.data.prompts.conversation import Exchange
from forge.records import Message, Pair, Problem, Verdict

if TYPE_CHECKING:
    from forge.config.schema import DataTable
    from forge.data.prompts.prompt_set import PromptSet
    from forge.records import Judge

MAX_BROKEN = 2
"""Most broken answers in a repair."""


def answer_text(
    composition: Composition, code: str, *, prompts: PromptSet, style: Style = Style.DYNAMIC
) -> str:
    """The completion to train: a short plan that ends with the style, then the code."""
    half = "" if composition.dtype is Dtype.FP32 else f" {composition.dtype}"
    plan = prompts.thought(f"{composition.family} {composition.variant}{half} {style}")
    return f"{plan}```python\n{code}```"


def one_turn_pair(problem: Problem, *, prompts: PromptSet, style: Style = Style.DYNAMIC) -> Pair:
    """A generated problem and its answer in one style."""
    composition = Composition.of(problem)
    code = answer(problem, style=style)
    text = answer_text(composition, code, prompts=prompts, style=style)
    messages = (*prompts.first_messages(problem), Message(role="assistant", content=text))
    return Pair(problem_id=problem.problem_id, messages=messages, num_turns=1)


def repair_pair(problem: Problem, exchanges: Sequence[Exchange], *, prompts: PromptSet) -> Pair:
    """Broken answers with their verdicts, and the answer in dynamic style."""
    repaired = answer_text(Composition.of(problem), answer(problem), prompts=prompts)
    asked = prompts.conversation(problem, exchanges)
    messages = (*asked, Message(role="assistant", content=repaired))
    num_turns = sum(message.role == "assistant" for message in messages)
    return Pair(problem_id=problem.problem_id, messages=messages, num_turns=num_turns)


def most_broken(max_turns: int) -> int:
    """Most broken answers in a repair that has no more turns than a rollout."""
    return min(max_turns - 1, MAX_BROKEN)


async def make_pairs(
    problems: Sequence[Problem],
    table: DataTable,
    *,
    prompts: PromptSet,
    max_turns: int,
    seed: int,
    judge: Judge,
) -> list[Pair]:
    """All rows for the given (SFT) problems, in a fixed order for given verdicts.

    Args:
        problems: Generated problems of the SFT split.
        prompts: Messages of the rows, those of the run.
        max_turns: Turns of a rollout; repairs have no more. With 1 there are no repairs.
        judge: Judges broken answers; gets all of them at once, and queues them.
    """
    rng = Random(seed)
    rows = [
        one_turn_pair(p, prompts=prompts, style=_draw_style(table, rng=rng))
        for p in problems
        for _ in range(table.pairs_per_problem)
    ]
    most = most_broken(max_turns)
    num = round(table.repair_share * len(rows)) if most else 0
    chosen = [problems[i % len(problems)] for i in rng.sample(range(len(rows)), num)]
    broken = [
        (index, problem, style, break_answer(problem, style=style, rng=rng))
        for index, problem in enumerate(chosen)
        for style in [_draw_style(table, rng=rng) for _ in range(rng.randint(1, most))]
    ]
    verdicts = await _judge_all([(problem, code) for _, problem, _, code in broken], judge=judge)
    tried: dict[int, list[Exchange]] = {}
    for (index, problem, style, code), verdict in zip(broken, verdicts, strict=True):
        if verdict.status.is_scored and not verdict.is_correct:
            text = answer_text(Composition.of(problem), code, prompts=prompts, style=style)
            tried.setdefault(index, []).append(Exchange(completion_text=text, verdict=verdict))
    rows.extend(
        repair_pair(chosen[index], exchanges, prompts=prompts) for index, exchanges in tried.items()
    )
    rng.shuffle(rows)
    return rows


def _draw_style(table: DataTable, *, rng: Random) -> Style:
    return Style.STATIC if rng.random() < table.static_share else Style.DYNAMIC


async def _judge_all(broken: Sequence[tuple[Problem, str]], *, judge: Judge) -> list[Verdict]:
    verdicts: list[Verdict | None] = [None] * len(broken)

    async def judge_one(index: int, problem: Problem, code: str) -> None:
        verdicts[index] = await judge(problem, code)

    async with anyio.create_task_group() as group:
        for index, (problem, code) in enumerate(broken):
            group.start_soon(judge_one, index, problem, code)
    return [verdict for verdict in verdicts if verdict is not None]
