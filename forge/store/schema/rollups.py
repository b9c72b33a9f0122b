"""Roll-ups: sums over the turns of a step, kept in tables so that views answer at a million turns.

A step of a stage is *open* while rows of it are written, or *settled*: then its sums are stored in
the `rolled_` tables. Views (`views`) show the stored rows and compute those of open steps afresh,
so they are always exact. Triggers open a step, which deletes its stored rows, on any write from any
program; the writer's thread settles all but the last few: before a commit, while idle, at its end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

NOT_REPLAYED = "group_id NOT IN (SELECT group_id FROM {replayed})"
FINISHED = """EXISTS
        (SELECT 1 FROM groups f WHERE f.group_id = t.group_id AND f.num_rollouts > 0)"""
"""Condition on a turn: its group has ended. The rollouts that end first are the easy ones, so turns
of a group that is being played, or was cut off, are in no mean of a step."""

BY_STEP = {
    "groups": """
    SELECT group_id, stage, step, purpose, is_greedy, problem_id, family, level,
        (SELECT is_flat FROM groups g WHERE g.group_id = t.group_id) AS is_flat,
        count(DISTINCT rollout) AS num_rollouts, count(*) AS num_turns,
        (SELECT sum(is_correct) FROM trajectories r WHERE r.group_id = t.group_id) AS num_correct,
        avg(reward) AS reward, min(discounted_return) AS return_low,
        avg(discounted_return) AS return_mean, max(discounted_return) AS return_high,
        max(speedup) AS speedup, count(DISTINCT completion_id) AS num_distinct_completions,
        sum(num_completion_tokens) AS num_completion_tokens,
        min(min_version) AS min_version, max(max_version) AS max_version
    FROM {turns} t GROUP BY group_id""",
    "steps": f"""
    SELECT stage, step, count(DISTINCT group_id) AS num_groups, count(*) AS num_turns,
        (SELECT sum(is_flat) FROM groups g WHERE g.stage = t.stage AND g.step = t.step
            AND g.purpose = 'train') AS num_flat_groups,
        avg(reward) AS reward, avg(discounted_return) AS return_mean,
        avg(CASE WHEN turn = 0 AND reward IS NOT NULL THEN is_correct END) AS pass_rate,
        (SELECT avg(r.is_correct) FROM groups g JOIN trajectories r USING (group_id)
            WHERE g.stage = t.stage AND g.step = t.step AND g.purpose = 'train'
            AND g.num_rollouts > 0 AND r.ended NOT IN ('unjudgeable', 'infra')) AS pass_rate_multi,
        avg(CASE WHEN turn = 0 AND reward IS NOT NULL THEN is_compiled END) AS compile_rate,
        avg(CASE WHEN is_correct THEN speedup END) AS speedup,
        max(CASE WHEN is_correct THEN speedup END) AS best_speedup,
        avg(num_completion_tokens) AS completion_tokens, avg(is_truncated) AS truncated_share,
        sum(num_completion_tokens) AS num_completion_tokens,
        sum(status IN ('unjudgeable', 'infra_error')) AS num_masked,
        min(min_version) AS min_version, max(max_version) AS max_version,
        sum(generate_s) AS generate_s, sum(judge_s) AS judge_s
    FROM {{turns}} t WHERE purpose = 'train' AND {FINISHED} GROUP BY stage, step""",
    "levels": f"""
    SELECT stage, step, level, family, count(DISTINCT group_id) AS num_groups,
        avg(reward) AS reward,
        avg(CASE WHEN turn = 0 AND reward IS NOT NULL THEN is_correct END) AS pass_rate,
        avg(CASE WHEN turn = 0 AND reward IS NOT NULL THEN is_compiled END) AS compile_rate,
        max(CASE WHEN is_correct THEN speedup END) AS best_speedup
    FROM {{turns}} t WHERE purpose = 'train' AND {FINISHED}
    GROUP BY stage, step, level, family""",
    "failures": f"""
    SELECT stage, step, purpose, status, reason, count(*) AS num_turns,
        1.0 * count(*) / sum(count(*)) OVER (PARTITION BY stage, step, purpose) AS share,
        min(turn_id) AS example
    FROM {{turns}} t WHERE status IS NOT NULL AND status <> 'correct' AND {FINISHED}
        AND {NOT_REPLAYED}
    GROUP BY stage, step, purpose, status, reason""",
    "duplicates": f"""
    SELECT stage, step, purpose, group_id, problem_id, count(*) AS num_rollouts,
        count(DISTINCT completion_id) AS num_distinct_completions,
        count(DISTINCT code_id) AS num_distinct_kernels,
        1.0 - 1.0 * count(DISTINCT completion_id) / count(*) AS duplicate_share
    FROM {{turns}} t WHERE turn = 0 AND NOT is_greedy AND {FINISHED} AND {NOT_REPLAYED}
    GROUP BY group_id""",
    "reward_terms": f"""
    SELECT stage, step, purpose, term.key AS term, count(*) AS num_turns, avg(term.value) AS mean,
        min(term.value) AS low, max(term.value) AS high, avg(term.value <> 0) AS paid_share
    FROM {{turns}} t, json_each(t.reward_terms) AS term
    WHERE {FINISHED} AND {NOT_REPLAYED}
    GROUP BY stage, step, purpose, term.key""",
    "phases": f"""
    SELECT stage, step, purpose, phase.key AS phase, count(*) AS num_turns,
        sum(phase.value) AS total_s, avg(phase.value) AS mean_s, max(phase.value) AS max_s
    FROM {{turns}} t, json_each(t.phase_s) AS phase WHERE t.phase_s IS NOT NULL AND {FINISHED}
    GROUP BY stage, step, purpose, phase.key""",
    "staleness": """
    SELECT stage, step, staleness, count(*) AS num_samples,
        1.0 * count(*) / sum(count(*)) OVER (PARTITION BY stage, step) AS share,
        avg(reward) AS reward, avg(abs(advantage)) AS advantage_size
    FROM {uses} GROUP BY stage, step, staleness""",
    # Contribution of a step to each problem; `v_problems` sums them.
    "problems": f"""
    SELECT problem_id, purpose, stage, step,
        count(DISTINCT group_id || '.' || rollout) AS num_rollouts, count(*) AS num_turns,
        count(CASE WHEN status <> 'unjudgeable' THEN is_correct END) AS num_judged,
        sum(is_correct) AS num_correct_turns,
        max(reward) AS best_reward, max(CASE WHEN is_correct THEN speedup END) AS best_speedup,
        min(CASE WHEN is_correct THEN max_version END) AS first_solved_by_version,
        max(max_version) AS last_played_by_version
    FROM {{turns}} t WHERE {NOT_REPLAYED} GROUP BY problem_id, purpose, stage, step""",
    # Best kernel of each problem in a step; `v_best_kernels` takes the best of all steps.
    "best": """
    SELECT turn_row, problem_id, stage, step, group_id, rollout, turn, speedup_low, num_launches,
        num_bytes
    FROM (SELECT t.*, r.turn_row, c.num_bytes, row_number() OVER (
            PARTITION BY t.problem_id, t.stage, t.step
            ORDER BY t.speedup_low DESC NULLS LAST, t.num_launches, c.num_bytes, r.turn_row
        ) AS place
        FROM {turns} t JOIN turns r USING (group_id, rollout, turn)
        LEFT JOIN texts c ON c.text_id = t.code_id WHERE t.status = 'correct')
    WHERE place = 1""",
}
"""Name to SQL; its roll-up table is `rolled_<name>`. No row mixes two (stage, step), so the rows of
a step can be kept in the table.

