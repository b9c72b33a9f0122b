# pyright: strict
"""Schema 5: results by shape of candidates that are judged on several (`problems.shapes`).

Applied by `migrations` after `protocol_tables`.
"""

RUN_TABLES_5 = """
CREATE TABLE turn_shapes (
    -- status and times of each turn's candidate by shape, up to the first that is not correct
    group_id INTEGER NOT NULL,
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    shape INTEGER NOT NULL,          -- from 0, in the order of judging
    name TEXT NOT NULL,              -- N=4096, M=100
    status TEXT NOT NULL,            -- as in verdicts
    speedup REAL,                    -- null if untimed, as all below; verdicts has geometric means
    speedup_low REAL,
    candidate_us REAL,
    baseline_us REAL,
    candidate_spread_us REAL,
    baseline_spread_us REAL,
    achieved_gbps REAL,
    achieved_tflops REAL,
    roofline_share REAL,
    PRIMARY KEY (group_id, rollout, turn, shape)
) WITHOUT ROWID;
"""

SHAPE_VIEWS = """
CREATE VIEW v_shapes AS
    -- results by shape of problems with several; filter by group_id, step or problem_id
    SELECT 'g' || s.group_id || '.r' || s.rollout || '.t' || s.turn AS turn_id, s.group_id,
        s.rollout, s.turn, g.stage, g.step, g.purpose, g.problem_id, s.shape, s.name, s.status,
        s.speedup, s.speedup_low, s.candidate_us, s.baseline_us, s.candidate_spread_us,
        s.baseline_spread_us, s.achieved_gbps, s.achieved_tflops, s.roofline_share
    FROM turn_shapes s
    LEFT JOIN groups g USING (group_id);
"""

NO_SHAPE_VIEWS = """
CREATE VIEW v_shapes AS
    -- empty: the run was recorded by a version with one shape a problem
    SELECT NULL AS turn_id, NULL AS group_id, NULL AS rollout, NULL AS turn, NULL AS stage,
        NULL AS step, NULL AS purpose, NULL AS problem_id, NULL AS shape, NULL AS name,
        NULL AS status, NULL AS speedup, NULL AS speedup_low, NULL AS candidate_us,
        NULL AS baseline_us, NULL AS candidate_spread_us, NULL AS baseline_spread_us,
        NULL AS achieved_gbps, NULL AS achieved_tflops, NULL AS roofline_share
    WHERE 0;
"""
