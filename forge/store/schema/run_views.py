"""The views: one per subject that a user asks about, so that no query needs a join.

Part of the schema (`migrations` writes them into run.db) and readable by stock sqlite3 if texts are
plain. `forge sql RUN` lists the first comment line of each. Texts are read by subquery, so a query
that does not select them does not load them.

Sums over turns are `aggregates`, shown from roll-ups (`rollup_tables`) so that each view answers at
a million turns. Lists (`v_turns`, `v_groups`, `v_samples`, `v_duplicates`) are as long as the run:
filter them by the columns that their comment names, or use LIMIT. Views without the rows that
`v_rewinds` excludes ask first whether there are rewinds at all: once a query, not once a row.
"""

from forge.store.schema.estimate_tables import ESTIMATE_VIEWS, NO_ESTIMATE_VIEWS
from forge.store.schema.judged_again import JUDGED_AGAIN_VIEWS, NO_JUDGED_AGAIN_VIEWS
from forge.store.schema.program_tables import NO_PROGRAM_VIEWS, PROGRAM_VIEWS
from forge.store.schema.prompt_columns import NO_PROMPT_HASH, PROMPT_HASH
from forge.store.schema.protocol_tables import NO_PROTOCOL_VIEWS, PROTOCOL_VIEWS
from forge.store.schema.rolled_views import PLAIN, ROLLED
from forge.store.schema.shape_tables import NO_SHAPE_VIEWS, SHAPE_VIEWS
from forge.store.schema.speed_views import SPEED_VIEWS