Placeholders name the source: `{turns}` is `v_turns` or `live_turns`; `{uses}` is `v_samples` and
`{replayed}` is `v_replayed`, or their rows of these steps."""

OPEN_TABLES = """
CREATE TABLE open_steps (
    -- steps written since they were settled, or never settled
    open_id INTEGER PRIMARY KEY,     -- ascending: the longest open step is settled first
    stage INTEGER NOT NULL,
    step INTEGER NOT NULL,
    UNIQUE (stage, step)
);
CREATE TABLE open_groups (
    -- groups with turns but no row yet: still being played, or cut off when the run was killed
    group_id INTEGER PRIMARY KEY
);
"""

_LIVE = {"turns": "live_turns", "uses": "v_samples", "replayed": "v_replayed"}


def _rolled_table(name: str, sql: str) -> str:
    """An empty table with the columns of an aggregate."""
    return f"""
CREATE TABLE rolled_{name} AS SELECT * FROM ({sql.format(**_LIVE)}) WHERE 0;
CREATE INDEX rolled_{name}_by_step ON rolled_{name} (stage, step);
"""


_OPEN = """
    INSERT INTO open_steps (stage, step) SELECT {found}
        AND NOT EXISTS (SELECT 1 FROM open_steps o WHERE o.stage = s.stage AND o.step = s.step);"""


def _open(stage: str, step: str) -> str:
    """SQL that opens the step named by two columns."""
    found = f"s.stage, s.step FROM (SELECT {stage} AS stage, {step} AS step) s WHERE true"
    return _OPEN.format(found=found)


OPEN_ITS_STEP = _OPEN.format(found="s.stage, s.step FROM groups s WHERE s.group_id = NEW.group_id")
OPEN_STEPS_OF_PROBLEM = _OPEN.format(
    found="DISTINCT s.stage, s.step FROM groups s WHERE s.problem_id = NEW.problem_id"
)
OPEN_STEPS_OF_USES = _OPEN.format(
    found="""DISTINCT s.stage, s.step
        FROM samples m CROSS JOIN sample_uses s ON s.sample_id = m.sample_id
        WHERE m.group_id = NEW.group_id AND m.rollout = NEW.rollout AND m.turn = NEW.turn"""
)
"""v_staleness shows a turn's reward at the steps that trained it."""
NOTE_UNGROUPED = """
    INSERT INTO open_groups SELECT NEW.group_id
        WHERE NOT EXISTS (SELECT 1 FROM groups WHERE group_id = NEW.group_id)
        AND NOT EXISTS (SELECT 1 FROM open_groups WHERE group_id = NEW.group_id);"""


