"""Searching for a faster kernel of one problem: which earlier answers the next prompt shows.

An answer is a rollout of one turn (`play_group`). Its prompt shows its parents, judged answers with
their feedback, as the earlier turns of a rollout. The strategies differ in the parents alone:

    best-of-n   none: every answer is a first one
    refine      the answers of its chain, each the parent of the next. As many chains grow side by
                side as answers are asked for at once; one ends after `depth` answers
    evolve      islands, after FunSearch (Romera-Paredes et al., Nature 625, 2024): an archive each,
                of the best answer of each structure (MAP-Elites, arXiv 1504.04909): launches in one
                forward, and share of the work by own kernels. The parent is drawn by its rank; at
                times the best of another island is shown before it. An island without a correct
                answer repairs its newest failure or begins anew. The best answers migrate

A search ends when nothing is to be gained: a share of the roofline is reached, `patience` answers
in a row were no better, or the best answer is correct and nobody measures times. It ends, too, if
the problem cannot be judged, if the machine failed at `MAX_UNSCORED` answers in a row, or if
`patience` in a row were empty, which cost no tokens.

Several searches share a budget: the next answer goes to the search with the largest expected gain,

    unsolved    1 / (n + 1)                         n: answers so far, those on their way included
    solved      (ln 2 / 2 + Σ g) / (m + 1)          m: answers since the first correct one
                                                    g: gains ln(s / s before) of the speed-ups s

so a search that keeps on gaining goes on, and all others get their turn.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from forge.data.prompts.prompt_set import Exchange
from forge.records import Problem, Status, Turn, Verdict

Strategy = Literal["best-of-n", "refine", "evolve"]

NUM_ISLANDS = 4
MIGRATE_EVERY = 16
"""Answers of a search after which the best of each island is known to the next one, too."""
SHARE_FRESH, SHARE_REPAIRED, SHARE_INSPIRED = 0.2, 0.5, 0.3
"""Probability of an answer without parents; of a repair, on an island where nothing is correct; and
of a second answer in the prompt."""
MAX_UNSCORED = 4
"""Answers in a row that the machine could not judge, after which the search ends."""
PRIOR_GAIN = math.log(2.0) / 2
"""Gain that is expected of the first answer after a correct one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAnswer:
    turn_id: str
    completion_text: str
    verdict: Verdict
    parents: tuple[str, ...] = ()
    """Turns that its prompt showed, the newest last."""
    island: int = 0

    @property
    def exchange(self) -> Exchange:
        return Exchange(completion_text=self.completion_text, verdict=self.verdict)

    @property
    def value(self) -> float:
        """Order of attempts: the lower end of the speed-up's interval; 1 if it is correct and was
        not timed; below 0 if it is wrong, less so if it compiled."""
        verdict = self.verdict
        if not verdict.is_correct:
            return -1.0 if verdict.is_compiled else -2.0
        return 1.0 if verdict.timing is None else verdict.timing.speedup_low

    @property
    def structure(self) -> tuple[int, int]:
        """Launches in one forward, and quarters of the work that its own kernels do."""
        share = self.verdict.own_share
        return self.verdict.num_launches, 4 if share is None else round(4 * share)


