-- The views of schema 1, with the columns of today: sums over all turns, which roll-ups must equal
-- (test_rollups.py).
CREATE VIEW v_turns AS
    -- one row a turn with everything that is known of it, texts included
    SELECT t.turn_id, t.group_id, t.rollout, t.turn, g.stage, g.step, g.purpose, g.is_greedy,
        g.problem_id, p.family, p.level, p.split,
        v.status, v.reason, v.status = 'correct' AS is_correct, v.is_compiled, t.reward,
        t.discounted_return, v.speedup, v.speedup_low, v.candidate_us, v.baseline_us,
        v.candidate_spread_us, v.baseline_spread_us, v.achieved_gbps, v.achieved_tflops,
        v.roofline_share, v.torch_share, v.num_launches,
        t.num_prompt_tokens, t.num_completion_tokens, t.finish, t.finish = 'length' AS is_truncated,
        t.min_version, t.max_version, r.ended, t.generate_s, t.judge_s, t.attempt, t.recorded_at,
        v.isolation, v.caps, v.device, v.harness, v.phase_s, t.reward_terms,
        t.prompt_id, t.completion_id, t.code_id,
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

CREATE VIEW v_groups AS
    -- one row a group: its returns, how many rollouts were correct, whether it gave a signal
    SELECT group_id, stage, step, purpose, is_greedy, problem_id, family, level,
        (SELECT is_flat FROM groups g WHERE g.group_id = v_turns.group_id) AS is_flat,
        count(DISTINCT rollout) AS num_rollouts, count(*) AS num_turns,
        (SELECT sum(is_correct) FROM trajectories r
            WHERE r.group_id = v_turns.group_id) AS num_correct,
        avg(reward) AS reward, min(discounted_return) AS return_low,
        avg(discounted_return) AS return_mean,
        max(discounted_return) AS return_high, max(speedup) AS speedup,
        count(DISTINCT completion_id) AS num_distinct_completions,
        sum(num_completion_tokens) AS num_completion_tokens,
        min(min_version) AS min_version, max(max_version) AS max_version
    FROM v_turns GROUP BY group_id;

CREATE VIEW v_replayed AS
    -- groups of evaluations that were cut short and played again when the run was resumed
    SELECT group_id, attempt, stage, step
    FROM groups JOIN (SELECT stage, step, max(attempt) AS last_attempt FROM groups
        WHERE purpose = 'eval' GROUP BY stage, step) USING (stage, step)
    WHERE purpose = 'eval' AND attempt < last_attempt;

CREATE VIEW v_steps AS
    -- one row a step of training: reward, pass rate, lengths, waste; the learning curve
    WITH sums AS (SELECT stage, step, count(DISTINCT group_id) AS num_groups, count(*) AS num_turns,
        (SELECT sum(is_flat) FROM groups g WHERE g.stage = t.stage AND g.step = t.step
            AND g.purpose = 'train')
            AS num_flat_groups,
        avg(reward) AS reward, avg(discounted_return) AS return_mean,
        avg(CASE WHEN turn = 0 AND reward IS NOT NULL THEN is_correct END) AS pass_rate,
        (SELECT avg(r.is_correct) FROM trajectories r JOIN groups g USING (group_id)
            WHERE g.stage = t.stage AND g.step = t.step AND g.purpose = 'train'
            AND g.num_rollouts > 0 AND r.ended <> 'infra')
            AS pass_rate_multi,
        avg(CASE WHEN turn = 0 AND reward IS NOT NULL THEN is_compiled END) AS compile_rate,
        avg(CASE WHEN is_correct THEN speedup END) AS speedup,
        max(CASE WHEN is_correct THEN speedup END) AS best_speedup,
        avg(num_completion_tokens) AS completion_tokens, avg(is_truncated) AS truncated_share,
        sum(num_completion_tokens) AS num_completion_tokens,
        sum(status = 'infra_error') AS num_masked,
        min(min_version) AS min_version, max(max_version) AS max_version,
        sum(generate_s) AS generate_s, sum(judge_s) AS judge_s
    FROM v_turns t WHERE purpose = 'train'
        AND group_id IN (SELECT group_id FROM groups WHERE num_rollouts > 0)
    GROUP BY stage, step),
    last AS (SELECT attempt, ended_at IS NULL AS is_live FROM attempts
        WHERE attempt = (SELECT max(attempt) FROM attempts)),
    unfinished AS (SELECT g.stage, g.step, count(*) AS num FROM groups g JOIN last USING (attempt)
        WHERE purpose = 'train' AND num_rollouts = 0 GROUP BY g.stage, g.step),
    wanted AS (SELECT json_extract(data, '$.stage') AS stage,
            json_extract(data, '$.groups_per_step') AS num, max(event_id)
        FROM events WHERE kind = 'stage_start' GROUP BY 1),
    batches AS (SELECT DISTINCT stage, step FROM metrics WHERE key = 'rollout/groups/count'),
    counted AS (SELECT sums.*, coalesce(unfinished.num, 0) AS num_unfinished,
            max(num_groups + coalesce(unfinished.num, 0), coalesce(wanted.num, 0)) AS num_expected,
            batches.step IS NOT NULL AS has_batch, wanted.num AS num_wanted,
            coalesce((SELECT is_live FROM last), 0) AS is_live
        FROM sums LEFT JOIN unfinished USING (stage, step) LEFT JOIN wanted USING (stage)
        LEFT JOIN batches USING (stage, step)),
    judged AS (SELECT *, CASE WHEN is_live AND num_unfinished > 0 THEN 1
            WHEN has_batch THEN 0
            WHEN num_wanted IS NULL THEN stage IN (SELECT stage FROM batches)
            ELSE is_live OR num_groups < num_expected END AS is_open FROM counted)
    SELECT stage, step, is_open, num_groups,
        CASE WHEN is_open THEN num_expected ELSE num_groups END AS num_expected_groups,
        num_turns, num_flat_groups, reward, return_mean, pass_rate, pass_rate_multi,
        compile_rate, speedup, best_speedup, completion_tokens, truncated_share, num_completion_tokens,
        num_masked, min_version, max_version, generate_s, judge_s
    FROM judged;

