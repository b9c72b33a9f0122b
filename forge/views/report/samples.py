"""Rollouts of a report: listed by problem and verdict, some shown whole, and the links to them.

A set is an evaluation, or the last groups of training. Of each, a rollout is shown for each verdict
of each turn and for each problem and last verdict; further ones are those of best kernels, of
examples of failures and of the pair before and after training. Bounded, however long the run and
its answers: the other rollouts are in the store.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from forge.records import Status
from forge.views.report.asking import ask
from forge.views.report.charts import spread
from forge.views.run_state import stage_name
from forge.views.text.numbers import NONE, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from forge.store.reader import RunReader

MOST_SETS = 4
"""Evaluations that are listed: the first, the last, and some between."""
MOST_PROBLEMS = 250
"""Problems that a set lists."""
MOST_TRAINED = 60
"""Problems of training that are listed, from never solved to always solved."""
MOST_SHOWN = 120
"""Rollouts of a set that are shown whole."""
LONGEST_ANSWER, LONGEST_PROMPT, LONGEST_FEEDBACK = 12_000, 6_000, 2_000
"""Maximum characters of a text; of a longer one, the beginning and the end are shown."""
MOST_CHARACTERS = 3_000_000
"""Characters of all texts together, after which no further rollout is shown."""
BEGINNING = 0.25
"""Share of a cut text that is its beginning. Code is at the end of an answer."""

GROUPS = """
SELECT group_id FROM groups WHERE stage = :stage AND step = :step AND purpose = 'eval'
    AND group_id NOT IN (SELECT group_id FROM v_replayed) ORDER BY group_id LIMIT 2000
"""

TRAINED = """
SELECT problem_id, num_rollouts, correct_share FROM v_problems WHERE purpose = 'train'
ORDER BY correct_share, problem_id
"""

LAST_GROUPS = """
SELECT (SELECT max(group_id) FROM groups g WHERE g.problem_id = j.value AND g.purpose = 'train'
    AND g.num_rollouts > 0) AS group_id
FROM json_each(:problems) j
"""

PLAYED = """
SELECT g.problem_id, p.family, p.level, r.group_id, r.rollout, v.status
FROM json_each(:groups) j CROSS JOIN groups g ON g.group_id = j.value
JOIN trajectories r ON r.group_id = g.group_id
LEFT JOIN verdicts v ON v.group_id = r.group_id AND v.rollout = r.rollout
LEFT JOIN problems p ON p.problem_id = g.problem_id
ORDER BY g.problem_id, r.group_id, r.rollout, v.turn LIMIT 20000
"""

TURNS = """
SELECT turn_id, stage, step, purpose, is_greedy, problem_id, status, reason, reward, speedup,
    num_completion_tokens, finish, min_version, prompt_id, prompt, completion, detail, feedback
FROM v_turns WHERE group_id = :group_id AND rollout = :rollout ORDER BY turn
"""


class PageLink(str):
    """A text that links to a place of the page."""

    anchor: str

    def __new__(cls, text: str, anchor: str) -> PageLink:
        """`anchor`: id of the place."""
        made = super().__new__(cls, text)
        made.anchor = anchor
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRollout:
    """A rollout, without its texts."""

    group_id: int
    rollout: int
    problem: str
    family: str | None
    level: int | None
    statuses: tuple[str, ...]
    """Verdict of each turn."""

    @property
    def name(self) -> str:
        """Its place in the store: `g12.r3`."""
        return f"g{self.group_id}.r{self.rollout}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSet:
    """Rollouts that are listed together."""

    anchor: str
    title: str
    played: Sequence[PlayedRollout]
    shares: Mapping[str, str]
    """Rollouts of each problem in all of training, and the share of correct turns among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRollout:
    """A rollout that is shown whole."""

    name: str
    title: str
    place: tuple[str, int, int]
    """Its problem, group and number: the order on the page."""
    prompt: str
    """Id of its prompt on the page."""
    turns: Sequence[Mapping[str, Any]]


