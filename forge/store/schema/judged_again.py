# pyright: strict
"""Schema 8: verdicts of later passes over a run's stored answers (`forge judge --run`), beside
those of the run.

Applied by `migrations` after `prompt_columns`. No view of the run's own results reads them.
"""

RUN_TABLES_8 = """
CREATE TABLE judgings (
    -- passes of forge judge --run over the stored answers
    judging INTEGER PRIMARY KEY,
    began_at REAL NOT NULL,
    ended_at REAL,                   -- null until every answer has a verdict
    protocol TEXT NOT NULL,          -- forge, kernelbench or drkernel; as served, for a pool
    policy TEXT NOT NULL,            -- own or hybrid; as served
    device TEXT NOT NULL,            -- GPU names, cpu, or the URL of a pool
    settings TEXT NOT NULL           -- JSON: [judge] as the judges got it
);

CREATE TABLE verdicts_again (
    -- verdict of each pass on each turn with a candidate; columns as in verdicts
    judging INTEGER NOT NULL,
    group_id INTEGER NOT NULL,
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    judged_at REAL NOT NULL,
    status TEXT NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    is_compiled INTEGER NOT NULL,
    num_launches INTEGER NOT NULL,
    speedup REAL,
    speedup_low REAL,
    candidate_us REAL,
    baseline_us REAL,
    candidate_spread_us REAL,
    baseline_spread_us REAL,
    achieved_gbps REAL,
    achieved_tflops REAL,
    roofline_share REAL,
    torch_share REAL,
    isolation TEXT NOT NULL,
    caps TEXT NOT NULL,
    device TEXT NOT NULL,
    phase_s TEXT NOT NULL,
    harness TEXT NOT NULL,
    PRIMARY KEY (judging, group_id, rollout, turn)
) WITHOUT ROWID;
"""

JUDGED_AGAIN_VIEWS = """
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

NO_JUDGED_AGAIN_VIEWS = """
CREATE VIEW v_judged_again AS
    -- empty: the run was recorded by a version that did not judge again
    SELECT NULL AS judging, NULL AS protocol, NULL AS policy, NULL AS is_whole, NULL AS turn_id,
        NULL AS group_id, NULL AS rollout, NULL AS turn, NULL AS stage, NULL AS step,
        NULL AS purpose, NULL AS problem_id, NULL AS status, NULL AS reason, NULL AS own_status,
        NULL AS own_reason, NULL AS is_changed, NULL AS speedup, NULL AS speedup_low,
        NULL AS own_speedup, NULL AS own_speedup_low, NULL AS device, NULL AS own_device,
        NULL AS harness, NULL AS own_harness, NULL AS detail, NULL AS own_detail,
        NULL AS judged_at
    WHERE 0;
"""
