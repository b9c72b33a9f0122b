"""The views: one per subject that a user asks about, so that no query needs a join.

The writer puts them into run.db (`create`), where stock sqlite3 reads them if texts are plain.
`forge sql RUN` lists the first comment line of each. Texts are read by subquery, so a query that
does not select them does not load them.

Sums over turns come from `rollups`: stored rows of settled steps, computed rows of open ones. Lists
(`v_turns`, `v_groups`, `v_samples`, `v_duplicates`) are as long as the run: filter them by the
columns that their comment names, or use LIMIT. Views without the rows that `v_rewinds` excludes ask
first whether there are rewinds at all: once a query, not once a row.
"""

from __future__ import annotations

from forge.store.schema.rollups import BY_STEP

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
        json_extract(detail, '$.num_judged_problems') AS num_judged_problems,
        json_extract(detail, '$.unjudgeable') AS unjudgeable,
        num_samples, max_turns,
        pass_at_1, ci_low, ci_high,
        pass_at_1_greedy, pass_at_1_multi, compile_rate,
        json_extract(detail, '$.num_trained_problems') AS num_trained_problems,
        coalesce(json_extract(detail, '$.num_shared_problems'), 0) AS num_shared_problems,
        json_extract(detail, '$.by_source') AS by_source,
        json_extract(detail, '$.by_level') AS by_level, detail
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
    -- evaluations by source, family, level and turn
    SELECT e.stage, e.step, e.policy_version, substr(part.key, 4) AS part, item.key AS name,
        json_extract(item.value, '$.num') AS num,
        json_extract(item.value, '$.pass_at_1') AS pass_at_1,
        json_extract(item.value, '$.compile_rate') AS compile_rate
    FROM evaluations e, json_each(e.detail) AS part, json_each(part.value) AS item
    WHERE part.key IN ('by_source', 'by_family', 'by_level', 'by_turn')
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

_FROM = """
    FROM evaluations e, json_each('["speed", "speed_other"]') AS measured,
        json_each(e.detail, '$.' || measured.value) AS part, json_each(part.value) AS turn"""
_ANSWERS = """e.stage, e.stage_index, e.step, e.policy_version,
        coalesce(json_extract(e.detail, '$.' || measured.value || '.baseline'),
            json_extract(e.detail, '$.baseline')) AS baseline, measured.value = 'speed' AS is_own,
        CASE part.key WHEN 'by_turn' THEN 'turn' ELSE 'best' END AS answers,
        CAST(turn.key AS INTEGER) AS turn"""
_GEOMEAN = """
    SELECT {answers}, '{kernels}' AS kernels,
        {floor} AS floor,
        json_extract(turn.value, '$.{num}') AS num_answers,
        json_extract(turn.value, '$.geomean_{kernels}[0]') AS geomean,
        json_extract(turn.value, '$.geomean_{kernels}[1]') AS ci_low,
        json_extract(turn.value, '$.geomean_{kernels}[2]') AS ci_high,
        json_extract(turn.value, '$.roofline[0]') AS roofline_share{source}
    WHERE part.key IN ('by_turn', 'best_by_turn')"""


def _geomean(kernels: str, *, num: str, floor: str) -> str:
    return _GEOMEAN.format(answers=_ANSWERS, source=_FROM, kernels=kernels, num=num, floor=floor)


