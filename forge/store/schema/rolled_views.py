"""Views over sums: roll-ups for settled steps, computed afresh for open ones. Used by `run_views`.

`PLAIN` has the same views without roll-ups, for runs of schema 1.
"""

from __future__ import annotations

from forge.store.schema.aggregates import BY_STEP, IS_TIMED, noise_of
from forge.store.schema.rollup_tables import COLUMNS
from forge.store.schema.speed_views import FAST_P

_LAST_ATTEMPT = "(SELECT max(attempt) FROM attempts)"
_IS_LIVE = "(SELECT ended_at IS NULL FROM attempts ORDER BY attempt DESC LIMIT 1)"
_UNFINISHED = f"""(SELECT count(*) FROM groups g WHERE g.stage = s.stage AND g.step = s.step
            AND g.purpose = 'train' AND g.num_rollouts = 0 AND g.attempt = {_LAST_ATTEMPT})"""
_HAS_BATCHES = """EXISTS (SELECT 1 FROM metrics m WHERE m.key = 'rollout/groups/count'
            AND m.stage = s.stage AND NOT EXISTS (SELECT 1 FROM v_rewinds b
                WHERE b.stage = m.stage AND m.step > b.step AND m.attempt < b.attempt))"""
_HAS_BATCH = _HAS_BATCHES.replace("= s.stage", "= s.stage AND m.step = s.step", 1)
_GROUPS_PER_STEP = """(SELECT json_extract(e.data, '$.groups_per_step') FROM events e
            WHERE e.kind = 'stage_start' AND json_extract(e.data, '$.stage') = s.stage
            ORDER BY e.event_id DESC LIMIT 1)"""
_EXPECTED = f"max(s.num_groups + {_UNFINISHED}, coalesce({_GROUPS_PER_STEP}, 0))"
_IS_OPEN = f"""CASE
        WHEN {_IS_LIVE} AND {_UNFINISHED} > 0 THEN 1
        WHEN {_HAS_BATCH} THEN 0
        WHEN {_GROUPS_PER_STEP} IS NULL THEN {_HAS_BATCHES}
        WHEN {_IS_LIVE} THEN 1
        ELSE s.num_groups < {_EXPECTED} END"""
"""True if groups of the step are still to finish. A step without a batch may get more groups than
were admitted so far, since flat ones are replaced. A group that another attempt cut off is played
again as another one. Older versions recorded no groups_per_step."""
_STEPS = f"""
    SELECT s.stage, s.step, s.is_open, s.num_groups,
        CASE WHEN s.is_open THEN {_EXPECTED} ELSE s.num_groups END AS num_expected_groups,
        {COLUMNS["steps"].removeprefix("stage, step, num_groups, ")}
    FROM (SELECT s.*, {_IS_OPEN} AS is_open FROM ({{parts}}) s) s
    ORDER BY s.stage, s.step"""

_PROBLEMS = """
    SELECT s.problem_id, p.family, p.level, p.split, purpose, sum(num_rollouts) AS num_rollouts,
        sum(num_turns) AS num_turns, sum(num_correct_turns) AS num_correct_turns,
        1.0 * sum(num_correct_turns) / sum(num_judged) AS correct_share,
        max(best_reward) AS best_reward, max(best_speedup) AS best_speedup,
        min(first_solved_by_version) AS first_solved_by_version,
        max(last_played_by_version) AS last_played_by_version
    FROM {parts} s LEFT JOIN problems p USING (problem_id) GROUP BY s.problem_id, purpose"""

_BEST_KERNELS = """
    SELECT row_number() OVER (
            ORDER BY t.speedup_low DESC NULLS LAST, t.level DESC, t.num_launches, b.num_bytes,
                t.problem_id
        ) AS rank,
        t.problem_id, t.family, t.level,
        CASE WHEN t.speedup_low IS NULL THEN 'fewest launches, then shortest source'
            ELSE 'speedup_low' END AS ranked_by,
        t.speedup_low, t.speedup, t.candidate_us, t.baseline_us,
        t.num_launches, length(t.code) AS num_characters, t.turn_id, t.stage, t.step, t.purpose,
        t.max_version AS policy_version, t.recorded_at, t.code
    FROM (SELECT group_id, rollout, turn, num_bytes, row_number() OVER (
            PARTITION BY problem_id
            ORDER BY speedup_low DESC NULLS LAST, num_launches, num_bytes, turn_row
        ) AS place FROM {parts}) b
    CROSS JOIN v_turns t USING (group_id, rollout, turn) WHERE b.place = 1"""

