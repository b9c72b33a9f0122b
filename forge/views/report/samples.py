"""Rollouts of a report: listed by problem and verdict, some shown whole, and the links to them.

A set is an evaluation, or the last groups of training. Of each, a rollout is shown for each verdict
of each turn and for each problem and last verdict; further ones are those of best kernels, of
examples of failures and of the pair before and after training. Bounded, however long the run and
its answers: the other rollouts are in the store.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from forge.records import Status
from forge.store.reader import RunReader
from forge.views.report.charts import spread
from forge.views.run_state import stage_name
from forge.views.text.numbers import NONE, finite, percent, without_empty

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
SELECT group_id FROM groups WHERE stage = :stage_index AND step = :step AND purpose = 'eval'
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


Played = dict[str, Any]
"""A rollout without its texts: `name`, as in `g12.r3`, `problem`, `family`, `level`, `statuses`."""
RolloutSet = dict[str, Any]
"""Rollouts that are listed together: `anchor`, `title`, `played`; `shares`, the rollouts of each
problem in all of training and the share of correct turns among them."""


class Samples:
    """The sets, the rollouts that are shown whole, and the links to both."""

    def __init__(
        self,
        reader: RunReader,
        *,
        stages: Sequence[Any],
        evaluations: Sequence[Mapping[str, Any]],
        turns: Iterable[str],
    ) -> None:
        """
        Args:
            evaluations: rows of v_evaluations.
            turns: names of turns whose rollouts come first: g12.r3.t1."""
        self._reader, self._stages = reader, stages
        self.prompts: dict[str, str] = {}
        """Prompts of first turns by their ids on the page."""
        self._shown: dict[str, dict[str, Any]] = {}
        self._num_characters = 0
        placed = [row for row in evaluations if row["stage_index"] is not None]
        found: list[RolloutSet] = [
            {
                "anchor": f"rollouts-{row['stage_index']}-{row['step']}", "title": row["stage"],
                "played": self._load_played(reader.query(GROUPS, dict(row)).rows), "shares": {},
            }
            for row in spread(placed, MOST_SETS)
        ]  # fmt: skip
        found.append(self._load_trained())
        self.sets = [each for each in found if each["played"]]
        """All sets with rollouts, in the order of the page."""
        self._anchors = {each["title"].partition(",")[0]: each["anchor"] for each in self.sets}
        first = [name.rpartition(".")[0] for name in turns]
        chosen = [one["name"] for each in self.sets[::-1] for one in _choose(each["played"])]
        for name in dict.fromkeys([*first, *chosen]):
            if self._num_characters < MOST_CHARACTERS:
                self._show(name)

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The rollouts that are shown whole: name, title, prompt, turns; by problem and group."""
        return sorted(self._shown.values(), key=lambda each: each["place"])

    def link(self, text: str, place: str) -> str:
        """The text, as a link to a turn, g12.r3.t1, or to the set of an evaluation, if it is on the
        page."""
        if place.rpartition(".")[0] in self._shown:
            return PageLink(text, place)
        return PageLink(text, self._anchors[place]) if place in self._anchors else text

    def verdicts(self, of: RolloutSet) -> tuple[list[str], list[list[str]]]:
        """Table of a set: turns by verdict, each linked to one."""
        counts: Counter[tuple[str, int]] = Counter()
        example: dict[tuple[str, int], str] = {}
        for one in of["played"]:
            for turn, status in enumerate(one["statuses"]):
                counts[status, turn] += 1
                if one["name"] in self._shown:
                    example.setdefault((status, turn), f"{one['name']}.t{turn}")
        turns = range(max((turn + 1 for _, turn in counts), default=0))
        found = {status for status, _ in counts}
        rows = [
            [status, *(
                self.link(f"{counts[status, turn]:,}", example.get((status, turn), ""))
                if counts[status, turn] else NONE
                for turn in turns
            )]
            for status in sorted(found, key=[*Status, *found].index)
        ]  # fmt: skip
        return ["verdict", *(f"turn {turn + 1}" for turn in turns)], rows

    def problems(self, of: RolloutSet) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        """Table of a set: its problems, with links to rollouts."""
        by_problem: dict[str, list[Played]] = defaultdict(list)
        for one in of["played"]:
            by_problem[one["problem"]].append(one)
        rows: list[list[str | list[str]]] = []
        for problem, played in list(by_problem.items())[:MOST_PROBLEMS]:
            first = sum(one["statuses"][:1] == (Status.CORRECT,) for one in played)
            anywhere = sum(Status.CORRECT in one["statuses"] for one in played)
            links = [
                self.link(" → ".join(one["statuses"]) or "no turn", f"{one['name']}.t0")
                for one in played if one["name"] in self._shown
            ]  # fmt: skip
            rows.append([
                problem, played[0]["family"], played[0]["level"], of["shares"].get(problem, NONE),
                f"{first} of {len(played)}", f"{anywhere} of {len(played)}",
                links or [f"{played[0]['name']}, in the store"],
            ])  # fmt: skip
        head = ["problem", "family", "level", "correct of all turns", "correct at first"]
        return without_empty([*head, "in any turn", "rollouts"], rows)

    def _load_played(self, groups: Iterable[Sequence[Any]]) -> list[Played]:
        ids = json.dumps([group_id for (group_id,) in groups if group_id is not None])
        found: dict[str, Played] = {}
        for row in self._reader.rows(PLAYED, {"groups": ids}):
            name = f"g{row['group_id']}.r{row['rollout']}"
            level = NONE if row["level"] is None else str(row["level"])
            one = found.setdefault(name, {
                "name": name, "problem": row["problem_id"], "family": row["family"] or NONE,
                "level": level, "statuses": (),
            })  # fmt: skip
            one["statuses"] += () if row["status"] is None else (row["status"],)
        return list(found.values())

    def _load_trained(self) -> RolloutSet:
        every = self._reader.rows(TRAINED)
        rows = spread(every, MOST_TRAINED)
        problems = json.dumps([row["problem_id"] for row in rows])
        groups = self._reader.query(LAST_GROUPS, {"problems": problems}).rows
        shares = {
            row["problem_id"]: f"{percent(row['correct_share'])}, {row['num_rollouts']:,} rollouts"
            for row in rows
        }
        return {
            "anchor": "rollouts-train", "played": self._load_played(groups), "shares": shares,
            "title": f"training, the last group of {len(rows):,} of {len(every):,} problems",
        }  # fmt: skip

    def _show(self, name: str) -> None:
        group_id, rollout = (int(part[1:]) for part in name.split("."))
        rows = finite(self._reader.rows(TURNS, {"group_id": group_id, "rollout": rollout}))
        if not rows or rows[0]["stage"] is None:
            return  # lost rows
        first = rows[0]
        prompt = f"prompt-{first['prompt_id']}"
        if prompt not in self.prompts:
            self.prompts[prompt] = self._cut(first["prompt"], LONGEST_PROMPT)
        for row in rows:
            row["answer"] = self._cut(row["completion"], LONGEST_ANSWER)
            row["said"] = self._cut(row["feedback"] or row["detail"], LONGEST_FEEDBACK)
        statuses = " → ".join(str(row["status"]) for row in rows)
        where = f"{stage_name(self._stages, first['stage'])}, step {first['step']}"
        greedy = ", greedy" if first["is_greedy"] else ""
        self._shown[name] = {
            "name": name, "prompt": prompt, "turns": rows,
            "title": f"{first['problem_id']}: {statuses} ({name} in {where}{greedy})",
            "place": (str(first["problem_id"]), group_id, rollout),
        }  # fmt: skip

    def _cut(self, text: str | None, most: int) -> str:
        """The text, or the beginning and the end of a long one."""
        text = text or ""
        if len(text) > most:
            head = int(BEGINNING * most)
            left_out = f"\n[{len(text) - most:,} characters more are in the store]\n"
            text = text[:head] + left_out + text[head - most :]
        self._num_characters += len(text)
        return text


def _choose(played: Sequence[Played]) -> list[Played]:
    """One rollout for each verdict of each turn, then one for each problem and last verdict: at
    most MOST_SHOWN of these, spread evenly."""
    by_verdict: dict[tuple[int, str], Played] = {}
    by_problem: dict[tuple[str, tuple[str, ...]], Played] = {}
    for one in played:
        for verdict in enumerate(one["statuses"]):
            by_verdict.setdefault(verdict, one)
        by_problem.setdefault((one["problem"], one["statuses"][-1:]), one)
    return [*by_verdict.values(), *spread(list(by_problem.values()), MOST_SHOWN)]
