"""Search stages: a budget of answers, time or tokens, spent on the problems that gain by it.

Each answer is a group of one rollout with one turn (`rollout/search.py`) and names the turns that
its prompt showed; so a stage that was interrupted is rebuilt from the store, and no answer that was
judged is lost. Answers that were on their way are asked for again.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import anyio.to_thread

from forge.config.schema import Budget, SearchStage, split_of
from forge.records import Purpose, Turn
from forge.rollout.play import GroupPlace, play_group
from forge.rollout.ports import Ports
from forge.rollout.search import JudgedAnswer, Search, attempt_of, next_search
from forge.rollout.seeds import derive_seed, problem_place
from forge.runner.stages.evaluate import groups_in_flight, spread
from forge.runner.stages.run_context import RunContext
from forge.store.reader import open_run
from forge.store.resume import read_turn

GAIN, ENDED = "search_gain", "search_ended"

_ATTEMPTS = """
SELECT t.*, g.parents FROM groups g CROSS JOIN v_turns t ON t.group_id = g.group_id
WHERE g.purpose = 'search' AND g.stage = ? ORDER BY t.recorded_at, t.group_id
"""
_SECONDS = """
SELECT coalesce(sum(s), 0.0) FROM (SELECT max(t.recorded_at) - min(g.recorded_at) AS s
    FROM groups g JOIN turns t USING (group_id)
    WHERE g.purpose = 'search' AND g.stage = ? GROUP BY t.attempt)
