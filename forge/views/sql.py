"""`forge sql RUN "select …"`: any read-only query; without one, the tables and views of the run.

A mistake in the query is one ConfigError line. Named queries ask the views by subject (`--list`,
`--named failures`). A missing parameter of one is NULL, for which
each has a default, so stock sqlite3 runs them all unchanged; tests run all, here and there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from rich.console import Group as RichGroup
from rich.text import Text

from forge.errors import ConfigError
from forge.store.reader import RowStream, RowTable
from forge.views.fitting import Fitting
from forge.views.text import finite, json_text

PLACE = "forge sql"
MOST_ROWS = 1000
"""Maximum rows of a table for the terminal: a query without LIMIT must not fill the memory."""
_COMMENT = re.compile(r"--\s*(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table or view with the first comment of its SQL."""

    name: str
    kind: str
    comment: str
    columns: tuple[str, ...]


def find_named(name: str) -> NamedQuery:
    """The query of this name. Raises ConfigError, which lists all names, if there is none."""
    if name not in QUERIES:
        raise ConfigError(
            f"{PLACE} --named {name}: no such query; there are {', '.join(sorted(QUERIES))}"
        )
    return QUERIES[name]


def named_json() -> list[dict[str, Any]]:
    """All named queries as JSON: name, question, parameters, SQL."""
    return [
        {"name": name, "question": each.question, "params": dict(each.params), "sql": each.sql}
        for name, each in QUERIES.items()
    ]


def render_named() -> Fitting:
    rows = tuple(
        (name, each.question, "\n".join(f"{param}: {what}" for param, what in each.params.items()))
        for name, each in QUERIES.items()
    )
    return Fitting(("name", "question", "parameters"), rows)


def list_relations(ask: Callable[[str], Iterable[tuple[Any, ...]]]) -> list[Relation]:
    """Views, then tables, with their comments; those that only serve the views are left out.

    Not sqlite-utils' `tables` and `columns`: they omit generated columns such as `turns.turn_id`.

    Args:
        ask: gives the rows of a query.
    """
    rows = ask(
        "SELECT name, type, sql FROM main.sqlite_master WHERE type IN ('view', 'table') "
        "AND NOT (name GLOB 'sqlite_*' OR name GLOB 'rolled_*' OR name GLOB 'open_*' OR "
        "name GLOB 'live_*') ORDER BY type DESC, name"
    )
    return [
        Relation(
            name=name,
            kind=kind,
            comment=comment[1] if (comment := _COMMENT.search(sql)) else "",
            columns=tuple(row[1] for row in ask(f'PRAGMA main.table_xinfo("{name}")')),
        )
        for name, kind, sql in rows
    ]


def json_parts(found: RowTable | RowStream) -> Iterator[str]:
    """A JSON list in parts, a line per row: an object with bytes as hex, and numbers that are not
    finite as null."""
    start, names = "[", _unique_names(found.columns)
    for row in found.rows:
        values = (each.hex() if isinstance(each, bytes) else finite(each) for each in row)
        yield f"{start}{json_text(dict(zip(names, values, strict=True)))}"
        start = ",\n"
    yield "[]\n" if start == "[" else "]\n"


def _unique_names(columns: Sequence[str]) -> list[str]:
    """Unique keys: the second `turn` of a join is `turn:1`, as SQLite names it in a subquery."""
    out: dict[str, None] = {}
    for column in columns:
        name, number = column, 0
        while name in out:
            number += 1
            name = f"{column}:{number}"
        out[name] = None
    return list(out)


def render_found(found: RowTable | RowStream, *, most: int = MOST_ROWS) -> RichGroup:
    """The first rows, fitted to the terminal, and a note if there are more."""
    rows = iter(found.rows)
    table = Fitting(found.columns, islice(rows, most))
    if next(rows, None) is None:
        return RichGroup(table)
    note = f"the first {most:,} rows; --json prints all"
    return RichGroup(table, Text(note, style="yellow"))


def render_relations(relations: list[Relation]) -> Fitting:
    return Fitting(("name", "content"), ((each.name, each.comment) for each in relations))


