"""Schema 2: indexes, roll-up tables and triggers that let the views answer at a million turns.

Applied by `migrations` after `tables`. A step of a stage is *open* while rows of it are written, or
*settled*: then its `aggregates` are stored in the `rolled_` tables. Views show the stored rows and
compute those of open steps afresh, so they are always exact. Triggers open a step, which deletes
its stored rows, on any write from any program; the writer settles all but the last few (`settle`).
"""

from __future__ import annotations

# No table statistics: with them SQLite scans a whole table to build a Bloom filter for the few rows
# of an open step (0.5 s at a million turns), and query plans differ between runs.
INDEXES = """
DROP TABLE IF EXISTS sqlite_stat1;
CREATE INDEX groups_by_problem ON groups (problem_id);
CREATE INDEX groups_of_evaluations ON groups (stage, step, attempt) WHERE purpose = 'eval';
CREATE INDEX turns_by_code ON turns (code_id) WHERE code_id IS NOT NULL;
CREATE INDEX sample_uses_by_attempt ON sample_uses (stage, step, attempt);
DROP INDEX sample_uses_by_step;
CREATE INDEX metrics_by_key ON metrics (key, stage, step, attempt);
"""

TABLES = """
CREATE TABLE open_steps (
    -- steps written since they were settled, or never settled
    open_id INTEGER PRIMARY KEY,     -- ascending: the longest open step is settled first
    stage INTEGER NOT NULL,
    step INTEGER NOT NULL,
    UNIQUE (stage, step)
);
CREATE TABLE open_groups (
    -- groups with turns but no row yet: still being played, or cut off when the run was killed
    group_id INTEGER PRIMARY KEY
);
CREATE TABLE open_kernels (
    -- kernels that a rewritten turn had before
    code_id INTEGER PRIMARY KEY
);
CREATE TABLE rolled_noise (
    -- v_judge_noise of kernels that occur in no open step
    problem_id TEXT, code_id INTEGER, device TEXT, num_times INTEGER, low_us REAL, mean_us REAL,
    high_us REAL, relative_range REAL
);
CREATE INDEX rolled_noise_by_kernel ON rolled_noise (code_id);
"""

_ROLLED = {
    "groups": """
    group_id INTEGER PRIMARY KEY, stage INTEGER, step INTEGER, purpose TEXT, is_greedy INTEGER,
    problem_id TEXT, family TEXT, level INTEGER, is_flat INTEGER, num_rollouts INTEGER,
    num_turns INTEGER, num_correct INTEGER, reward REAL, return_low REAL, return_mean REAL,
    return_high REAL, speedup REAL, num_distinct_completions INTEGER,
    num_completion_tokens INTEGER, min_version INTEGER, max_version INTEGER""",
    "steps": """
    stage INTEGER, step INTEGER, num_groups INTEGER, num_turns INTEGER, num_flat_groups INTEGER,
    reward REAL, return_mean REAL, pass_rate REAL, pass_rate_multi REAL, compile_rate REAL,
    speedup REAL, best_speedup REAL, completion_tokens REAL, truncated_share REAL,
    num_completion_tokens INTEGER, num_masked INTEGER, min_version INTEGER, max_version INTEGER,
    generate_s REAL, judge_s REAL""",
    "levels": """
    stage INTEGER, step INTEGER, level INTEGER, family TEXT, num_groups INTEGER, reward REAL,
    pass_rate REAL, compile_rate REAL, best_speedup REAL""",
    "failures": """
    stage INTEGER, step INTEGER, purpose TEXT, status TEXT, reason TEXT, num_turns INTEGER,
    share REAL, example TEXT""",
    "duplicates": """
    stage INTEGER, step INTEGER, purpose TEXT, group_id INTEGER PRIMARY KEY, problem_id TEXT,
    num_rollouts INTEGER, num_distinct_completions INTEGER, num_distinct_kernels INTEGER,
    duplicate_share REAL""",
    "reward_terms": """
    stage INTEGER, step INTEGER, purpose TEXT, term TEXT, num_turns INTEGER, mean REAL, low REAL,
    high REAL, paid_share REAL""",
    "phases": """
    stage INTEGER, step INTEGER, purpose TEXT, phase TEXT, num_turns INTEGER, total_s REAL,
    mean_s REAL, max_s REAL""",
    "staleness": """
    stage INTEGER, step INTEGER, staleness INTEGER, num_samples INTEGER, share REAL, reward REAL,
    advantage_size REAL""",
    "fast_p": """
    stage INTEGER, step INTEGER, policy_version INTEGER, p, num_rollouts INTEGER, fast_p REAL""",
    "problems": """
    problem_id TEXT NOT NULL, purpose TEXT NOT NULL, stage INTEGER NOT NULL,
    step INTEGER NOT NULL, num_rollouts INTEGER, num_turns INTEGER, num_judged INTEGER,
    num_correct_turns INTEGER, best_reward REAL, best_speedup REAL,
    first_solved_by_version INTEGER, last_played_by_version INTEGER""",
    "best": """
    turn_row INTEGER PRIMARY KEY, problem_id TEXT, stage INTEGER, step INTEGER, group_id INTEGER,
    rollout INTEGER, turn INTEGER, speedup_low REAL, num_launches INTEGER, num_bytes INTEGER""",
}
"""Name of an aggregate to the columns of its table `rolled_<name>`."""

COLUMNS = {
    name: ", ".join(column.split()[0] for column in columns.split(","))
    for name, columns in _ROLLED.items()
}
"""Name of an aggregate to the names of its columns."""