CREATE VIEW v_levels AS
    -- the learning curve apart by level and family of the problems
    SELECT stage, step, level, family, count(DISTINCT group_id) AS num_groups,
        avg(reward) AS reward,
        avg(CASE WHEN turn = 0 AND reward IS NOT NULL THEN is_correct END) AS pass_rate,
        avg(CASE WHEN turn = 0 AND reward IS NOT NULL THEN is_compiled END) AS compile_rate,
        max(CASE WHEN is_correct THEN speedup END) AS best_speedup
    FROM v_turns WHERE purpose = 'train'
        AND group_id IN (SELECT group_id FROM groups WHERE num_rollouts > 0)
    GROUP BY stage, step, level, family;

CREATE VIEW v_failures AS
    -- what went wrong: turns by step, status and reason, with their share of the step's turns
    SELECT stage, step, purpose, status, reason, count(*) AS num_turns,
        1.0 * count(*) / sum(count(*)) OVER (PARTITION BY stage, step, purpose) AS share,
        min(turn_id) AS example
    FROM v_turns WHERE status IS NOT NULL AND status <> 'correct'
        AND group_id IN (SELECT group_id FROM groups WHERE num_rollouts > 0)
        AND group_id NOT IN (SELECT group_id FROM v_replayed)
    GROUP BY stage, step, purpose, status, reason;

CREATE VIEW v_best_kernels AS
    -- best correct kernel of each problem: fastest where timed, else fewest launches, then shortest
    SELECT row_number() OVER (
            ORDER BY speedup_low DESC NULLS LAST, level DESC, num_launches, length(code), problem_id
        ) AS rank,
        problem_id, family, level, ranked_by, speedup_low, speedup, candidate_us, baseline_us,
        num_launches, length(code) AS num_characters, turn_id, stage, step, purpose,
        max_version AS policy_version, recorded_at, code
    FROM (
        SELECT t.group_id, t.rollout, t.turn,
            CASE WHEN v.speedup_low IS NULL THEN 'fewest launches, then shortest source'
                ELSE 'speedup_low' END AS ranked_by,
            row_number() OVER (
                PARTITION BY g.problem_id
                ORDER BY v.speedup_low DESC NULLS LAST, v.num_launches, c.num_bytes, t.turn_row
            ) AS place
        FROM verdicts v JOIN turns t USING (group_id, rollout, turn)
        LEFT JOIN groups g USING (group_id)
        LEFT JOIN trajectories r USING (group_id, rollout)
        LEFT JOIN texts c ON c.text_id = t.code_id
        WHERE v.status = 'correct')
    JOIN v_turns USING (group_id, rollout, turn)
    WHERE place = 1;