@dataclass(frozen=True, slots=True)
class NamedQuery:
    question: str
    sql: str
    params: Mapping[str, str] = field(default_factory=dict[str, str])

    def bind(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters, missing ones as None. Raises ConfigError for an unknown one."""
        for name in given:
            if name not in self.params:
                has = ", ".join(self.params) or "none"
                raise ConfigError(f"--param {name}: no such parameter; this query has {has}")
        return {name: given.get(name) for name in self.params}


_QUERIES = """
-- learning: Reward, pass rate, best speedup by step and level
SELECT stage, step, level, family, num_groups, round(reward, 4) AS reward,
    round(pass_rate, 3) AS pass_rate, round(best_speedup, 3) AS best_speedup
FROM v_levels ORDER BY stage, step, level, family

-- pass-rate: Pass rate by step: is it learning?
SELECT stage, step, is_open, num_groups, num_expected_groups, reward, pass_rate, pass_rate_multi,
    compile_rate
FROM v_steps ORDER BY stage, step

-- levels: Problems solved, by level and family
SELECT level, family, count(*) AS num_problems, sum(num_correct_turns > 0) AS num_solved,
    sum(num_rollouts) AS num_rollouts, sum(num_turns) AS num_turns,
    round(1.0 * sum(num_correct_turns) / sum(num_turns), 3) AS correct_share,
    round(max(best_speedup), 3) AS best_speedup
FROM v_problems WHERE purpose = 'train' GROUP BY level, family ORDER BY level, family

-- flat-groups: Groups without variance, by step
SELECT stage, step, count(*) AS num_groups, sum(is_flat) AS num_flat,
    sum(num_correct = 0) AS all_failed, sum(num_correct = num_rollouts) AS all_solved
FROM v_groups
WHERE purpose = 'train' AND group_id IN (SELECT group_id FROM groups WHERE num_rollouts > 0)
GROUP BY stage, step

-- failure-mix: Failures by step and status
SELECT stage, step, status, sum(num_turns) AS num_turns, round(sum(share), 3) AS share
FROM v_failures WHERE purpose = 'train' GROUP BY stage, step, status
ORDER BY stage, step, num_turns DESC

-- failures: Failures by status and reason
SELECT status, reason, sum(num_turns) AS num_turns, min(example) AS example
FROM v_failures GROUP BY status, reason ORDER BY num_turns DESC

-- best-of-problem: A problem's best kernel: when it was found, its repeated timings
-- :problem problem_id; that of the best kernel
WITH ranked AS MATERIALIZED (SELECT problem_id, turn_id, rank, ranked_by FROM v_best_kernels),
    best AS (SELECT b.ranked_by, t.* FROM (SELECT turn_id, ranked_by,
                CAST(substr(turn_id, 2, instr(turn_id, '.') - 2) AS INTEGER) AS group_id
            FROM ranked WHERE problem_id = :problem OR (:problem IS NULL AND rank = 1)) b
        CROSS JOIN v_turns t ON t.group_id = b.group_id AND t.turn_id = b.turn_id)
SELECT best.problem_id, best.ranked_by, best.speedup_low, best.speedup, best.candidate_us,
    best.baseline_us, best.num_launches, best.turn_id, best.stage, best.step,
    best.max_version AS policy_version,
    datetime(best.recorded_at, 'unixepoch') AS found, v.device,
    count(v.candidate_us) AS num_times,
    best.baseline_us / min(v.candidate_us) AS speedup_best_again,
    best.baseline_us / avg(v.candidate_us) AS speedup_mean_again,
    best.baseline_us / max(v.candidate_us) AS speedup_worst_again, best.code
FROM best CROSS JOIN turns same ON same.code_id = best.code_id
CROSS JOIN groups g ON g.group_id = same.group_id AND g.problem_id = best.problem_id
CROSS JOIN verdicts v ON v.group_id = same.group_id AND v.rollout = same.rollout
    AND v.turn = same.turn
WHERE v.status = 'correct' GROUP BY best.turn_id, v.device ORDER BY v.device

-- best-kernels: Best kernel per problem, and the ranking criterion
-- :most number of kernels; 100
SELECT problem_id, ranked_by, speedup_low, speedup, candidate_us, baseline_us, num_launches,
    turn_id, policy_version, code
FROM v_best_kernels ORDER BY rank LIMIT coalesce(:most, 100)

-- stale-steps: Age of samples, dropped groups and KL, by step
SELECT s.stage, s.step, s.num_samples, s.staleness, s.staleness_max,
    dropped.value AS num_dropped_groups,
    round(dropped.value / (dropped.value + played.value), 3) AS dropped_share,
    kl.value AS kl_behaviour
FROM (SELECT stage, step, sum(num_samples) AS num_samples, max(staleness) AS staleness_max,
        round(1.0 * sum(staleness * num_samples) / sum(num_samples), 3) AS staleness
    FROM v_staleness GROUP BY stage, step) s
LEFT JOIN v_metrics dropped ON dropped.stage = s.stage AND dropped.step = s.step
    AND dropped.key = 'rollout/stale_groups/count'
LEFT JOIN v_metrics played ON played.stage = s.stage AND played.step = s.step
    AND played.key = 'rollout/groups/count'
LEFT JOIN v_metrics kl ON kl.stage = s.stage AND kl.step = s.step
    AND kl.key = 'train/kl_behaviour/mean'
ORDER BY s.stage, s.step

-- staleness: Reward by age of samples when trained
SELECT stage, staleness, sum(num_samples) AS num_samples,
    round(sum(reward * num_samples) / sum(num_samples), 3) AS reward
FROM v_staleness GROUP BY stage, staleness ORDER BY stage, staleness

-- suspects: The top 1 % of rewards, with suspicious signs, latest turns
-- :turns number of latest turns to include; 20000
WITH recent AS (SELECT * FROM turns WHERE reward IS NOT NULL
        ORDER BY turn_row DESC LIMIT coalesce(:turns, 20000))
SELECT t.turn_id, g.problem_id, t.reward, v.speedup_low, v.speedup,
    CASE WHEN v.num_launches = 0 THEN 'no kernel launched'
        WHEN v.torch_share > 0.5 THEN 'torch does most of it'
        WHEN v.roofline_share > 1 THEN 'faster than the GPU can be'
        WHEN v.candidate_spread_us = 0 THEN 'times do not vary'
        ELSE '' END AS odd,
    v.num_launches, v.torch_share, v.roofline_share,
    round(v.candidate_spread_us / v.candidate_us, 4) AS spread, v.candidate_us, v.baseline_us
FROM recent t JOIN verdicts v USING (group_id, rollout, turn) LEFT JOIN groups g USING (group_id)
ORDER BY t.reward DESC, v.speedup DESC, t.turn_row
LIMIT (SELECT 1 + count(*) / 100 FROM recent)

-- side-by-side: A problem under two policy versions
-- :problem problem_id; the one played at the most steps
-- :older policy version; the first that played the problem
-- :newer policy version; the last that played the problem
WITH asked AS (SELECT coalesce(:problem, (SELECT problem_id FROM groups
        GROUP BY problem_id ORDER BY count(DISTINCT stage || '.' || step) DESC, problem_id LIMIT 1))
        AS problem_id),
    played AS (SELECT t.* FROM groups g JOIN v_turns t USING (group_id)
        WHERE g.problem_id = (SELECT problem_id FROM asked) AND t.turn = 0)
SELECT problem_id, min_version AS policy_version, turn_id, status, reason, reward, speedup,
    completion, feedback
FROM played
WHERE min_version IN (coalesce(:older, (SELECT min(min_version) FROM played)),
    coalesce(:newer, (SELECT max(min_version) FROM played)))
ORDER BY min_version, turn_id

-- lengths: Completion length and truncation by step
SELECT stage, step, is_open, round(completion_tokens, 1) AS completion_tokens, truncated_share,
    reward
FROM v_steps ORDER BY stage, step

-- reward-by-length: Reward by completion length, latest turns
-- :turns number of latest turns to include; 20000
SELECT 64 * (num_completion_tokens / 64) AS tokens_from, count(*) AS num_turns,
    round(avg(reward), 4) AS reward, round(avg(status = 'correct'), 3) AS correct_share,
    round(avg(finish = 'length'), 3) AS truncated_share
FROM (SELECT * FROM turns ORDER BY turn_row DESC LIMIT coalesce(:turns, 20000)) t
JOIN verdicts USING (group_id, rollout, turn)
JOIN groups g USING (group_id)
WHERE g.purpose = 'train' AND reward IS NOT NULL
GROUP BY tokens_from ORDER BY tokens_from

-- wall-time: Wall time by activity
WITH phases AS MATERIALIZED (SELECT stage, phase, sum(total_s) AS total_s FROM v_phases
        WHERE purpose = 'train' GROUP BY stage, phase),
    steps AS MATERIALIZED (SELECT stage, sum(generate_s) AS generate_s, sum(judge_s) AS judge_s
        FROM v_steps GROUP BY stage)
SELECT stage, what, round(seconds, 3) AS seconds, round(seconds / total, 3) AS share_of_wall FROM (
    SELECT stage, what, sum(seconds) AS seconds,
        (SELECT sum(value) FROM v_metrics w
            WHERE w.stage = found.stage AND w.key = 'step/wall/seconds') AS total
    FROM (
        SELECT stage, 'idle: ' || role AS what, idle_s AS seconds FROM v_idle
        UNION ALL SELECT stage, key, value FROM v_metrics
            WHERE key IN ('step/wall/seconds', 'train/step/seconds', 'train/wait/seconds',
                'train/publish_wait/seconds', 'weights/publish/seconds')
        UNION ALL SELECT stage, 'generate, summed over turns', generate_s FROM steps
        UNION ALL SELECT stage, 'judge, summed over turns', judge_s FROM steps
        UNION ALL SELECT stage, 'judge queue, summed over turns', judge_s FROM steps
        UNION ALL SELECT stage, 'judge queue, summed over turns', -total_s FROM phases
        UNION ALL SELECT stage, 'judge phase: ' || phase, total_s FROM phases) found
    GROUP BY stage, what)
ORDER BY stage, seconds DESC

-- idle: Idle share by role
SELECT stage, role, round(sum(idle_s) / sum(step_s), 3) AS idle_share, count(*) AS num_steps
FROM v_idle GROUP BY stage, role ORDER BY stage, role

-- judge-noise: Spread of repeated timings, by device
SELECT device, count(*) AS num_kernels, sum(num_times) AS num_times,
    round(avg(relative_range), 4) AS relative_range, round(max(relative_range), 4) AS worst_range,
    round(avg(mean_us / fastest_us), 4) AS slower_than_fastest_device
FROM (SELECT *, min(mean_us) OVER (PARTITION BY problem_id, code_id) AS fastest_us
    FROM v_judge_noise)
GROUP BY device ORDER BY device

-- batch: Samples trained at a step, with advantages
-- :stage index of the stage; the last that trained
-- :step step; the last of the stage
SELECT stage, step, attempt, sample_id, turn_id, problem_id, policy_version, staleness, status,
    reward, discounted_return, advantage
FROM v_samples
WHERE stage = coalesce(:stage, (SELECT max(stage) FROM sample_uses))
    AND step = coalesce(:step, (SELECT max(step) FROM sample_uses
        WHERE stage = coalesce(:stage, (SELECT max(stage) FROM sample_uses))))
ORDER BY sample_id

-- reward-terms: Mean of each reward term, by step
SELECT r.stage, r.step, r.term,
    round(r.mean * r.num_turns / (s.num_turns - coalesce(s.num_masked, 0)), 4) AS mean,
    round(r.paid_share * r.num_turns / (s.num_turns - coalesce(s.num_masked, 0)), 3) AS paid_share
FROM v_reward_terms r JOIN v_steps s ON s.stage = r.stage AND s.step = r.step
WHERE r.purpose = 'train' ORDER BY r.stage, r.step, r.term

-- reward-shares: Share of each reward term and its correlation with reward, latest turns
-- :turns number of latest turns to include; 10000
WITH recent AS (SELECT t.reward AS y, t.reward_terms FROM (SELECT * FROM turns
        WHERE reward IS NOT NULL ORDER BY turn_row DESC LIMIT coalesce(:turns, 10000)) t
        JOIN groups g USING (group_id) WHERE g.purpose = 'train'),
    whole AS (SELECT 1.0 * count(*) AS n, sum(y) AS y, sum(y * y) AS yy FROM recent),
    paid AS (SELECT term.key AS term, count(*) AS num_paid, sum(term.value) AS x,
        sum(term.value * term.value) AS xx, sum(term.value * y) AS xy
        FROM recent, json_each(reward_terms) AS term GROUP BY term.key)
SELECT term, num_paid, round(x / n, 4) AS mean, round(x / nullif(y, 0), 3) AS share_of_reward,
    round((n * xy - x * y) / nullif(sqrt((n * xx - x * x) * (n * yy - y * y)), 0), 3)
        AS correlation_with_reward
FROM paid, whole ORDER BY abs(x) DESC

-- duplicates: Distinct first answers among siblings, by step
SELECT stage, step, purpose, sum(num_rollouts) AS num_rollouts,
    sum(num_distinct_completions) AS num_distinct, sum(num_distinct_kernels) AS num_kernels,
    round(1 - 1.0 * sum(num_distinct_completions) / sum(num_rollouts), 3) AS duplicate_share
FROM v_duplicates GROUP BY stage, step, purpose ORDER BY stage, step

-- evaluations: Evaluations with intervals, by source and level
SELECT stage, step, policy_version, pass_at_1, ci_low, ci_high,
    (SELECT json_group_object(key, round(value ->> 'pass_at_1', 3)) FROM json_each(by_source))
        AS by_source,
    (SELECT json_group_object(key, round(value ->> 'pass_at_1', 3)) FROM json_each(by_level))
        AS by_level,
    pass_at_1_greedy, pass_at_1_multi, compile_rate, num_judged_problems, num_problems, unjudgeable,
    num_trained_problems, num_shared_problems
FROM v_evaluations

-- pass-at-k: pass@k of each evaluation, with intervals
SELECT stage, step, policy_version, k, pass_at_k, ci_low, ci_high FROM v_pass_at_k

-- fast-p: fast_p of each evaluation
SELECT stage, step, policy_version, p, num_rollouts, fast_p FROM v_fast_p ORDER BY stage, step, p

-- first-better: The first evaluation whose interval is above that of the first
WITH first AS (SELECT * FROM v_evaluations ORDER BY at LIMIT 1)
SELECT e.stage, e.step, e.policy_version, e.pass_at_1, e.ci_low, e.ci_high,
    (SELECT json_group_object(key, round(value ->> 'pass_at_1', 3)) FROM json_each(e.by_source))
        AS by_source,
    first.stage AS compared_with, first.pass_at_1 AS pass_at_1_then, first.ci_high AS ci_high_then
FROM v_evaluations e, first WHERE e.ci_low > first.ci_high ORDER BY e.at LIMIT 1

-- unsolved: Problems never solved in training
SELECT problem_id, family, level, num_rollouts, best_reward, coalesce(best_reward, 0) <= 0 AS
    never_rewarded
FROM v_problems WHERE purpose = 'train' AND num_correct_turns = 0
ORDER BY num_rollouts DESC, problem_id

-- unjudgeable: Problems that could not be judged, with reason and detail
SELECT purpose, problem_id, reason, sum(num_turns) AS num_turns, min(example) AS example,
    max(detail) AS detail
FROM v_unjudgeable GROUP BY purpose, problem_id, reason ORDER BY purpose, problem_id

-- last-minute: Events of the last 60 s
-- :seconds seconds before the end; 60
WITH ended AS (SELECT max(at) AS at FROM (SELECT max(at) AS at FROM events
    UNION ALL SELECT max(ended_at) FROM processes UNION ALL SELECT max(ended_at) FROM attempts
    UNION ALL SELECT max(recorded_at) FROM (SELECT recorded_at FROM turns
        ORDER BY turn_row DESC LIMIT 1)))
SELECT datetime(found.at, 'unixepoch') AS time, round(found.at - ended.at, 3) AS seconds_to_end,
    what, words
FROM ended, (
    SELECT at, kind AS what, message AS words FROM events
    UNION ALL SELECT started_at, name || ' started', 'pid ' || pid FROM processes
    UNION ALL SELECT ended_at, name || ' ended', coalesce(reason, '') FROM processes
    UNION ALL SELECT ended_at, 'attempt ' || attempt || ' ended', coalesce(reason, '')
        FROM attempts
    UNION ALL SELECT at, 'step ' || stage || '.' || step, 'loss ' || coalesce(value, 'not finite')
        FROM metrics WHERE key = 'train/loss/mean') found
WHERE found.at >= ended.at - coalesce(:seconds, 60) ORDER BY found.at
"""
"""Each begins with its name and question; then its parameters with meaning and default."""
_BEGIN = re.compile(r"^-- ([a-z-]+): (.+)\n((?:-- :.+\n)*)", re.MULTILINE)


def _read() -> Iterator[tuple[str, NamedQuery]]:
    _, *parts = _BEGIN.split(_QUERIES)
    for name, question, params, sql in zip(*[iter(parts)] * 4, strict=True):
        named = (line.removeprefix("-- :").partition(" ") for line in params.splitlines())
        yield name, NamedQuery(question, sql.strip(), {param: what for param, _, what in named})


QUERIES: dict[str, NamedQuery] = dict(_read())
