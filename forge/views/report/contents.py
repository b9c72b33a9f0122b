"""Contents of a report: key numbers, tables, charts, rollouts, missing parts, from the run.

A table is a query, whose columns are its heads; the end of a column's name says how its values are
shown (`FORMATS`). Each reads a view or an indexed table and has a limit. The same store gives the
same contents: nothing depends on the current time (a running run is reported as of its last row). A
run made by hand may lack or break any value: a missing one is left out.

Rollouts are listed by set: an evaluation, or the last groups of training. Of each, a rollout is
shown whole for each verdict of each turn and for each problem and last verdict; further ones are
those of best kernels, of examples of failures and of the pair before and after training. Bounded,
however long the run and its answers: the other rollouts are in the store.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from forge.records import Status
from forge.store.reader import RunReader
from forge.views.compare import load_before_after, load_gains
from forge.views.report.charts import CHARTS, STEP_PARTS, Chart, Training, ask, measured_charts
from forge.views.rollouts import MENTIONED_QUEUE_S
from forge.views.run_state import (
    EVALUATIONS,
    load_experiment,
    load_seconds,
    run_state,
    stage_name,
    stage_names,
    words_of,
)
from forge.views.show import load_by_protocol
from forge.views.text import (
    NONE,
    clock,
    finite,
    grouped,
    hide_in_diff,
    hide_secrets,
    percent,
    spread,
    without_empty,
)

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


Table = tuple[Sequence[str], Sequence[Sequence[Any]]]
"""Head and rows. A cell is a text, a link (`PageLink`) or several of these."""
MOST_KERNELS = 40
MOST_EVALUATIONS = 400
REWARD_STEPS = 5
"""Steps in a mean of rewards: each step draws other problems, so that one says little."""

PROBLEMS = """
WITH found AS MATERIALIZED (SELECT DISTINCT purpose, problem_id FROM v_unjudgeable)
SELECT purpose, count(*) AS num_problems, sum(num_correct_turns > 0) AS num_solved,
    sum(correct_share IS NULL AND (purpose, problem_id) IN found) AS num_unjudgeable,
    sum(num_rollouts) AS num_rollouts, sum(num_turns) AS num_turns
FROM v_problems
WHERE purpose IS NOT NULL GROUP BY purpose ORDER BY purpose
"""
ATTEMPTS = """
SELECT reason, seed, code_commit, code_diff, versions, machine FROM attempts ORDER BY attempt
"""
_COLUMNS = ", ".join(
    f"""max(CASE key WHEN '{key}' THEN value END) AS "{name} '" """
    for key, name in STEP_PARTS.items()
)
TABLES = {
    "parts": """
SELECT part AS "by", name, num AS "first turns", pass_at_1 AS "pass@1 %",
    compile_rate AS "compiles %"
FROM v_eval_parts WHERE part IN ('source', 'family', 'level', 'turn') AND (stage, step,
    policy_version) IN (SELECT stage, step, policy_version FROM v_evaluations
    ORDER BY at DESC, stage LIMIT 1) LIMIT 400
""",
    "kernels": f"""
SELECT problem_id AS problem, family, level, speedup_low AS "at least ×", speedup AS "speed-up ×",
    candidate_us AS "µs '", baseline_us AS "baseline µs '", num_launches AS launches,
    policy_version AS policy, turn_id AS turn
FROM v_best_kernels WHERE rank <= {MOST_KERNELS} ORDER BY rank
""",
    "reasons": """
SELECT purpose AS "in", status, reason, sum(num_turns) AS turns, min(example) AS example,
    nullif(max(example), min(example)) AS another
FROM v_failures GROUP BY purpose, status, reason ORDER BY purpose, turns DESC LIMIT 60
""",
    "idle": """
SELECT stage, role, sum(idle_s) / sum(step_s) AS "idle %", sum(step_s) AS "of steps :"
FROM v_idle GROUP BY stage, role HAVING sum(step_s) > 0 ORDER BY stage, role
""",
    "stages": """
SELECT substr(message, 1, instr(message || ':', ':') - 1) AS "name",
    json_extract(data, '$.seconds') AS "time :"
FROM v_events WHERE kind = 'stage_end' ORDER BY event_id LIMIT 100
""",
    "phases": f"""
