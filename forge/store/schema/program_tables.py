# pyright: strict
"""Schema 3: the captured programs of turns, each stored once.

Applied by `migrations` after `rollup_tables`. Siblings often write the same kernel, so a program is
found by its hash, as a text is.
"""

RUN_TABLES_3 = """
CREATE TABLE programs (
    -- each captured program once, found by its hash; turn_programs refers to its program_id
    program_id INTEGER PRIMARY KEY,
    sha256 BLOB NOT NULL UNIQUE,     -- of body
    body BLOB NOT NULL               -- zstd frame: "forge show RUN --turn ID" prints it
);
CREATE TABLE turn_programs (
    -- the program that each turn was judged by; none for an answer that was refused before
    group_id INTEGER NOT NULL,
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    program_id INTEGER NOT NULL,
    PRIMARY KEY (group_id, rollout, turn)
) WITHOUT ROWID;
"""

NO_PROGRAM_VIEWS = """
CREATE VIEW v_programs AS
    -- empty: the run was recorded by a version that kept no programs
    SELECT NULL AS turn_id, NULL AS group_id, NULL AS rollout, NULL AS turn, NULL AS program_id,
        NULL AS num_bytes, NULL AS stage, NULL AS step, NULL AS problem_id
    WHERE 0;
"""

PROGRAM_VIEWS = """
CREATE VIEW v_programs AS
    -- the program of each turn and its size; equal ids are equal programs; filter by group_id
    SELECT 'g' || t.group_id || '.r' || t.rollout || '.t' || t.turn AS turn_id, t.group_id,
        t.rollout, t.turn, t.program_id, length(p.body) AS num_bytes, g.stage, g.step, g.problem_id
    FROM turn_programs t
    LEFT JOIN programs p USING (program_id)
    LEFT JOIN groups g USING (group_id);
"""