def _rolled_table(name: str, columns: str) -> str:
    end = "\n)"
    if name == "problems":
        end = ", PRIMARY KEY (problem_id, purpose, stage, step)\n) WITHOUT ROWID"
    return f"""
CREATE TABLE rolled_{name} (
    -- rows of settled steps{columns}{end};
CREATE INDEX rolled_{name}_by_step ON rolled_{name} (stage, step);
"""


ROLLED_TABLES = (
    "".join(_rolled_table(*each) for each in _ROLLED.items())
    + """
CREATE INDEX rolled_groups_by_problem ON rolled_groups (problem_id);
CREATE INDEX rolled_best_by_problem ON rolled_best
    (problem_id, speedup_low DESC, num_launches, num_bytes, turn_row);
"""
)

_OPEN = """
    INSERT INTO open_steps (stage, step) SELECT {found}
        AND NOT EXISTS (SELECT 1 FROM open_steps o WHERE o.stage = s.stage AND o.step = s.step);"""


def _open(stage: str, step: str) -> str:
    """SQL that opens the step named by two columns."""
    found = f"s.stage, s.step FROM (SELECT {stage} AS stage, {step} AS step) s WHERE true"
    return _OPEN.format(found=found)


OPEN_ITS_STEP = _OPEN.format(found="s.stage, s.step FROM groups s WHERE s.group_id = NEW.group_id")
OPEN_STEPS_OF_PROBLEM = _OPEN.format(
    found="DISTINCT s.stage, s.step FROM groups s WHERE s.problem_id = NEW.problem_id"
)
OPEN_STEPS_OF_USES = _OPEN.format(
    found="""DISTINCT s.stage, s.step
        FROM samples m CROSS JOIN sample_uses s ON s.sample_id = m.sample_id
        WHERE m.group_id = NEW.group_id AND m.rollout = NEW.rollout AND m.turn = NEW.turn"""
)
"""v_staleness shows a turn's reward at the steps that trained it."""
NOTE_UNGROUPED = """
    INSERT INTO open_groups SELECT NEW.group_id
        WHERE NOT EXISTS (SELECT 1 FROM groups WHERE group_id = NEW.group_id)
        AND NOT EXISTS (SELECT 1 FROM open_groups WHERE group_id = NEW.group_id);"""


_DROP_ROLLED = "".join(
    f"\n    DELETE FROM rolled_{name} WHERE stage = NEW.stage AND step = NEW.step;"
    for name in COLUMNS
)

_TRIGGERS = {
    "open_step_drops_its_rows": ("INSERT ON open_steps", _DROP_ROLLED),
    "turn_inserted": ("INSERT ON turns", NOTE_UNGROUPED + OPEN_ITS_STEP + OPEN_STEPS_OF_USES),
    "turn_updated": ("UPDATE ON turns", OPEN_ITS_STEP),
    "turn_rewarded": (
        "UPDATE OF reward ON turns WHEN NEW.reward IS NOT OLD.reward",
        OPEN_STEPS_OF_USES,
    ),
    "turn_recoded": (
        "UPDATE OF code_id ON turns WHEN NEW.code_id IS NOT OLD.code_id AND OLD.code_id",
        """
    INSERT INTO open_kernels SELECT OLD.code_id
        WHERE NOT EXISTS (SELECT 1 FROM open_kernels WHERE code_id = OLD.code_id);""",
    ),
    "verdict_inserted": ("INSERT ON verdicts", OPEN_ITS_STEP),
    "verdict_updated": ("UPDATE ON verdicts", OPEN_ITS_STEP),
    "trajectory_inserted": ("INSERT ON trajectories", OPEN_ITS_STEP),
    "trajectory_updated": ("UPDATE ON trajectories", OPEN_ITS_STEP),
    "group_inserted": (
        "INSERT ON groups",
        "\n    DELETE FROM open_groups WHERE group_id = NEW.group_id;" + OPEN_ITS_STEP,
    ),
    "group_updated": ("UPDATE ON groups", _open("OLD.stage", "OLD.step") + OPEN_ITS_STEP),
    "problem_inserted": ("INSERT ON problems", OPEN_STEPS_OF_PROBLEM),
    "problem_updated": (
        "UPDATE ON problems WHEN NEW.family IS NOT OLD.family OR NEW.level IS NOT OLD.level",
        OPEN_STEPS_OF_PROBLEM,
    ),
    "use_inserted": ("INSERT ON sample_uses", _open("NEW.stage", "NEW.step")),
    "use_updated": ("UPDATE ON sample_uses", _open("NEW.stage", "NEW.step")),
}
"""Name to the event and the statements that it runs."""
TRIGGERS = "".join(
    f"CREATE TRIGGER {name} AFTER {event} BEGIN{statements}\nEND;\n"
    for name, (event, statements) in _TRIGGERS.items()
)

BACKLOG = """
INSERT INTO open_steps (stage, step)
    SELECT stage, step FROM groups UNION SELECT stage, step FROM sample_uses ORDER BY 1, 2;
INSERT INTO open_groups SELECT DISTINCT group_id FROM turns t
    WHERE NOT EXISTS (SELECT 1 FROM groups g WHERE g.group_id = t.group_id);
"""
"""All steps of a migrated run are open at first; the writer settles them gradually."""

REOPEN_ALL = (
    "".join(f"DELETE FROM rolled_{name};\n" for name in COLUMNS)
    + "DELETE FROM rolled_noise;\nDELETE FROM open_kernels;\nDELETE FROM open_groups;\n"
    + "DELETE FROM open_steps;\n"
    + BACKLOG
)
"""Makes every roll-up again from the rows."""

RUN_TABLES_2 = INDEXES + TABLES + ROLLED_TABLES + TRIGGERS + BACKLOG