SELECT * FROM (SELECT phase, sum(total_s) AS "seconds '", sum(num_turns) AS turns,
        sum(total_s) / sum(num_turns) AS "mean s", max(max_s) AS "longest s"
    FROM v_phases GROUP BY phase
    UNION ALL SELECT 'waiting for a judge, in training', queued_s, num_turns, queued_s / num_turns,
        NULL
    FROM (SELECT sum(judge_s) - (SELECT sum(total_s) FROM v_phases WHERE purpose = 'train')
        AS queued_s, sum(num_turns) AS num_turns FROM v_steps)
    WHERE queued_s / num_turns >= {MENTIONED_QUEUE_S})
ORDER BY 2 DESC LIMIT 20
""",
    "slowest": f"""
SELECT stage, step, {_COLUMNS} FROM v_metrics GROUP BY stage, step
HAVING "whole step '" IS NOT NULL ORDER BY "whole step '" DESC, stage, step LIMIT 8
""",
    "attempts": """
SELECT attempt, datetime(started_at, 'unixepoch') AS "started (UTC)",
    datetime(ended_at, 'unixepoch') AS ended, exit_code AS exit, reason
FROM attempts ORDER BY attempt
""",
    "events": """
SELECT "time (UTC)", attempt, kind, what FROM (
    SELECT event_id, datetime(at, 'unixepoch') AS "time (UTC)", attempt, kind, message AS what
    FROM v_events ORDER BY event_id DESC LIMIT 200) ORDER BY event_id
""",
    "nodes": """
SELECT attempt, node, roles, num_gpus AS GPUs, datetime(joined_at, 'unixepoch') AS "joined (UTC)",
    datetime(left_at, 'unixepoch') AS left, num_lost AS lost,
    CASE state WHEN 'up' THEN state ELSE state || ': ' || reason END AS state
FROM v_nodes LIMIT 200
""",
    "processes": """
SELECT attempt, name, devices, started AS "started (UTC)", lived_s AS "lived :", reason AS ended
FROM v_processes ORDER BY attempt, started, name LIMIT 200
""",
}  # fmt: skip
FORMATS: dict[str, Callable[[float], str]] = {
    " %": percent,
    " ×": lambda value: f"{value:,.2f}×",
    " s": lambda value: f"{value:,.3f}",
    " '": lambda value: f"{value:,.1f}",
    " :": lambda value: clock(round(value)),
}
"""End of a column's name to the form of its values; all but ` s` is cut off the head."""
SETTINGS = {
    "model": "path adapter init tiny.num_layers lora.r quantize",
    "problems": "source path num_problems num_heldout sizes dtypes",
    "rollout": "group_size groups_per_step max_turns gamma temperature max_completion_tokens",
    "reward": "compiled correct speedup speedup_cap",
    "judge": "policy protocol num_inputs compile baseline",
    "serve": "engine replicas precision",
}
"""Table of the experiment to its keys in the set-up; the whole experiment is at the end."""