RECORD_VIEWS = """
CREATE VIEW v_turns AS
    -- one row per turn with everything about it, texts too; filter by group_id, step, problem_id
    SELECT t.turn_id, t.group_id, t.rollout, t.turn, g.stage, g.step, g.purpose, g.is_greedy,
        g.problem_id, p.family, p.level, p.split,
        v.status, v.reason, v.status = 'correct' AS is_correct, v.is_compiled, t.reward,
        t.discounted_return, v.speedup, v.speedup_low, v.candidate_us, v.baseline_us,
        v.candidate_spread_us, v.baseline_spread_us, v.achieved_gbps, v.achieved_tflops,
        v.roofline_share, v.torch_share, v.num_launches,
        t.num_prompt_tokens, t.num_completion_tokens, t.finish, t.finish = 'length' AS is_truncated,
        t.min_version, t.max_version, r.ended, t.generate_s, t.judge_s, t.attempt, t.recorded_at,
        v.isolation, v.caps, v.device, v.harness, v.phase_s, t.reward_terms,
        t.prompt_id, t.completion_id, t.code_id, t.prompt_hash,
        (SELECT body FROM texts WHERE text_id = t.prompt_id) AS prompt,
        (SELECT body FROM texts WHERE text_id = t.completion_id) AS completion,
        (SELECT body FROM texts WHERE text_id = t.code_id) AS code,
        (SELECT body FROM texts WHERE text_id = v.detail_id) AS detail,
        (SELECT body FROM texts WHERE text_id = t.feedback_id) AS feedback
    FROM turns t
    LEFT JOIN verdicts v USING (group_id, rollout, turn)
    LEFT JOIN groups g USING (group_id)
    LEFT JOIN trajectories r USING (group_id, rollout)
    LEFT JOIN problems p ON p.problem_id = g.problem_id;

CREATE VIEW v_replayed AS
    -- groups of interrupted evaluations, which were played again when the run was resumed
    SELECT group_id, attempt, stage, step FROM groups g
    WHERE purpose = 'eval' AND attempt < (SELECT max(attempt) FROM groups l
        WHERE l.purpose = 'eval' AND l.stage = g.stage AND l.step = g.step)
    AND NOT (num_rollouts > 0 AND EXISTS (SELECT 1 FROM events k  -- finished ones were kept
            WHERE k.kind = 'evaluation_continued' AND k.attempt > g.attempt
            AND json_extract(k.data, '$.stage') = g.stage
            AND json_extract(k.data, '$.step') = g.step)
        AND NOT EXISTS (SELECT 1 FROM groups l WHERE l.stage = g.stage AND l.step = g.step
            AND l.purpose = 'eval' AND l.attempt > g.attempt AND l.problem_id = g.problem_id
            AND l.is_greedy = g.is_greedy));

CREATE VIEW v_rewinds AS
    -- stages that went back to a step: rows of earlier attempts past it no longer count
    SELECT attempt, json_extract(data, '$.stage') AS stage, json_extract(data, '$.step') AS step,
        message, at
    FROM events WHERE kind = 'rewind';

CREATE VIEW v_samples AS
    -- one row per trained sample (last attempt of a repeated step); filter by stage and step
    SELECT u.stage, u.step, u.attempt, t.turn_id, u.sample_id, u.group_id, u.rollout, u.turn,
        u.advantage, u.staleness,
        s.policy_version, t.reward, t.discounted_return, t.num_prompt_tokens,
        t.num_completion_tokens, t.finish,
        g.problem_id, g.step AS admitted_for_step,
        (SELECT status FROM verdicts v WHERE v.group_id = u.group_id AND v.rollout = u.rollout
            AND v.turn = u.turn)
            AS status
    FROM sample_uses u
    LEFT JOIN samples s USING (sample_id)
    LEFT JOIN turns t ON t.group_id = u.group_id AND t.rollout = u.rollout AND t.turn = u.turn
    LEFT JOIN groups g ON g.group_id = u.group_id
    WHERE u.attempt = (SELECT max(attempt) FROM sample_uses l
        WHERE l.stage = u.stage AND l.step = u.step)
    AND NOT (EXISTS (SELECT 1 FROM v_rewinds) AND EXISTS (SELECT 1 FROM v_rewinds b
        WHERE b.stage = u.stage AND u.step > b.step AND u.attempt < b.attempt));

CREATE VIEW v_metrics AS
    -- every metric by step; the last attempt's where a step was repeated
    SELECT stage, step, key, value, at, max(attempt) AS attempt
    FROM metrics m WHERE NOT (EXISTS (SELECT 1 FROM v_rewinds) AND EXISTS (SELECT 1 FROM v_rewinds b
        WHERE b.stage = m.stage AND m.step > b.step AND m.attempt < b.attempt))
    GROUP BY stage, step, key;

CREATE VIEW v_idle AS
    -- seconds of each step, and those that trainer, replicas and judges were idle
    SELECT i.stage, i.step, substr(i.key, 6, instr(substr(i.key, 6), '/') - 1) AS role,
        i.value AS idle_s, w.value AS step_s, i.value / w.value AS idle_share, i.at
    FROM v_metrics i JOIN v_metrics w
        ON w.stage = i.stage AND w.step = i.step AND w.key = 'step/wall/seconds'
    WHERE i.key BETWEEN 'idle/' AND 'idle0' AND i.key LIKE 'idle/%/seconds';

CREATE VIEW v_evaluations AS
    -- every evaluation of weights that count, oldest first; rates are of num_judged_problems
    SELECT stage, stage_index, step, policy_version, at, num_problems,
        coalesce(json_extract(detail, '$.num_judged_problems'), num_problems)
            AS num_judged_problems,
        coalesce(json_extract(detail, '$.unjudgeable'), '{}') AS unjudgeable,
        num_samples, max_turns,
        pass_at_1, ci_low, ci_high,
        pass_at_1_greedy, pass_at_1_multi, compile_rate,
        coalesce(json_extract(detail, '$.num_trained_problems'), 0) AS num_trained_problems, detail
    FROM evaluations e WHERE NOT EXISTS (
        SELECT 1 FROM v_rewinds b JOIN policies p ON p.version = e.policy_version
        WHERE b.stage = e.stage_index AND e.step > b.step AND p.attempt < b.attempt)
    ORDER BY at, evaluation_id;

CREATE VIEW v_unjudgeable AS
    -- problems that could not be judged: by step and purpose, with reason, turns and a detail
    SELECT stage, step, purpose, problem_id, family, level, reason, num_turns, example,
        (SELECT body FROM texts WHERE text_id = detail_id) AS detail
    FROM (SELECT g.stage, g.step, g.purpose, g.problem_id, v.reason, count(*) AS num_turns,
            min('g' || v.group_id || '.r' || v.rollout || '.t' || v.turn) AS example,
            max(v.detail_id) AS detail_id
        FROM verdicts v JOIN groups g USING (group_id)
        WHERE v.status IN ('unjudgeable', 'infra_error')
            AND (v.status = 'unjudgeable' OR v.reason IN ('reference_failed', 'problem_too_large'))
            AND g.group_id NOT IN (SELECT group_id FROM v_replayed)
        GROUP BY g.stage, g.step, g.purpose, g.problem_id, v.reason)
    LEFT JOIN problems p USING (problem_id);

CREATE VIEW v_pass_at_k AS
    -- pass@k of every evaluation with its interval, of its judged problems with k samples or more
    SELECT e.stage, e.step, e.policy_version, CAST(k.key AS INTEGER) AS k, k.value AS pass_at_k,
        json_extract(e.detail, '$.pass_at_k_ci."' || k.key || '"[0]') AS ci_low,
        json_extract(e.detail, '$.pass_at_k_ci."' || k.key || '"[1]') AS ci_high
    FROM evaluations e, json_each(e.pass_at_k) AS k ORDER BY e.at, e.evaluation_id, k;

CREATE VIEW v_eval_parts AS
    -- evaluations by family, level and turn
    SELECT e.stage, e.step, e.policy_version, substr(part.key, 4) AS part, item.key AS name,
        json_extract(item.value, '$.num') AS num,
        json_extract(item.value, '$.pass_at_1') AS pass_at_1,
        json_extract(item.value, '$.compile_rate') AS compile_rate
    FROM evaluations e, json_each(e.detail) AS part, json_each(part.value) AS item
    WHERE part.key IN ('by_family', 'by_level', 'by_turn')
    ORDER BY e.at, e.evaluation_id, part, name;

CREATE VIEW v_processes AS
    -- every child process: attempt, lifetime in seconds, reason of its end
    SELECT attempt, name, pid, devices, datetime(started_at, 'unixepoch') AS started,
        ended_at - started_at AS lived_s,
        coalesce(reason, 'alive, or killed with its supervisor') AS reason, log_path
    FROM processes ORDER BY started_at;

CREATE VIEW v_nodes AS
    -- machines of [cluster] by attempt: roles, GPUs, children lost, times, and whether it is up
    SELECT attempt, node, replace(group_concat(DISTINCT role), ',', ', ') AS roles,
        count(DISTINCT name) AS num_children,
        coalesce(length(group_concat(DISTINCT device))
            - length(replace(group_concat(DISTINCT device), 'GPU-', 'GPU')), 0) AS num_gpus,
        sum(ended_at IS NULL) AS num_running, sum(is_lost) AS num_lost,
        CASE WHEN sum(ended_at IS NULL) THEN 'up' WHEN max(is_lost) THEN 'lost' ELSE 'left' END
            AS state,
        min(started_at) AS joined_at,
        CASE WHEN sum(ended_at IS NULL) = 0 THEN max(ended_at) END AS left_at,
        coalesce(max(CASE WHEN is_lost THEN reason END), max(reason), '') AS reason
    FROM (
        SELECT attempt, name, rtrim(rtrim(name, '0123456789'), '-') AS role, started_at, ended_at,
            substr(devices, 1, instr(devices, ': ') - 1) AS node,
            substr(devices, instr(devices, ': ') + 2) AS device, reason,
            coalesce(reason LIKE 'its host is gone%' OR reason LIKE 'its node was silent%', 0)
                AS is_lost
        FROM processes WHERE instr(devices, ': ') > 0
    )
    GROUP BY attempt, node ORDER BY attempt, joined_at, node;

CREATE VIEW v_events AS
    -- events in order, with readable times
    SELECT event_id, attempt, datetime(at, 'unixepoch') AS time, kind, message, data, at
    FROM events ORDER BY event_id;
"""