@dataclass(slots=True, kw_only=True)
class Search:
    problem: Problem
    strategy: Strategy
    depth: int
    """Largest number of answers in a chain, and of repairs in a row."""
    patience: int
    """Answers in a row without a gain, after a correct one, that end the search."""
    roofline_share: float
    """Share of the roofline that ends the search."""
    seed: int
    attempts: list[JudgedAnswer] = field(default_factory=list[JudgedAnswer])
    num_started: int = 0
    """Answers that were asked for, those on their way included."""
    ending: str = ""
    """Why it ended; empty while it goes on."""
    best: JudgedAnswer | None = None
    _gains: list[float] = field(default_factory=list[float])
    _unscored: int = 0
    _empty: int = 0
    _solved_at: int = 0
    _improved_at: int = 0
    _leaves: list[JudgedAnswer] = field(default_factory=list[JudgedAnswer])
    _chains: dict[str, list[JudgedAnswer]] = field(default_factory=dict[str, list[JudgedAnswer]])
    _islands: list[list[JudgedAnswer]] = field(
        default_factory=lambda: [[] for _ in range(NUM_ISLANDS)]
    )

    def begin(self) -> tuple[int, list[JudgedAnswer]]:
        """Counts one more answer. Returns its island, and its parents, the newest last."""
        number = self.num_started
        self.num_started += 1
        if self.strategy == "refine":
            return 0, self._chains[self._leaves.pop(0).turn_id] if self._leaves else []
        if self.strategy == "evolve":
            island = number % NUM_ISLANDS
            return island, self._parents(island, random.Random(f"{self.seed} {number}"))
        return 0, []

    def restore(self, turn: Turn, *, parents: Sequence[str]) -> None:
        """Takes an answer that was judged before an interruption. What continues it, and has no
        verdict yet, is asked for again."""
        island = self.num_started % NUM_ISLANDS if self.strategy == "evolve" else 0
        self.num_started += 1
        self._leaves = [leaf for leaf in self._leaves if leaf.turn_id not in parents]
        self.add(attempt_of(turn, parents=parents, island=island))

    def add(self, attempt: JudgedAnswer) -> float:
        """Takes a judged answer. Returns its gain, ln(s / s before); 1 for the first correct
        one."""
        verdict = attempt.verdict
        if not verdict.status.is_scored:
            self._unscored += 1
            if verdict.status == Status.UNJUDGEABLE or self._unscored >= MAX_UNSCORED:
                said = verdict.detail.partition("\n")[0] or verdict.reason
                self.ending = f"{verdict.status}: {said}"
            return 0.0
        self._unscored = 0
        self._empty = 0 if attempt.completion_text.strip() else self._empty + 1
        known = {each.turn_id: each for each in self.attempts}
        chain = [known[name] for name in attempt.parents if name in known]
        self.attempts.append(attempt)
        self._islands[attempt.island].append(attempt)
        if len(chain) + 1 < self.depth:
            self._chains[attempt.turn_id] = [*chain, attempt]
            self._leaves.append(attempt)
        if len(self.attempts) % MIGRATE_EVERY == 0:
            self._migrate()
        gain = self._gain(attempt)
        self._end()
        return gain

    @property
    def expected_gain(self) -> float:
        """Gain that the next answer is expected to bring; see above."""
        if self.best is None:
            return 1 / (self.num_started + 1)
        answers = self.num_started - self._solved_at
        return (PRIOR_GAIN + sum(self._gains)) / (answers + 1)

    def _gain(self, attempt: JudgedAnswer) -> float:
        best = self.best
        if attempt.value <= (0.0 if best is None else best.value):
            return 0.0
        self.best, self._improved_at = attempt, len(self.attempts)
        if best is None:
            self._solved_at = len(self.attempts)
            return 1.0
        gain = math.log(attempt.value / best.value)
        self._gains.append(gain)
        return gain

    def _end(self) -> None:
        if self._empty >= self.patience:
            self.ending = f"{self.patience} answers in a row were empty"
        if self.best is None:
            return
        timing = self.best.verdict.timing
        if timing is None:
            self.ending = "correct, and nobody measures times"
        elif (timing.roofline_share or 0.0) >= self.roofline_share:
            self.ending = f"{timing.roofline_share:.0%} of the roofline"
        elif len(self.attempts) - self._improved_at >= self.patience:
            self.ending = f"no gain in {self.patience} answers"

    def _parents(self, island: int, draw: random.Random) -> list[JudgedAnswer]:
        found = self._islands[island]
        elites = _elites(found)
        if not elites:
            newest = found[-1:] if draw.random() < SHARE_REPAIRED else []
            return [*newest] if newest and self._repairs(newest[0]) < self.depth else []
        if draw.random() < SHARE_FRESH:
            return []
        weights = [1 / (rank + 1) for rank in range(len(elites))]
        (parent,) = draw.choices(elites, weights)
        others = [each for number, each in enumerate(self._bests()) if number != island and each]
        if others and draw.random() < SHARE_INSPIRED:
            shown = draw.choice(others)
            return [shown, parent] if shown is not parent else [parent]
        return [parent]

    def _repairs(self, attempt: JudgedAnswer) -> int:
        """Failures in a row up to this one, each the parent of the next."""
        known = {each.turn_id: each for each in self.attempts}
        count = 1
        while attempt.parents and (parent := known.get(attempt.parents[-1])) is not None:
            if parent.value > 0:
                break
            attempt, count = parent, count + 1
        return count

    def _bests(self) -> list[JudgedAnswer | None]:
        return [next(iter(_elites(island)), None) for island in self._islands]

    def _migrate(self) -> None:
        """Each island learns the best of the one before it."""
        bests = self._bests()
        for number, island in enumerate(self._islands):
            best = bests[number - 1]
            if best is not None and best not in island:
                island.append(best)


def _elites(attempts: Iterable[JudgedAnswer]) -> list[JudgedAnswer]:
    """The best correct attempt of each structure, best first."""
    cells: dict[tuple[int, int], JudgedAnswer] = {}
    for attempt in attempts:
        held = cells.get(attempt.structure)
        if attempt.value > (0.0 if held is None else held.value):
            cells[attempt.structure] = attempt
    return sorted(cells.values(), key=lambda each: -each.value)


def next_search(searches: Iterable[Search]) -> Search | None:
    """The search that the next answer goes to; None if all have ended."""
    going = [each for each in searches if not each.ending]
    return max(going, key=lambda each: each.expected_gain, default=None)


def attempt_of(turn: Turn, *, parents: Sequence[str], island: int = 0) -> JudgedAnswer:
    return JudgedAnswer(
        turn_id=turn.turn_id, completion_text=turn.completion_text, verdict=turn.verdict,
        parents=tuple(parents), island=island,
    )  # fmt: skip
