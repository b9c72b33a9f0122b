"""Sums over turns that the views show, each written once: for all turns, open steps or one step.

Used by `rolled_views`, which makes the views, and by `settle`, which rolls a step up. No row of an
aggregate mixes two (stage, step), so the rows of a step can be kept in a table (`rollup_tables`). A
change to the result of an aggregate needs a migration that opens every step again.

Placeholders name the source: `{turns}` and `{groups}` are `v_turns` and `groups`, or `live_turns`
and `live_groups`; `{uses}` is `v_samples` and `{replayed}` is `v_replayed`, or their rows of these
steps.
"""

from __future__ import annotations

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
    # fast_p (arXiv 2502.10517): share of samples that are correct and more than p times as fast as
    # the baseline. Here: of sampled first turns; NULL if a correct one was not timed and p > 0.
    "fast_p": f"""
    SELECT g.stage, g.step, max(t.max_version) AS policy_version, p.value AS p,
        count(*) AS num_rollouts,
        CASE WHEN p.value = 0 THEN avg(coalesce(v.status = 'correct', 0))
             WHEN sum(v.status = 'correct' AND v.speedup IS NULL) > 0 THEN NULL
             ELSE avg(coalesce(v.status = 'correct' AND v.speedup > p.value, 0)) END AS fast_p
    FROM {{groups}} g CROSS JOIN trajectories r ON r.group_id = g.group_id
    LEFT JOIN turns t ON t.group_id = g.group_id AND t.rollout = r.rollout AND t.turn = 0
    LEFT JOIN verdicts v ON v.group_id = g.group_id AND v.rollout = r.rollout AND v.turn = 0
    CROSS JOIN json_each('[0, 0.8, 1, 1.5, 2, 3, 5]') AS p
    WHERE g.purpose = 'eval' AND g.num_rollouts > 0 AND NOT g.is_greedy
        AND (t.reward IS NOT NULL OR r.num_turns = 0)
        AND g.{NOT_REPLAYED}
    GROUP BY g.stage, g.step, p.value""",
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
"""Name to SQL; its roll-up table is `rolled_<name>`."""

IS_TIMED = (
    "code_id IS NOT NULL AND (speedup IS NOT NULL OR code_id IN (SELECT code_id FROM rolled_noise))"
)
"""Condition on `live_turns`: the turn's kernel was timed, now or before the turn was rewritten."""
_NOISE = """
    SELECT g.problem_id, t.code_id, v.device, count(*) AS num_times, min(candidate_us) AS low_us,
        avg(candidate_us) AS mean_us, max(candidate_us) AS high_us,
        (max(candidate_us) - min(candidate_us)) / avg(candidate_us) AS relative_range
    FROM {turns} CROSS JOIN verdicts v USING (group_id, rollout, turn)
    LEFT JOIN groups g USING (group_id)
    WHERE v.candidate_us IS NOT NULL AND t.code_id IS NOT NULL
    GROUP BY g.problem_id, t.code_id, v.device HAVING count(*) > 1"""


def noise_of(codes: str | None) -> str:
    """SQL for kernels timed more than once, in any steps.

    Args:
        codes: table of code_id to restrict it to; None for all.
    """
    turns = "turns t" if codes is None else f"{codes} k CROSS JOIN turns t ON t.code_id = k.code_id"
    return _NOISE.format(turns=turns)