LIVE_VIEWS = """
CREATE VIEW live_groups AS
    -- groups not rolled up: those of open steps or still being played; v_ views compute them afresh
    SELECT g.group_id, g.stage, g.step, g.purpose, g.is_greedy, g.is_flat, g.num_rollouts,
        g.problem_id
    FROM open_steps o CROSS JOIN groups g ON g.stage = o.stage AND g.step = o.step
    UNION ALL SELECT group_id, NULL, NULL, NULL, NULL, NULL, 0, NULL FROM open_groups;

CREATE VIEW live_turns AS
    -- turns of live_groups, without texts
    SELECT t.turn_id, t.group_id, t.rollout, t.turn, g.stage, g.step, g.purpose,
        g.is_greedy, g.problem_id, p.family, p.level, v.status, v.reason,
        v.status = 'correct' AS is_correct,
        v.is_compiled, t.reward, t.discounted_return, v.speedup, v.speedup_low, v.num_launches,
        t.num_completion_tokens, t.finish = 'length' AS is_truncated, t.min_version, t.max_version,
        t.generate_s, t.judge_s, v.phase_s, t.reward_terms, t.completion_id, t.code_id
    FROM live_groups g CROSS JOIN turns t ON t.group_id = g.group_id
    LEFT JOIN verdicts v ON v.group_id = t.group_id AND v.rollout = t.rollout AND v.turn = t.turn
    LEFT JOIN problems p ON p.problem_id = g.problem_id;
"""