class Contents:
    def __init__(self, reader: RunReader) -> None:
        run = reader.one("SELECT experiment, forge_version FROM runs LIMIT 1") or {}
        self.state = run_state(reader)
        self.version = run.get("forge_version", "?")
        self.config = hide_secrets(run.get("experiment") or "")
        self.settings = load_experiment(reader)
        self.stages = self.settings.get("stage", [])
        self.attempts = ask(reader, ATTEMPTS)
        self.diff = hide_in_diff(self.attempts[-1]["code_diff"] or "") if self.attempts else ""
        self.seconds = load_seconds(reader)
        self.evaluations = ask(
            reader, f"{EVALUATIONS} ORDER BY at DESC, stage LIMIT {MOST_EVALUATIONS}"
        )[::-1]
        self.problems = ask(reader, PROBLEMS)
        names = stage_names(self.stages)
        self.gains = load_gains(reader, self.evaluations, names)
        self.before_after = load_before_after(reader, self.evaluations, names)
        self.training = Training(reader, stages=self.stages, evaluations=self.evaluations)
        self.charts = {"measured": measured_charts(reader, self.evaluations)}
        self.charts |= {part: self.training.charts(each) for part, each in CHARTS.items()}
        self._protocols = load_by_protocol(reader)
        self._raw = {name: reader.query(sql) for name, sql in TABLES.items()}
        self.samples = Samples(
            reader, stages=self.stages, evaluations=self.evaluations, turns=self._named_turns()
        )

    @property
    def drawn(self) -> list[Chart]:
        return [chart for each in self.charts.values() for chart in each if not chart.is_empty]

    def _named_turns(self) -> list[str]:
        """Turns that the report names: of the pair, of best kernels, examples of failures."""
        pair = self.before_after
        found = [] if pair is None else [pair["before"]["turn_id"], pair["after"]["turn_id"]]
        found += [row[-1] for row in self._raw["kernels"].rows]
        return [*found, *(turn for row in self._raw["reasons"].rows for turn in row[-2:] if turn)]

    @cached_property
    def kernels(self) -> list[dict[str, Any]]:
        found = self._raw["kernels"]
        return [finite(dict(zip(found.columns, row, strict=True))) for row in found.rows]

    @property
    def num_rollouts(self) -> int:
        return sum(row["num_rollouts"] for row in self.problems)

    @property
    def num_turns(self) -> int:
        return sum(row["num_turns"] for row in self.problems)

    @property
    def headline(self) -> str:
        """State of the run, with the reason, and its time."""
        num, reason = len(self.attempts), self.attempts[-1]["reason"] if self.attempts else ""
        is_shown = reason and self.state in ("failed", "stopped")
        words = [f"{self.state}: {reason}" if is_shown else self.state]
        words += [f"{num} attempts"] if num > 1 else []
        words += [f"took {clock(self.seconds)}"] if self.seconds is not None else []
        return ", ".join(words)

    @property
    def missing(self) -> list[str]:
        """Parts that the report lacks, each with the reason."""
        kinds = {each.get("kind") for each in self.stages}
        speeds = [row["at least ×"] for row in self.kernels]

        def without(kind: str) -> str:
            return f"; it has no {kind} stage" if kinds and kind not in kinds else " yet"

        found = {
            "no attempt: the run was never started": not self.attempts,
            "no turn was played and judged": not self.num_turns,
            f"no evaluation{without('eval')}": not self.evaluations,
            f"no step of reinforcement learning{without('grpo')}": not self.training.steps,
            "no speed-up: nothing was timed, as on a machine without a GPU": (
                bool(speeds) and not any(speeds)
            ),
            "no correct kernel": bool(self.num_turns) and not speeds,
            "how it ended: it was killed, or its machine stopped": self.state == "killed",
        }
        open_steps = [
            f"{stage_name(self.stages, row['stage'])}, step {row['step']}: open "
            f"({row['num_groups']} of {row['num_expected_groups']} groups), so in no curve"
            for row in self.training.open_steps
        ]
        return [*(words for words, is_missing in found.items() if is_missing), *open_steps]

    @property
    def cards(self) -> list[tuple[str, str, str]]:
        """Title, figure and explanation of each key number that is known."""
        return list(self._cards())

    def _cards(self) -> Iterator[tuple[str, str, str]]:
        link = self.samples.link
        if self.evaluations:
            first, last = self.evaluations[0], self.evaluations[-1]
            about = words_of(last)
            ends = f"{percent(last['ci_low'])} to {percent(last['ci_high'])}"
            words = [f"{last['stage']}, 95 %: {ends}"]
            words += [about["parts"], about["judged"], about["trained"]]
            if len(self.evaluations) > 1:
                words.append(f"{percent(first['pass_at_1'])} in {first['stage']}")
            words += [f"{' and '.join(gain.by)} {gain.points()}" for gain in self.gains]
            figure = link(percent(last["pass_at_1"]), last["stage"])
            yield "pass@1", figure, "; ".join(filter(None, words))
        best = next((row for row in self.kernels if row["speed-up ×"] is not None), None)
        if best is not None:
            figure = link(f"≥ {best['at least ×']:.2f}×", best["turn"])
            yield "Best kernel", figure, f"{best['problem']}, measured {best['speed-up ×']:.2f}×"
        for row in self.problems:
            if row["purpose"] == "train":
                judged = row["num_problems"] - row["num_unjudgeable"]
                words = f"{percent(row['num_solved'] / judged) if judged else NONE}, at least once"
                if row["num_unjudgeable"]:
                    words += f"; {row['num_unjudgeable']:,} more unjudgeable"
                figure = link(f"{row['num_solved']:,} of {judged:,}", "training")
                yield "Training problems solved", figure, words
        rewards = [row["reward"] for row in self.training.steps if row["reward"] is not None]
        if rewards:
            parts = rewards[:REWARD_STEPS], rewards[-REWARD_STEPS:]
            begin, end = (grouped(sum(part) / len(part)) for part in parts)
            words = f"mean of the last {REWARD_STEPS} steps; {begin} in the first {REWARD_STEPS}"
            yield "Reward", end, words
        rollouts = PageLink(f"{self.num_rollouts:,}", "rollouts")
        yield "Rollouts", rollouts, f"{self.num_turns:,} turns judged"
        if self.attempts:
            num = len(self.training.steps)
            words = f"{num:,} {'step' if num == 1 else 'steps'} of GRPO" if num else ""
            yield "Time", clock(self.seconds), words or "of all attempts"

    def tables(self) -> dict[str, Table | None]:
        """Every table by its name in the page; None for one without rows."""
        every = {name: self._shown(found) for name, found in self._raw.items()}
        every |= {
            "setup": (["part", "setting"], self._setup()),
            "machine": (["", "last attempt"], self._machine()),
            "evaluations": self._evaluations(),
            "gains": (["by", "from", "to", "gain in pass@1", "clear of zero", "problems"], [
                [", ".join(gain.by), gain.before, gain.after, gain.points(),
                 "yes" if gain.estimate.is_clear else "no", f"{gain.estimate.num_problems}"]
                for gain in self.gains
            ]),
            "protocols": (
                ["evaluation", "step", "protocol, policy", "counts", "pass@1",
                 "own share of correct"],
                [[row["stage"], str(row["step"]), f"{each['protocol']}, {each['policy']}",
                  "yes" if each["counts"] else "no", percent(each["pass_at_1"]),
                  percent(each["own_share"])]
                 for row in self.evaluations
                 for each in self._protocols.get((row["stage_index"], row["step"]), ())],
            ),
        }  # fmt: skip
        return {name: without_empty(*table) if table[1] else None for name, table in every.items()}

    def _shown(self, found: Any) -> Table:
        rows = [
            [self._cell(head, value) for head, value in zip(found.columns, row, strict=True)]
            for row in found.rows
        ]
        cut = FORMATS.keys() - {" s"}
        return [head[:-2] if head[-2:] in cut else head for head in found.columns], rows

    def _cell(self, head: str, value: Any) -> Any:
        if (value := finite(value)) is None:
            return NONE
        if (form := FORMATS.get(head[-2:])) is not None:
            return form(value)
        if head == "stage":
            return stage_name(self.stages, value)
        return self.samples.link(f"{value:,}" if isinstance(value, int) else str(value), str(value))

    def _evaluations(self) -> Table:
        head = ["evaluation", "step", "policy", "problems × samples", "pass@1", "by source, level"]
        head += ["95 %", "greedy", "any turn", "compiles", "judged", "unjudgeable", "trained on"]
        return head, [
            [
                self.samples.link(row["stage"], row["stage"]), str(row["step"]),
                str(row["policy_version"]), f"{row['num_problems']} × {row['num_samples']}",
                percent(row["pass_at_1"]), words["parts"] or NONE,
                f"{percent(row['ci_low'])} to {percent(row['ci_high'])}",
                percent(row["pass_at_1_greedy"]), percent(row["pass_at_1_multi"]),
                percent(row["compile_rate"]), words["judged_share"] or NONE,
                words["unjudgeable"] or NONE, words["trained_share"] or NONE,
            ]
            for row in self.evaluations for words in [words_of(row)]
        ]  # fmt: skip

    def _setup(self) -> list[list[str]]:
        """Name and settings of each part, without empty ones."""
        stages = [
            f"{each.get('kind', '?')} ({_pairs(each, 'steps epochs learning_rate')})"
            for each in self.stages
        ]
        rows = {"stages": " → ".join(stages).replace(" ()", "")}
        for name, keys in SETTINGS.items():
            rows[name] = _pairs(_table(self.settings, name), keys)
        return [[name, value] for name, value in rows.items() if value]

    def _machine(self) -> list[list[str]]:
        """Machine of the last attempt: the run may have been resumed elsewhere."""
        if not self.attempts:
            return []
        last = self.attempts[-1]
        machine, versions = _unpack(last["machine"]), _unpack(last["versions"])
        gpus = [_value(gpu) for gpu in machine.pop("gpus", None) or []]
        rows = {"commit": last["code_commit"] or "outside a checkout", "seed": last["seed"]}
        rows |= machine | {"GPUs": "; ".join(gpus) or "none", "versions": versions}
        return [[name, _value(value)] for name, value in rows.items()]


def _pairs(table: Mapping[str, Any], names: str) -> str:
    """`group_size 8, lora.r 16`, in this order, without absent keys."""
    found: list[str] = []
    for name in names.split():
        inner, _, key = name.rpartition(".")
        value = (_table(table, inner) if inner else table).get(key)
        if value not in (None, [], ""):
            found.append(f"{name} {_value(value)}")
    return ", ".join(found)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    if isinstance(value, list):
        return "/".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _table(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = settings.get(name)
    return found if isinstance(found, dict) else {}


def _unpack(text: str) -> dict[str, Any]:
    """A JSON object from a column; empty if it is none."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