CREATE VIEW v_problems AS
    -- one row a problem that was played: how often solved, since when
    SELECT problem_id, family, level, split, purpose,
        count(DISTINCT group_id || '.' || rollout) AS num_rollouts,
        count(*) AS num_turns, sum(is_correct) AS num_correct_turns,
        avg(is_correct) AS correct_share,
        max(reward) AS best_reward, max(CASE WHEN is_correct THEN speedup END) AS best_speedup,
        min(CASE WHEN is_correct THEN max_version END) AS first_solved_by_version,
        max(max_version) AS last_played_by_version
    FROM v_turns WHERE group_id NOT IN (SELECT group_id FROM v_replayed)
    GROUP BY problem_id, purpose;

CREATE VIEW v_duplicates AS
    -- how varied the answers of a group's first turns are: equal completions, equal kernels
    SELECT stage, step, purpose, group_id, problem_id, count(*) AS num_rollouts,
        count(DISTINCT completion_id) AS num_distinct_completions,
        count(DISTINCT code_id) AS num_distinct_kernels,
        1.0 - 1.0 * count(DISTINCT completion_id) / count(*) AS duplicate_share
    FROM v_turns WHERE turn = 0 AND NOT is_greedy
        AND group_id IN (SELECT group_id FROM groups WHERE num_rollouts > 0)
        AND group_id NOT IN (SELECT group_id FROM v_replayed)
    GROUP BY group_id;

CREATE VIEW v_judge_noise AS
    -- kernels that were timed more than once: how far the times lie apart, by device
    SELECT problem_id, code_id, device, count(*) AS num_times, min(candidate_us) AS low_us,
        avg(candidate_us) AS mean_us,
        max(candidate_us) AS high_us,
        (max(candidate_us) - min(candidate_us)) / avg(candidate_us) AS relative_range
    FROM v_turns WHERE candidate_us IS NOT NULL
    GROUP BY problem_id, code_id, device HAVING count(*) > 1;

CREATE VIEW v_reward_terms AS
    -- each reward term by step: what it paid on average, and to how many turns
    SELECT stage, step, purpose, term.key AS term, count(*) AS num_turns, avg(term.value) AS mean,
        min(term.value) AS low, max(term.value) AS high, avg(term.value <> 0) AS paid_share
    FROM v_turns, json_each(reward_terms) AS term
    WHERE group_id NOT IN (SELECT group_id FROM v_replayed)
        AND group_id IN (SELECT group_id FROM groups WHERE num_rollouts > 0)
    GROUP BY stage, step, purpose, term.key;

CREATE VIEW v_phases AS
    -- where the judges' time went: seconds by step and phase of a verdict
    SELECT stage, step, purpose, phase.key AS phase, count(*) AS num_turns,
        sum(phase.value) AS total_s,
        avg(phase.value) AS mean_s, max(phase.value) AS max_s
    FROM v_turns, json_each(phase_s) AS phase WHERE phase_s IS NOT NULL
        AND group_id IN (SELECT group_id FROM groups WHERE num_rollouts > 0)
    GROUP BY stage, step, purpose, phase.key;

CREATE VIEW v_samples AS
    -- one row a trained sample (of a step trained twice, the last time): turn, step, advantage
    SELECT u.stage, u.step, u.attempt, t.turn_id, u.sample_id, u.group_id, u.rollout, u.turn,
        u.advantage, u.staleness,
        s.policy_version, t.reward, t.discounted_return, t.num_prompt_tokens,
        t.num_completion_tokens, t.finish,
        g.problem_id, g.step AS admitted_for_step,
        (SELECT status FROM verdicts v WHERE v.group_id = u.group_id AND v.rollout = u.rollout
            AND v.turn = u.turn)
            AS status
    FROM sample_uses u
    JOIN (SELECT stage, step, max(attempt) AS attempt FROM sample_uses GROUP BY stage, step) last
        ON last.stage = u.stage AND last.step = u.step AND last.attempt = u.attempt
    LEFT JOIN samples s USING (sample_id)
    LEFT JOIN turns t ON t.group_id = u.group_id AND t.rollout = u.rollout AND t.turn = u.turn
    LEFT JOIN groups g ON g.group_id = u.group_id;