_DROP_ROLLED = "".join(
    f"\n    DELETE FROM rolled_{name} WHERE stage = NEW.stage AND step = NEW.step;"
    for name in BY_STEP
)

_TRIGGERS = {
    "open_step_drops_its_rows": ("INSERT ON open_steps", _DROP_ROLLED),
    "turn_inserted": ("INSERT ON turns", NOTE_UNGROUPED + OPEN_ITS_STEP + OPEN_STEPS_OF_USES),
    "turn_updated": ("UPDATE ON turns", OPEN_ITS_STEP),
    "turn_rewarded": (
        "UPDATE OF reward ON turns WHEN NEW.reward IS NOT OLD.reward",
        OPEN_STEPS_OF_USES,
    ),
    "verdict_inserted": ("INSERT ON verdicts", OPEN_ITS_STEP),
    "verdict_updated": ("UPDATE ON verdicts", OPEN_ITS_STEP),
    "trajectory_inserted": ("INSERT ON trajectories", OPEN_ITS_STEP),
    "trajectory_updated": ("UPDATE ON trajectories", OPEN_ITS_STEP),
    "group_inserted": (
        "INSERT ON groups",
        "\n    DELETE FROM open_groups WHERE group_id = NEW.group_id;" + OPEN_ITS_STEP,
    ),
    "group_updated": ("UPDATE ON groups", _open("OLD.stage", "OLD.step") + OPEN_ITS_STEP),
    "problem_inserted": ("INSERT ON problems", OPEN_STEPS_OF_PROBLEM),
    "problem_updated": (
        "UPDATE ON problems WHEN NEW.family IS NOT OLD.family OR NEW.level IS NOT OLD.level",
        OPEN_STEPS_OF_PROBLEM,
    ),
    "use_inserted": ("INSERT ON sample_uses", _open("NEW.stage", "NEW.step")),
    "use_updated": ("UPDATE ON sample_uses", _open("NEW.stage", "NEW.step")),
}
"""Name to the event and the statements that it runs."""

_ROLLED_INDEXES = """
CREATE INDEX rolled_groups_by_group ON rolled_groups (group_id);
CREATE INDEX rolled_problems_by_problem ON rolled_problems (problem_id, purpose);
CREATE INDEX rolled_best_by_turn ON rolled_best (turn_row);
CREATE INDEX rolled_groups_by_problem ON rolled_groups (problem_id);
CREATE INDEX rolled_best_by_problem ON rolled_best
    (problem_id, speedup_low DESC, num_launches, num_bytes, turn_row);
"""
ROLLED_TABLES = (
    "".join(_rolled_table(*each) for each in BY_STEP.items())
    + _ROLLED_INDEXES
    + "".join(
        f"CREATE TRIGGER {name} AFTER {event} BEGIN{statements}\nEND;\n"
        for name, (event, statements) in _TRIGGERS.items()
    )
)
"""Tables, indexes and triggers, after the views that they are made from."""

MAX_OPEN_STEPS = 4
"""Steps that stay open: one being played, one being trained, an evaluation, and a spare. Every view
computes these afresh."""
SETTLED_AT_ONCE = 3
"""Steps settled per commit, 10 ms each: with ten commits per second, no backlog builds up at 15,000
turns per second."""

_ONE_STEP = {
    "turns": "(SELECT * FROM live_turns WHERE stage = :stage AND step = :step)",
    "uses": "(SELECT * FROM v_samples WHERE stage = :stage AND step = :step)",
    "replayed": "v_replayed WHERE stage = :stage AND step = :step",
}
_SETTLE = tuple(
    statement
    for name, sql in BY_STEP.items()
    for statement in (
        # None is there, unless a damaged WAL put older pages beside newer ones.
        f"DELETE FROM rolled_{name} WHERE stage = :stage AND step = :step",
        f"INSERT INTO rolled_{name} {sql.format(**_ONE_STEP)}",
    )
)


def settle_oldest(run: sqlite3.Connection, *, max_open: int = MAX_OPEN_STEPS) -> bool:
    """Settles the longest open steps beyond `max_open`, at most SETTLED_AT_ONCE.

    Returns:
        True if it settled any.
    """
    oldest = run.execute(
        "SELECT stage, step FROM open_steps ORDER BY open_id LIMIT ?", (max_open + SETTLED_AT_ONCE,)
    ).fetchall()
    surplus = oldest[: max(0, len(oldest) - max_open)]
    for stage, step in surplus:
        place = {"stage": stage, "step": step}
        for statement in _SETTLE:
            run.execute(statement, place)
        run.execute("DELETE FROM open_steps WHERE stage = :stage AND step = :step", place)
    return bool(surplus)


def settle_while(run: sqlite3.Connection, *, is_wanted: Callable[[], bool]) -> None:
    """Settles all steps, a few per transaction, until `is_wanted` returns False."""
    is_more = True
    while is_more and is_wanted():
        run.execute("BEGIN IMMEDIATE")
        is_more = settle_oldest(run, max_open=0)
        run.execute("COMMIT")