_BEST_SETTLED = """(
        SELECT b.* FROM (SELECT DISTINCT problem_id FROM rolled_best) p
        CROSS JOIN rolled_best b ON b.turn_row = (
            SELECT x.turn_row FROM rolled_best x WHERE x.problem_id = p.problem_id
            ORDER BY x.speedup_low DESC, x.num_launches, x.num_bytes, x.turn_row LIMIT 1)
        UNION ALL SELECT * FROM ({live}))"""
"""Best settled kernel of each problem, found by one index lookup."""

_LIVE_CODES = f"""(SELECT code_id FROM live_turns WHERE {IS_TIMED}
        UNION SELECT code_id FROM open_kernels)"""
_NOISE_ROLLED = f"""
    SELECT * FROM rolled_noise WHERE code_id NOT IN {_LIVE_CODES}
    UNION ALL SELECT * FROM ({noise_of(_LIVE_CODES)})"""

_COMMENTS = {
    "v_groups": "one row per group: returns, correct rollouts; filter by step, problem_id",
    "v_steps": "the learning curve: one row per step; is_open: not all of its groups have ended",
    "v_levels": "the learning curve by level and family of the problems",
    "v_failures": "turns that failed, by step, status and reason, with their share of all failures",
    "v_duplicates": "diversity of a group's first turns: equal completions, kernels; by step",
    "v_reward_terms": "each reward term by step: its mean, its range, the share of turns it paid",
    "v_phases": "judging time: seconds by step and phase of a verdict",
    "v_staleness": "age of samples when trained, in steps, with reward by age",
    "v_fast_p": "fast_p of evaluations: first turns correct, over p times as fast; p = 0: correct",
    "v_problems": "one row per played problem: how often it was solved, since which version",
    "v_best_kernels": "best correct kernel per problem: by speedup_low, else fewest launches",
    "v_judge_noise": "kernels timed more than once: spread of their times, by device",
}

_EVERYTHING = {"turns": "v_turns", "groups": "groups", "uses": "v_samples",
               "replayed": "v_replayed"}  # fmt: skip
_LIVE = {"turns": "live_turns", "groups": "live_groups",
         "uses": "open_steps CROSS JOIN v_samples USING (stage, step)",
         "replayed": "open_steps CROSS JOIN v_replayed USING (stage, step)"}  # fmt: skip


def _rolled_up() -> str:
    """Views over roll-ups: stored rows of settled steps, computed rows of open ones."""
    live = {name: sql.format(**_LIVE) for name, sql in BY_STEP.items()}
    best = _BEST_SETTLED.format(live=live.pop("best"))
    parts = {
        name: f"\n    SELECT {COLUMNS[name]} FROM rolled_{name}"
        f"\n    UNION ALL SELECT {COLUMNS[name]} FROM ({sql})"
        for name, sql in live.items()
    }
    return _views(parts, best=best, noise=_NOISE_ROLLED)


def _plain() -> str:
    """The same views without roll-ups, for reading a run whose schema has none."""
    parts = {name: sql.format(**_EVERYTHING) for name, sql in BY_STEP.items()}
    return _views(parts, best=f"({parts.pop('best')})", noise=noise_of(None))


def _views(parts: dict[str, str], *, best: str, noise: str) -> str:
    """All views as a script; `parts` by name of the aggregate."""
    views = {f"v_{name}": sql for name, sql in parts.items()} | {
        "v_steps": _STEPS.format(parts=parts["steps"]),
        "v_problems": _PROBLEMS.format(parts=f"({parts['problems']})"),
        "v_best_kernels": _BEST_KERNELS.format(parts=best),
        "v_fast_p": FAST_P.format(parts=parts["fast_p"]),
        "v_judge_noise": noise,
    }
    return "".join(
        f"\nCREATE VIEW {name} AS\n    -- {_COMMENTS[name]}{sql};\n" for name, sql in views.items()
    )


ROLLED = _rolled_up()
PLAIN = _plain()