_RECORDS = RECORD_VIEWS + SPEED_VIEWS
_OLDER_RECORDS = _RECORDS.replace(PROMPT_HASH, NO_PROMPT_HASH)
_UP_TO_2 = _OLDER_RECORDS + LIVE_VIEWS + ROLLED
_UP_TO_3 = _UP_TO_2 + PROGRAM_VIEWS
_UP_TO_4 = _UP_TO_3 + PROTOCOL_VIEWS
VIEWS = (
    _RECORDS + LIVE_VIEWS + ROLLED + PROGRAM_VIEWS + PROTOCOL_VIEWS + SHAPE_VIEWS
    + ESTIMATE_VIEWS + JUDGED_AGAIN_VIEWS
)  # fmt: skip
_AFTER_5 = NO_ESTIMATE_VIEWS + NO_JUDGED_AGAIN_VIEWS
_AFTER_4 = NO_SHAPE_VIEWS + _AFTER_5
_AFTER_3 = NO_PROTOCOL_VIEWS + _AFTER_4
OLDER_VIEWS = {
    1: _OLDER_RECORDS + PLAIN + NO_PROGRAM_VIEWS + _AFTER_3,
    2: _UP_TO_2 + NO_PROGRAM_VIEWS + _AFTER_3,
    3: _UP_TO_3 + _AFTER_3,
    4: _UP_TO_4 + _AFTER_4,
    5: _UP_TO_4 + SHAPE_VIEWS + _AFTER_5,
    6: _UP_TO_4 + SHAPE_VIEWS + ESTIMATE_VIEWS + NO_JUDGED_AGAIN_VIEWS,
    7: VIEWS.replace(JUDGED_AGAIN_VIEWS, NO_JUDGED_AGAIN_VIEWS),
}
"""Temporary views for runs of older schemas: 1 has no roll-ups, 2 no programs, 3 one protocol, 4
one shape a problem, 5 no estimates, 6 no hash of prompts, 7 no later passes of judging."""


def view_names() -> list[str]:
    """Names of all views, in order of creation."""
    return [line.split()[2] for line in VIEWS.splitlines() if line.startswith("CREATE VIEW")]