"""


async def run_search_stage(run: RunContext, stage: SearchStage, index: int) -> None:
    problems = run.problems_of(split_of(stage))
    problems = [each for each in problems if each.problem_id not in run.refused]
    turn = (stage.round or 1) - 1  # so that each round searches others, if not all
    problems = spread([*problems[turn:], *problems[:turn]], stage.num_problems or len(problems))
    searches = {
        problem.problem_id: Search(
            problem=problem, strategy=stage.strategy, depth=stage.depth, patience=stage.patience,
            roofline_share=stage.roofline_share,
            seed=derive_seed(run.experiment.seed, problem_place(problem.problem_id)),
        )
        for problem in problems
    }  # fmt: skip
    budget = Budget.parse(stage.budget)
    searching = Searching(run=run, stage=index, budget=budget, searches=searches)
    await searching.restore()
    await searching.run_to_end()


@dataclass(slots=True, kw_only=True)
class Searching:
    run: RunContext
    stage: int
    budget: Budget
    searches: dict[str, Search]
    num_tokens: int = 0
    earlier_s: float = 0.0
    _num_without_room: int = 0
    """Answers that were not asked for, since their prompts do not fit: no budget is spent."""
    _began: float = field(default_factory=time.monotonic)

    async def restore(self) -> None:
        """Takes the answers that earlier attempts at this stage stored."""
        if self.run.attempt <= 1:
            return
        rows, self.earlier_s = await anyio.to_thread.run_sync(self._read)
        for row in rows:
            search = self.searches.get(row["problem_id"])
            if search is not None:
                search.restore(read_turn(row), parents=json.loads(row["parents"]))
                self.num_tokens += row["num_completion_tokens"]
        if rows:
            self.run.console.say(f"{self._label}: {len(rows)} answers are kept")

    def _read(self) -> tuple[list[dict[str, Any]], float]:
        with open_run(self.run.paths) as reader:
            rows = reader.rows(_ATTEMPTS, (self.stage,))
            return rows, float(reader.value(_SECONDS, (self.stage,)))

    async def run_to_end(self) -> None:
        run, serve = self.run, self.run.experiment.serve
        run.progress.enter(
            self._label, stage=self.stage, total=int(self.budget.amount), unit=self.budget.unit,
            busy=run.busy(),
        )  # fmt: skip
        run.progress.begin_at(int(self._spent(self.num_answers)))
        slots = anyio.Semaphore(self._width(groups_in_flight(serve, [1])))
        async with run.pinned_ports() as ports:
            while self._next() is not None:  # again if the last prompts had no room
                async with anyio.create_task_group() as tasks:
                    await slots.acquire()
                    while (search := self._next()) is not None:
                        tasks.start_soon(self._answer, search, *search.begin(), ports, slots)
                        await slots.acquire()
                    slots.release()
        solved = sum(search.best is not None for search in self.searches.values())
        run.console.say(
            f"{self._label}: {solved} of {len(self.searches)} problems solved by "
            f"{self.num_answers} answers with {self.num_tokens:,} tokens"
        )

    def _next(self) -> Search | None:
        """The search that the next answer goes to; None if the budget is spent, too."""
        num_started = sum(search.num_started for search in self.searches.values())
        is_spent = self._spent(num_started - self._num_without_room) >= self.budget.amount
        return None if is_spent else next_search(self.searches.values())

    def _spent(self, answers: int) -> float:
        """Spent part of the budget, in its unit."""
        seconds = self.earlier_s + time.monotonic() - self._began
        spent = {"answers": answers, "s": seconds, "tokens": self.num_tokens}
        return spent[self.budget.unit]

    @property
    def _label(self) -> str:
        return self.run.experiment.stage[self.stage].label(self.stage)

    def _width(self, most: int) -> int:
        """Answers asked for at once. Where a strategy learns from earlier answers, at most as many
        as leave a budget of answers for chains of full length."""
        stage = self.run.experiment.stage[self.stage]
        assert isinstance(stage, SearchStage)
        if self.budget.unit != "answers" or stage.strategy == "best-of-n":
            return most
        return min(most, math.ceil(self.budget.amount / stage.depth))

    @property
    def num_answers(self) -> int:
        return sum(len(search.attempts) for search in self.searches.values())

    async def _answer(
        self, search: Search, island: int, parents: Sequence[JudgedAnswer], ports: Ports,
        slots: anyio.Semaphore,
    ) -> None:  # fmt: skip
        run, problem = self.run, search.problem
        place = GroupPlace(
            group_id=next(run.group_ids), purpose=Purpose.SEARCH, stage=self.stage,
            step=run.weights.step, parents=tuple(each.turn_id for each in parents),
        )  # fmt: skip
        temperature = run.experiment.eval.temperature
        rules = run.rules(group_size=1, max_turns=1, temperature=temperature)
        shown = replace(ports, shown=tuple(each.exchange for each in parents))
        why = "its prompt does not fit serve.context_tokens"
        try:
            group = await play_group(problem, place=place, rules=rules, ports=shown)
            turns = group.trajectories[0].turns
        except ports.refused as error:  # mostly as too long
            turns, why = (), f"its prompt is refused: {error}"
        if turns:
            await self._take(search, turns[0], island, place.parents)
        else:
            self._num_without_room += 1
            if not parents and not search.ending:
                search.ending = why
                await self._end(search)
        slots.release()

    async def _take(
        self, search: Search, turn: Turn, island: int, parents: tuple[str, ...]
    ) -> None:
        run, name = self.run, search.problem.problem_id
        was_going = not search.ending
        gain = search.add(attempt_of(turn, parents=parents, island=island))
        self.num_tokens += turn.completion.num_tokens
        run.progress.done = int(self._spent(self.num_answers))
        run.progress.numbers = self._numbers()
        if gain:
            speed = turn.verdict.timing and f"{turn.verdict.timing.speedup:.2f}x"
            origin = f", from {parents[-1]}" if parents else ""
            message = f"{name}: {speed or 'correct'}, {turn.turn_id}{origin}"
            await run.record(GAIN, message, says=True, stage=self.stage, problem=name)
        if was_going and search.ending:
            await self._end(search)

    async def _end(self, search: Search) -> None:
        name = search.problem.problem_id
        message = f"{name}: {search.ending}"
        await self.run.record(ENDED, message, says=True, stage=self.stage, problem=name)

    def _numbers(self) -> dict[str, float]:
        bests = [search.best for search in self.searches.values() if search.best is not None]
        speeds = [best.value for best in bests if best.verdict.timing is not None]
        found = {"solved": len(bests) / max(1, len(self.searches))}
        return found | ({"speedup": statistics.geometric_mean(speeds)} if speeds else {})
