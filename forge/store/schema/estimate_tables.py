# pyright: strict
"""Schema 6: estimated times of candidates that nothing measured (`judge.model_card`).

Applied by `migrations` after `shape_tables`. In a table of its own, so that no query for measured
times finds one.
"""

RUN_TABLES_6 = """
CREATE TABLE turn_estimates (
    -- estimated times of each turn's candidate, by roofline: no measurement
    group_id INTEGER NOT NULL,
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    card TEXT NOT NULL,              -- judge.model_card: H100
    estimated_us REAL NOT NULL,
    estimated_baseline_us REAL NOT NULL,
    PRIMARY KEY (group_id, rollout, turn)
) WITHOUT ROWID;
"""

ESTIMATE_VIEWS = """
CREATE VIEW v_estimates AS
    -- estimated times by roofline, never measured; filter by group_id, step or problem_id
    SELECT 'g' || e.group_id || '.r' || e.rollout || '.t' || e.turn AS turn_id, e.group_id,
        e.rollout, e.turn, g.stage, g.step, g.purpose, g.problem_id, e.card, e.estimated_us,
        e.estimated_baseline_us, e.estimated_baseline_us / e.estimated_us AS estimated_speedup
    FROM turn_estimates e
    LEFT JOIN groups g USING (group_id);
"""

NO_ESTIMATE_VIEWS = """
CREATE VIEW v_estimates AS
    -- empty: the run was recorded by a version without estimates
    SELECT NULL AS turn_id, NULL AS group_id, NULL AS rollout, NULL AS turn, NULL AS stage,
        NULL AS step, NULL AS purpose, NULL AS problem_id, NULL AS card, NULL AS estimated_us,
        NULL AS estimated_baseline_us, NULL AS estimated_speedup
    WHERE 0;
"""
