"""SFT rows of generated problems: answers, and repairs with broken answers before the answer.

Called while a run is prepared. Feedback in repairs is real: `judge` judges each broken answer. A
broken answer that the judge accepts is left out. Broken answers have realistic mistakes
(`MISTAKES`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from random import Random

import anyio

from forge.config.schema import DataTable
from forge.data.families.ops import OPS, Chain, Dtype, Sizes
from forge.data.generator import Composition, Style, answer, answer_to, static_sizes
from forge.data.mistakes import broken
from forge.data.prompts.prompt_set import Exchange, PromptSet
from forge.records import Judge, Message, Pair, Problem, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An honest answer before the mistake."""

    composition: Composition
    sizes: Sizes | None
    """Sizes in the source of a static answer; None for a dynamic one."""

    @classmethod
    def of(cls, problem: Problem, *, style: Style) -> Draft:
        """The draft for a generated problem. Raises ValueError for any other."""
        return cls(composition=Composition.of(problem), sizes=static_sizes(problem, style))

    @property
    def code(self) -> str:
        return answer_to(self.composition, sizes=self.sizes)

    @property
    def chain(self) -> Chain:
        return self.composition.chain

    def with_chain(self, chain: Chain) -> str:
        """The answer to another chain, as from a model that copied the steps wrongly."""
        return replace(self, composition=replace(self.composition, chain=chain)).code


Mistake = Callable[[Draft, Random], str | None]
"""Makes a broken answer; None if this mistake is impossible in the draft."""


def wrong_op(draft: Draft, rng: Random) -> str | None:
    """One step computes something else."""
    chain = list(draft.chain)
    chain[rng.randrange(len(chain))] = rng.choice([name for name in OPS if name not in chain])
    return draft.with_chain(tuple(chain))


def missing_op(draft: Draft, rng: Random) -> str | None:
    """One step is left out."""
    chain = draft.chain
    if len(chain) < 2:
        return None
    at = rng.randrange(len(chain))
    return draft.with_chain(chain[:at] + chain[at + 1 :])


def wrong_order(draft: Draft, rng: Random) -> str | None:
    """The steps are in another order."""
    others = sorted(set(permutations(draft.chain)) - {draft.chain})
    return draft.with_chain(rng.choice(others)) if others else None


def wrong_size(draft: Draft, rng: Random) -> str | None:
    """Wrong products: the numbers in the source are those of other sizes."""
    if draft.sizes is None:
        return None
    return answer_to(draft.composition, sizes=draft.composition.draw_sizes(rng))


def wrong_text(draft: Draft, rng: Random) -> str | None:
    """One place of the text is wrong: an operator, a mask, an argument, a name, the syntax."""
    return broken(draft.code, rng)


MISTAKES: dict[Mistake, int] = {
    wrong_size: 36,
    wrong_order: 4,
    wrong_op: 2,
    missing_op: 1,
    wrong_text: 5,
}
"""Relative frequencies, close to those in first answers after SFT in runs of our recipes. Of wrong
static answers, 60 to 90 % have the right steps and wrong sizes; most other wrong answers have the
steps in another order, or a step that is not in the problem."""


def break_answer(problem: Problem, *, style: Style, rng: Random) -> str:
    """A broken answer in this style. It differs from the honest one, but the judge may still accept
    it. Raises ValueError for a problem that is not generated."""
    draft = Draft.of(problem, style=style)
    mistakes, weights = list(MISTAKES), list(MISTAKES.values())
    while True:
        (mistake,) = rng.choices(mistakes, weights)
        made = mistake(draft, rng)
        if made is not None and made != draft.code:
            return made


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
    """All rows for generated problems of the SFT split, in a fixed order for given verdicts.
    Repairs have no more turns than a rollout. The judge gets all broken answers at once."""
    rng = Random(seed)
    rows = [one_turn_pair(p, prompts=prompts, style=_draw_style(table, rng=rng)) for p in problems]
    most = most_broken(max_turns)
    num = round(table.repair_share * len(rows)) if most else 0
    chosen = [problems[i] for i in rng.sample(range(len(rows)), num)]
    attempts = [
        (index, problem, style, break_answer(problem, style=style, rng=rng))
        for index, problem in enumerate(chosen)
        for style in [_draw_style(table, rng=rng) for _ in range(rng.randint(1, most))]
    ]
    verdicts = await _judge_all([(problem, code) for _, problem, _, code in attempts], judge=judge)
    tried: dict[int, list[Exchange]] = {}
    for (index, problem, style, code), verdict in zip(attempts, verdicts, strict=True):
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


async def _judge_all(attempts: Sequence[tuple[Problem, str]], *, judge: Judge) -> list[Verdict]:
    verdicts: list[Verdict | None] = [None] * len(attempts)

    async def judge_one(index: int, problem: Problem, code: str) -> None:
        verdicts[index] = await judge(problem, code)

    async with anyio.create_task_group() as group:
        for index, (problem, code) in enumerate(attempts):
            group.start_soon(judge_one, index, problem, code)
    return [verdict for verdict in verdicts if verdict is not None]