SPEED_VIEWS = f"""
CREATE VIEW v_fast_p_by_turn AS
    -- fast_p of evaluations: answers of a turn ('turn'), or the best of a rollout by then ('best').
    -- is_own: against judge.baseline, else against the other one (eval.both_baselines)
    SELECT {_ANSWERS}, CAST(p.key AS REAL) AS p,
        json_extract(turn.value, '$.num') AS num_answers,
        json_extract(p.value, '$[0]') AS fast_p,
        json_extract(p.value, '$[1]') AS ci_low,
        json_extract(p.value, '$[2]') AS ci_high{_FROM}, json_each(turn.value, '$.fast_p') AS p
    WHERE part.key IN ('by_turn', 'best_by_turn');

CREATE VIEW v_fast_p AS
    -- fast_p of evaluations: first turns correct, over p times as fast; p = 0: correct
    SELECT stage_index AS stage, step, policy_version, p, num_answers AS num_rollouts, fast_p,
        ci_low, ci_high
    FROM v_fast_p_by_turn WHERE answers = 'turn' AND turn = 0 AND is_own;

CREATE VIEW v_geomean AS
    -- geometric mean of speed-ups: of correct kernels; of all answers, wrong ones at the floor
    {_geomean("correct", num="num_timed", floor="NULL").strip()}
    UNION ALL {_geomean("all", num="num", floor="json_extract(e.detail, '$.speed.floor')").strip()};
"""

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
again as another one."""
_STEPS = f"""
    SELECT s.stage, s.step, s.is_open, s.num_groups,
        CASE WHEN s.is_open THEN {_EXPECTED} ELSE s.num_groups END AS num_expected_groups,
        num_turns, num_flat_groups, reward, return_mean, pass_rate, pass_rate_multi, compile_rate,
        speedup, best_speedup, completion_tokens, truncated_share, num_completion_tokens,
        num_masked, min_version, max_version, generate_s, judge_s
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

_COMMENTS = {
    "v_groups": "one row per group: returns, correct rollouts; filter by step, problem_id",
    "v_steps": "the learning curve: one row per step; is_open: not all of its groups have ended",
    "v_levels": "the learning curve by level and family of the problems",
    "v_failures": "turns that failed, by step, status and reason, with their share of all failures",
    "v_duplicates": "diversity of a group's first turns: equal completions, kernels; by step",
    "v_reward_terms": "each reward term by step: its mean, its range, the share of turns it paid",
    "v_phases": "judging time: seconds by step and phase of a verdict",
    "v_staleness": "age of samples when trained, in steps, with reward by age",
    "v_problems": "one row per played problem: how often it was solved, since which version",
    "v_best_kernels": "best correct kernel per problem: by speedup_low, else fewest launches",
}

_LIVE = {"turns": "live_turns",
         "uses": "open_steps CROSS JOIN v_samples USING (stage, step)",
         "replayed": "open_steps CROSS JOIN v_replayed USING (stage, step)"}  # fmt: skip


def _rolled_up() -> str:
    """Views over roll-ups: stored rows of settled steps, computed rows of open ones."""
    live = {name: sql.format(**_LIVE) for name, sql in BY_STEP.items()}
    best = _BEST_SETTLED.format(live=live.pop("best"))
    parts = {
        name: f"\n    SELECT * FROM rolled_{name}\n    UNION ALL SELECT * FROM ({sql})"
        for name, sql in live.items()
    }
    return summed_views(parts, best=best)


def summed_views(parts: dict[str, str], *, best: str) -> str:
    """All views over sums as a script; `parts` by name of the aggregate."""
    views = {f"v_{name}": sql for name, sql in parts.items()} | {
        "v_steps": _STEPS.format(parts=parts["steps"]),
        "v_problems": _PROBLEMS.format(parts=f"({parts['problems']})"),
        "v_best_kernels": _BEST_KERNELS.format(parts=best),
    }
    return "".join(
        f"\nCREATE VIEW {name} AS\n    -- {_COMMENTS[name]}{sql};\n" for name, sql in views.items()
    )


ROLLED = _rolled_up()