class Samples:
    """The sets, the rollouts that are shown whole, and the links to both."""

    def __init__(
        self,
        reader: RunReader,
        *,
        stages: Sequence[Mapping[str, Any]],
        evaluations: Sequence[Mapping[str, Any]],
        turns: Iterable[str],
    ) -> None:
        """
        Args:
            evaluations: rows of v_evaluations.
            turns: names of turns whose rollouts come first: g12.r3.t1.
        """
        self._reader, self._stages = reader, stages
        self.shown: dict[str, ShownRollout] = {}
        self.prompts: dict[str, str] = {}
        """Prompts of first turns by their ids on the page."""
        self._num_characters = 0
        placed = [row for row in evaluations if row["stage_index"] is not None]
        self._evaluations = {
            (row["stage_index"], row["step"]): RolloutSet(
                anchor=f"rollouts-{row['stage_index']}-{row['step']}",
                title=str(row["stage"]),
                played=self._load_played(ask(reader, GROUPS, _at(row))),
                shares={},
            )
            for row in spread(placed, MOST_SETS)
        }
        self.trained = self._load_trained()
        first = [name.rpartition(".")[0] for name in turns]
        chosen = [one.name for each in self.sets[::-1] for one in _choose(each.played)]
        for name in dict.fromkeys([*first, *chosen]):
            if self._num_characters < MOST_CHARACTERS:
                self._show(name)

    @cached_property
    def sets(self) -> list[RolloutSet]:
        """All sets with rollouts, in the order of the page."""
        trained = [] if self.trained is None else [self.trained]
        return [each for each in (*self._evaluations.values(), *trained) if each.played]

    def of_evaluation(self, text: str, row: Mapping[str, Any]) -> str:
        """The text, as a link to the rollouts of an evaluation if they are listed."""
        found = self._evaluations.get((row["stage_index"], row["step"]))
        return PageLink(text, found.anchor) if found and found.played and text != NONE else text

    def of_training(self, text: str) -> str:
        """The text, as a link to the rollouts of training if they are listed."""
        return PageLink(text, self.trained.anchor) if self.trained in self.sets else text

    def of_turn(self, text: str, turn: str) -> str:
        """The text, as a link to a turn, g12.r3.t1, if its rollout is shown."""
        return PageLink(text, turn) if turn.rpartition(".")[0] in self.shown else text

    def verdicts(self, of: RolloutSet) -> tuple[list[str], list[list[str]]]:
        """Table of a set: turns by verdict, each linked to one."""
        counts: Counter[tuple[str, int]] = Counter()
        example: dict[tuple[str, int], str] = {}
        for one in of.played:
            for turn, status in enumerate(one.statuses):
                counts[status, turn] += 1
                if one.name in self.shown:
                    example.setdefault((status, turn), f"{one.name}.t{turn}")
        num_turns = max((turn + 1 for _, turn in counts), default=0)
        found = {status for status, _ in counts}
        rows = [
            [status, *(
                self.of_turn(f"{counts[at]:,}", example.get(at, "")) if counts[at] else NONE
                for at in ((status, turn) for turn in range(num_turns))
            )]
            for status in sorted(found, key=[*Status, *found].index)
        ]  # fmt: skip
        return ["verdict", *(f"turn {turn + 1}" for turn in range(num_turns))], rows

    def problems(self, of: RolloutSet) -> tuple[list[str], list[list[str | list[str]]]]:
        """Table of a set: its problems, with links to rollouts."""
        by_problem: dict[str, list[PlayedRollout]] = defaultdict(list)
        for one in of.played:
            by_problem[one.problem].append(one)
        rows: list[list[str | list[str]]] = []
        for problem, played in list(by_problem.items())[:MOST_PROBLEMS]:
            first = sum(one.statuses[:1] == (Status.CORRECT,) for one in played)
            anywhere = sum(Status.CORRECT in one.statuses for one in played)
            links = [
                self.of_turn(_outcome(one), f"{one.name}.t0")
                for one in played if one.name in self.shown
            ]  # fmt: skip
            rows.append([
                problem, played[0].family or NONE,
                NONE if played[0].level is None else str(played[0].level),
                of.shares.get(problem, NONE), f"{first} of {len(played)}",
                f"{anywhere} of {len(played)}", links or [f"{played[0].name}, in the store"],
            ])  # fmt: skip
        head = ["problem", "family", "level", "correct of all turns", "correct at first"]
        return [*head, "in any turn", "rollouts"], rows

    def _load_played(self, groups: Sequence[Mapping[str, Any]]) -> list[PlayedRollout]:
        ids = json.dumps([row["group_id"] for row in groups if row["group_id"] is not None])
        turns: dict[tuple[int, int], list[Mapping[str, Any]]] = defaultdict(list)
        for row in ask(self._reader, PLAYED, {"groups": ids}):
            turns[row["group_id"], row["rollout"]].append(row)
        return [
            PlayedRollout(
                group_id=place[0], rollout=place[1], problem=rows[0]["problem_id"],
                family=rows[0]["family"], level=rows[0]["level"],
                statuses=tuple(row["status"] for row in rows if row["status"] is not None),
            )
            for place, rows in turns.items()
        ]  # fmt: skip

    def _load_trained(self) -> RolloutSet | None:
        every = ask(self._reader, TRAINED)
        rows = spread(every, MOST_TRAINED)
        problems = json.dumps([row["problem_id"] for row in rows])
        groups = ask(self._reader, LAST_GROUPS, {"problems": problems})
        if not rows:
            return None
        title = f"training, the last group of {len(rows):,} of {len(every):,} problems"
        shares = {
            row["problem_id"]: f"{percent(row['correct_share'])}, {row['num_rollouts']:,} rollouts"
            for row in rows
        }
        played = self._load_played(groups)
        return RolloutSet(anchor="rollouts-train", title=title, played=played, shares=shares)

    def _show(self, name: str) -> None:
        """Loads a rollout with its texts."""
        group_id, _, rollout = name.removeprefix("g").partition(".r")
        place = {"group_id": int(group_id), "rollout": int(rollout)}
        rows = ask(self._reader, TURNS, place)
        if not rows or rows[0]["stage"] is None:
            return  # lost rows
        prompt = f"prompt-{rows[0]['prompt_id']}"
        if prompt not in self.prompts:
            self.prompts[prompt] = self._cut(rows[0]["prompt"], LONGEST_PROMPT)
        turns = [
            {**row, "answer": self._cut(row["completion"], LONGEST_ANSWER),
             "said": self._cut(row["feedback"] or row["detail"], LONGEST_FEEDBACK)}
            for row in rows
        ]  # fmt: skip
        statuses = " → ".join(str(row["status"]) for row in rows)
        where = f"{stage_name(self._stages, rows[0]['stage'])}, step {rows[0]['step']}"
        greedy = ", greedy" if rows[0]["is_greedy"] else ""
        title = f"{rows[0]['problem_id']}: {statuses} ({name} in {where}{greedy})"
        at = (str(rows[0]["problem_id"]), place["group_id"], place["rollout"])
        self.shown[name] = ShownRollout(
            name=name, title=title, place=at, prompt=prompt, turns=turns
        )

    def _cut(self, text: str | None, most: int) -> str:
        """The text, or the beginning and the end of a long one."""
        text = text or ""
        if len(text) > most:
            head = int(BEGINNING * most)
            left_out = f"\n[{len(text) - most:,} characters more are in the store]\n"
            text = text[:head] + left_out + text[head - most :]
        self._num_characters += len(text)
        return text


def _at(row: Mapping[str, Any]) -> dict[str, int]:
    return {"stage": row["stage_index"], "step": row["step"]}


def _choose(played: Sequence[PlayedRollout]) -> list[PlayedRollout]:
    """One rollout for each verdict of each turn, then one for each problem and last verdict: at
    most MOST_SHOWN of these, spread evenly."""
    by_verdict: dict[tuple[int, str], PlayedRollout] = {}
    by_problem: dict[tuple[str, tuple[str, ...]], PlayedRollout] = {}
    for one in played:
        for verdict in enumerate(one.statuses):
            by_verdict.setdefault(verdict, one)
        by_problem.setdefault((one.problem, one.statuses[-1:]), one)
    return [*by_verdict.values(), *spread(list(by_problem.values()), MOST_SHOWN)]


def _outcome(one: PlayedRollout) -> str:
    """Verdicts of its turns: `wrong → correct`."""
    return " → ".join(one.statuses) or "no turn"