CREATE VIEW v_staleness AS
    -- how old samples were when trained, in steps, with reward by age
    SELECT stage, step, staleness, count(*) AS num_samples,
        1.0 * count(*) / sum(count(*)) OVER (PARTITION BY stage, step) AS share,
        avg(reward) AS reward, avg(abs(advantage)) AS advantage_size
    FROM v_samples GROUP BY stage, step, staleness;

CREATE VIEW v_metrics AS
    -- every metric by step; of steps that were done twice, the last attempt's
    SELECT stage, step, key, value, at, max(attempt) AS attempt
    FROM metrics GROUP BY stage, step, key;

CREATE VIEW v_idle AS
    -- seconds of each step, and those in which trainer, replicas and judges had nothing to do
    SELECT i.stage, i.step, substr(i.key, 6, instr(substr(i.key, 6), '/') - 1) AS role,
        i.value AS idle_s, w.value AS step_s, i.value / w.value AS idle_share, i.at
    FROM v_metrics i JOIN v_metrics w
        ON w.stage = i.stage AND w.step = i.step AND w.key = 'step/wall/seconds'
    WHERE i.key LIKE 'idle/%/seconds';

CREATE VIEW v_evaluations AS
    -- every evaluation, oldest first
    SELECT stage, stage_index, step, policy_version, at, num_problems, num_samples, max_turns,
        pass_at_1, ci_low, ci_high,
        pass_at_1_greedy, pass_at_1_multi, compile_rate, detail
    FROM evaluations ORDER BY at, evaluation_id;

CREATE VIEW v_pass_at_k AS
    -- pass@k of every evaluation with its interval
    SELECT e.stage, e.step, e.policy_version, CAST(k.key AS INTEGER) AS k, k.value AS pass_at_k,
        json_extract(e.detail, '$.pass_at_k_ci."' || k.key || '"[0]') AS ci_low,
        json_extract(e.detail, '$.pass_at_k_ci."' || k.key || '"[1]') AS ci_high
    FROM evaluations e, json_each(e.pass_at_k) AS k ORDER BY e.at, e.evaluation_id, k;

CREATE VIEW v_eval_parts AS
    -- evaluations apart by family, level and turn
    SELECT e.stage, e.step, e.policy_version, substr(part.key, 4) AS part, item.key AS name,
        json_extract(item.value, '$.num') AS num,
        json_extract(item.value, '$.pass_at_1') AS pass_at_1,
        json_extract(item.value, '$.compile_rate') AS compile_rate
    FROM evaluations e, json_each(e.detail) AS part, json_each(part.value) AS item
    WHERE part.key IN ('by_family', 'by_level', 'by_turn')
    ORDER BY e.at, e.evaluation_id, part, name;

CREATE VIEW v_fast_p AS
    -- fast_p of evaluations: first turns correct and over p times as fast; untimed ones only p = 0
    SELECT g.stage, g.step, max(t.max_version) AS policy_version, p.value AS p,
        count(*) AS num_rollouts,
        CASE WHEN p.value = 0 THEN avg(coalesce(t.is_correct, 0))
             WHEN sum(t.is_correct AND t.speedup IS NULL) > 0 THEN NULL
             ELSE avg(coalesce(t.is_correct AND t.speedup > p.value, 0)) END AS fast_p,
        NULL AS ci_low, NULL AS ci_high
    FROM json_each('[0, 0.8, 1, 1.5, 2, 3, 5]') AS p, groups g JOIN trajectories r USING (group_id)
    LEFT JOIN v_turns t ON t.group_id = g.group_id AND t.rollout = r.rollout AND t.turn = 0
    WHERE g.purpose = 'eval' AND g.num_rollouts > 0 AND NOT g.is_greedy
        AND (t.reward IS NOT NULL OR r.num_turns = 0)
        AND g.group_id NOT IN (SELECT group_id FROM v_replayed)
    GROUP BY g.stage, g.step, p.value;

CREATE VIEW v_processes AS
    -- every child process with its attempt, how long it lived and why it ended
    SELECT attempt, name, pid, devices, datetime(started_at, 'unixepoch') AS started,
        ended_at - started_at AS lived_s,
        coalesce(reason, 'alive, or killed with its supervisor') AS reason, log_path
    FROM processes ORDER BY started_at;

CREATE VIEW v_events AS
    -- what happened, in order, with readable times
    SELECT event_id, attempt, datetime(at, 'unixepoch') AS time, kind, message, data, at
    FROM events ORDER BY event_id;
