# pyright: strict
"""Schema 4: verdicts of further protocols (`judge.also`) beside the one that counts.

Applied by `migrations` after `program_tables`.
"""

RUN_TABLES_4 = """
CREATE TABLE turn_protocols (
    -- correctness of each turn's candidate under further protocols
    group_id INTEGER NOT NULL,
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    protocol TEXT NOT NULL,          -- forge, kernelbench or drkernel
    status TEXT NOT NULL,            -- as in verdicts
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,            -- first mismatch or error
    PRIMARY KEY (group_id, rollout, turn, protocol)
) WITHOUT ROWID;
"""

PROTOCOL_VIEWS = """
CREATE VIEW v_protocols AS
    -- verdicts of further protocols beside the one that counts; filter by group_id or step
    SELECT 'g' || o.group_id || '.r' || o.rollout || '.t' || o.turn AS turn_id, o.group_id,
        o.rollout, o.turn, g.stage, g.step, g.purpose, g.problem_id, o.protocol, o.status, o.reason,
        v.status AS own_status, v.reason AS own_reason,
        (o.status = 'correct') = (v.status = 'correct') AS is_agreed, o.detail,
        (SELECT body FROM texts WHERE text_id = v.detail_id) AS own_detail
    FROM turn_protocols o
    LEFT JOIN verdicts v USING (group_id, rollout, turn)
    LEFT JOIN groups g USING (group_id);
"""

NO_PROTOCOL_VIEWS = """
CREATE VIEW v_protocols AS
    -- empty: the run was recorded by a version with one protocol
    SELECT NULL AS turn_id, NULL AS group_id, NULL AS rollout, NULL AS turn, NULL AS stage,
        NULL AS step, NULL AS purpose, NULL AS problem_id, NULL AS protocol, NULL AS status,
        NULL AS reason, NULL AS own_status, NULL AS own_reason, NULL AS is_agreed, NULL AS detail,
        NULL AS own_detail
    WHERE 0;
"""