FURTHER_VIEWS = """
CREATE VIEW v_judge_noise AS
    -- kernels timed more than once: spread of their times, by device; reads every turn
    SELECT g.problem_id, t.code_id, v.device, count(*) AS num_times, min(candidate_us) AS low_us,
        avg(candidate_us) AS mean_us, max(candidate_us) AS high_us,
        (max(candidate_us) - min(candidate_us)) / avg(candidate_us) AS relative_range
    FROM (SELECT code_id FROM turns WHERE code_id IS NOT NULL GROUP BY code_id HAVING count(*) > 1)
    CROSS JOIN turns t USING (code_id)
    CROSS JOIN verdicts v USING (group_id, rollout, turn)
    LEFT JOIN groups g USING (group_id)
    WHERE v.candidate_us IS NOT NULL
    GROUP BY g.problem_id, t.code_id, v.device HAVING count(*) > 1;

CREATE VIEW v_calls AS
    -- calls of tools, with the message that asked and the reply; filter by group_id, step or tool
    SELECT 'g' || c.group_id || '.r' || c.rollout || '.t' || c.turn AS turn_id, c.group_id,
        c.rollout, c.turn, c.call, g.stage, g.step, g.purpose, g.problem_id, c.tool, c.arguments,
        (SELECT body FROM texts WHERE text_id = c.message_id) AS message,
        (SELECT body FROM texts WHERE text_id = c.result_id) AS result, c.seconds
    FROM turn_calls c
    LEFT JOIN groups g USING (group_id);

CREATE VIEW v_programs AS
    -- the program of each turn and its size; equal ids are equal programs; filter by group_id
    SELECT 'g' || t.group_id || '.r' || t.rollout || '.t' || t.turn AS turn_id, t.group_id,
        t.rollout, t.turn, t.program_id, length(p.body) AS num_bytes, g.stage, g.step, g.problem_id
    FROM turn_programs t
    LEFT JOIN programs p USING (program_id)
    LEFT JOIN groups g USING (group_id);

CREATE VIEW v_protocols AS
    -- verdicts of further protocols beside the one that counts; filter by group_id or step
    SELECT 'g' || o.group_id || '.r' || o.rollout || '.t' || o.turn AS turn_id, o.group_id,
        o.rollout, o.turn, g.stage, g.step, g.purpose, g.problem_id, o.protocol, o.status, o.reason,
        v.status AS own_status, v.reason AS own_reason,
        (o.status = 'correct') = (v.status = 'correct') AS is_agreed,
        1 - v.torch_share AS own_share, o.detail,
        (SELECT body FROM texts WHERE text_id = v.detail_id) AS own_detail
    FROM turn_protocols o
    LEFT JOIN verdicts v USING (group_id, rollout, turn)
    LEFT JOIN groups g USING (group_id);

CREATE VIEW v_shapes AS
    -- results by shape of problems with several; filter by group_id, step or problem_id
    SELECT 'g' || s.group_id || '.r' || s.rollout || '.t' || s.turn AS turn_id, s.group_id,
        s.rollout, s.turn, g.stage, g.step, g.purpose, g.problem_id, s.shape, s.name, s.status,
        s.speedup, s.speedup_low, s.candidate_us, s.baseline_us, s.candidate_spread_us,
        s.baseline_spread_us, s.achieved_gbps, s.achieved_tflops, s.roofline_share
    FROM turn_shapes s
    LEFT JOIN groups g USING (group_id);

CREATE VIEW v_judged_again AS
    -- verdicts of forge judge --run beside the run's own; filter by judging, group_id or step
    SELECT a.judging, j.protocol, j.policy, j.ended_at IS NOT NULL AS is_whole,
        'g' || a.group_id || '.r' || a.rollout || '.t' || a.turn AS turn_id, a.group_id,
        a.rollout, a.turn, g.stage, g.step, g.purpose, g.problem_id, a.status, a.reason,
        v.status AS own_status, v.reason AS own_reason, a.status <> v.status AS is_changed,
        a.speedup, a.speedup_low, v.speedup AS own_speedup, v.speedup_low AS own_speedup_low,
        a.device, v.device AS own_device, a.harness, v.harness AS own_harness, a.detail,
        (SELECT body FROM texts WHERE text_id = v.detail_id) AS own_detail, a.judged_at
    FROM verdicts_again a
    JOIN judgings j USING (judging)
    LEFT JOIN verdicts v USING (group_id, rollout, turn)
    LEFT JOIN groups g USING (group_id);
"""

VIEWS = RECORD_VIEWS + SPEED_VIEWS + LIVE_VIEWS + ROLLED + FURTHER_VIEWS


def view_names() -> list[str]:
    return [line.split()[2] for line in VIEWS.splitlines() if line.startswith("CREATE VIEW")]
