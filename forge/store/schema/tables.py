"""Every table of run.db and tokens.db, with a comment per column that the databases store too.

`create` makes them; `forge sql RUN` lists each table with its first comment. Times are Unix
seconds (UTC), booleans 0 or 1, shares 0 to 1. A turn is identified by (group_id, rollout, turn) and
printed `g12.r3.t1`. Rows are never deleted, except of `tokens`; a resumed run adds rows with its
attempt. Nothing runs ANALYZE: with statistics of tables SQLite scans a whole table to build a Bloom
filter for the few rows of an open step (0.5 s at a million turns), and plans differ between runs.
"""

_TIMES = """
    speedup REAL,                    -- baseline_us / candidate_us; null if untimed, as all below
    speedup_low REAL,                -- lower end of its interval, used by the reward
    candidate_us REAL,
    baseline_us REAL,
    candidate_spread_us REAL,        -- interquartile range
    baseline_spread_us REAL,
    achieved_gbps REAL,
    achieved_tflops REAL,
    roofline_share REAL,             -- of the memory or compute bound, whichever is tighter
"""
_JUDGED = f"""
    status TEXT NOT NULL,            -- correct, wrong, compile_error, ... (records.Status)
    reason TEXT NOT NULL,            -- stable code: ok, mismatch, not_triton, ...
    is_compiled INTEGER NOT NULL,    -- its own kernel launched and wrote its output
    num_launches INTEGER NOT NULL,   -- kernels in one forward
    {_TIMES.strip()}
    torch_share REAL,                -- share of the work done by torch, by bytes
    isolation TEXT NOT NULL,         -- sandbox level
    caps TEXT NOT NULL,              -- how memory was limited
    device TEXT NOT NULL,
    phase_s TEXT NOT NULL,           -- JSON: phase to seconds
    harness TEXT NOT NULL,           -- hash of judge, runner, torch and triton
"""

RUN_TABLES = f"""
CREATE TABLE runs (
    -- the run itself: one row
    name TEXT PRIMARY KEY,           -- name of the run: quickstart-1
    kind TEXT NOT NULL,              -- experiment, or eval: a run of "forge eval"
    created_at REAL NOT NULL,
    experiment TEXT NOT NULL,        -- experiment.toml as resolved
    forge_version TEXT NOT NULL,
    texts TEXT NOT NULL,             -- plain or zstd: how texts.body is stored
    num_commits INTEGER NOT NULL     -- commits so far: the file acknowledged has them too
);

CREATE TABLE attempts (
    -- one row per start of the run; resuming adds one
    attempt INTEGER PRIMARY KEY,
    started_at REAL NOT NULL,
    ended_at REAL,                   -- null while it runs, or if it was killed
    exit_code INTEGER,
    reason TEXT,                     -- why it ended, as text
    seed INTEGER NOT NULL,
    code_commit TEXT NOT NULL,       -- empty outside a checkout
    code_diff TEXT NOT NULL,         -- uncommitted changes of the checkout
    versions TEXT NOT NULL,          -- JSON: package to version
    machine TEXT NOT NULL            -- JSON: cores, memory, GPUs, kernel
);

CREATE TABLE processes (
    -- every child process
    attempt INTEGER NOT NULL,
    name TEXT NOT NULL,              -- serve-0, judge-1, trainer, ...
    pid INTEGER NOT NULL,
    devices TEXT,                    -- GPU UUIDs, or cpu
    log_path TEXT,                   -- relative to the run directory, as all paths below
    started_at REAL,
    ended_at REAL,                   -- null while it runs
    reason TEXT,                     -- exit 0, killed by signal 9 (often out of memory), ...
    PRIMARY KEY (attempt, name, pid)
) WITHOUT ROWID;

CREATE TABLE events (
    -- one row per event; resuming reads some kinds
    event_id INTEGER PRIMARY KEY,
    attempt INTEGER,
    at REAL NOT NULL,
    kind TEXT NOT NULL,              -- stage_start, stage_end, no_signal, context_full, ...
    message TEXT NOT NULL,
    data TEXT NOT NULL               -- JSON
);
CREATE INDEX events_by_kind ON events (kind);

CREATE TABLE texts (
    -- each long text once, found by its hash; other tables refer to its text_id
    text_id INTEGER PRIMARY KEY,
    sha256 BLOB NOT NULL UNIQUE,
    num_bytes INTEGER NOT NULL,      -- length in UTF-8, before compression
    body NOT NULL                    -- TEXT, or a zstd frame: text(body) or a view reads it
);

CREATE TABLE problems (
    -- reference modules that kernels must match
    problem_id TEXT PRIMARY KEY,
    family TEXT NOT NULL,
    level INTEGER NOT NULL,          -- chain length, or KernelBench level
    split TEXT NOT NULL,             -- sft, grpo or heldout
    entry_point TEXT NOT NULL,
    precision TEXT NOT NULL,
    source_id INTEGER NOT NULL       -- texts: Python source
) WITHOUT ROWID;

CREATE TABLE groups (
    -- sibling rollouts of one problem
    group_id INTEGER PRIMARY KEY,
    attempt INTEGER,                 -- attempt that last wrote it
    problem_id TEXT NOT NULL,
    purpose TEXT NOT NULL,           -- train, eval, search; abandoned: see v_rewinds
    stage INTEGER NOT NULL,          -- index in the experiment, from 0
    step INTEGER NOT NULL,           -- training step it was admitted for, or evaluated at
    is_greedy INTEGER NOT NULL,      -- sampled at temperature 0
    is_flat INTEGER NOT NULL,        -- all returns equal: no gradient signal
    num_rollouts INTEGER NOT NULL,   -- 0 while it is being played
    parents TEXT NOT NULL,           -- JSON: turns of other groups in its first prompt (searches)
    recorded_at REAL NOT NULL
);
CREATE INDEX groups_by_step ON groups (stage, step);
CREATE INDEX groups_by_problem ON groups (problem_id);
CREATE INDEX groups_of_evaluations ON groups (stage, step, attempt) WHERE purpose = 'eval';

CREATE TABLE trajectories (
    -- the end of each rollout
    group_id INTEGER NOT NULL,
    rollout INTEGER NOT NULL,        -- index in the group, from 0
    problem_id TEXT NOT NULL,
    ended TEXT NOT NULL,             -- correct, max_turns, context_full, unjudgeable, infra
    num_turns INTEGER NOT NULL,
    is_correct INTEGER NOT NULL,     -- true if some turn was correct
    PRIMARY KEY (group_id, rollout)
) WITHOUT ROWID;

CREATE TABLE turns (
    -- one prompt and its completion; texts and verdict are separate, v_turns joins them
    turn_row INTEGER PRIMARY KEY,    -- ascending: readers poll WHERE turn_row > ?
    group_id INTEGER NOT NULL,
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,           -- index in the rollout, from 0
    turn_id TEXT GENERATED ALWAYS AS ('g' || group_id || '.r' || rollout || '.t' || turn) VIRTUAL,
    attempt INTEGER,
    recorded_at REAL NOT NULL,
    num_prompt_tokens INTEGER NOT NULL,
    num_completion_tokens INTEGER NOT NULL,  -- as sampled, without those of tools' replies
    finish TEXT NOT NULL,            -- stop, length or abort
    min_version INTEGER NOT NULL,    -- oldest policy version among its tokens
    max_version INTEGER NOT NULL,
    reward REAL,                     -- null if the verdict is not scored
    reward_terms TEXT NOT NULL,      -- JSON: term to its amount
    discounted_return REAL,          -- null if masked, or while the rollout is played
    generate_s REAL NOT NULL,
    judge_s REAL NOT NULL,
    prompt_id INTEGER,               -- texts; null for an empty text, here and below
    completion_id INTEGER,           -- texts: the last message; equal ids are equal ones
    code_id INTEGER,                 -- texts: the candidate's source
    feedback_id INTEGER,             -- texts: feedback given to the next turn
    prompt_hash TEXT,                -- templates and settings of its prompt, or null
    UNIQUE (group_id, rollout, turn)
);
CREATE INDEX turns_by_code ON turns (code_id) WHERE code_id IS NOT NULL;

CREATE TABLE verdicts (
    -- the judge's verdict on each turn
    group_id INTEGER NOT NULL,
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    {_JUDGED.strip()}
    detail_id INTEGER,               -- texts: traceback, first mismatch, statistics
    PRIMARY KEY (group_id, rollout, turn)
) WITHOUT ROWID;
CREATE INDEX verdicts_by_status ON verdicts (status);

CREATE TABLE samples (
    -- turns offered to the trainer
    sample_id INTEGER PRIMARY KEY,
    group_id INTEGER NOT NULL,
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    advantage REAL NOT NULL,
    policy_version INTEGER NOT NULL  -- oldest policy version among its tokens
);
CREATE INDEX samples_by_turn ON samples (group_id, rollout, turn);

CREATE TABLE sample_uses (
    -- samples trained at each step; written when the trainer acknowledges the step
    sample_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    stage INTEGER NOT NULL,
    step INTEGER NOT NULL,
    group_id INTEGER NOT NULL,
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    advantage REAL NOT NULL,
    staleness INTEGER NOT NULL,      -- steps between the sampling weights and the trained ones
    PRIMARY KEY (sample_id, attempt, stage, step)
) WITHOUT ROWID;
CREATE INDEX sample_uses_by_attempt ON sample_uses (stage, step, attempt);

CREATE TABLE policies (
    -- published weights, numbered by publish, never reused
    version INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL,
    stage INTEGER NOT NULL,
    step INTEGER NOT NULL,
    path TEXT NOT NULL,              -- directory of weights or of an adapter
    sha256 TEXT NOT NULL,
    publish_s REAL NOT NULL,         -- seconds until every replica had it and passed its probe
    probe_gap REAL NOT NULL          -- mean |difference of logprobs| of trainer and engine
);

CREATE TABLE metrics (
    -- numeric metrics of a step
    attempt INTEGER NOT NULL,
    stage INTEGER NOT NULL,
    step INTEGER NOT NULL,
    key TEXT NOT NULL,               -- area/thing/stat: train/loss/mean, idle/trainer/seconds
    value REAL,                      -- null if not finite
    at REAL NOT NULL,
    PRIMARY KEY (stage, step, key, attempt)
) WITHOUT ROWID;
CREATE INDEX metrics_by_key ON metrics (key, stage, step, attempt);

CREATE TABLE evaluations (
    -- one evaluation of one policy
    evaluation_id INTEGER PRIMARY KEY,
    stage TEXT NOT NULL,             -- name of its stage: eval-0; grpo-3@5 for one within a stage
    stage_index INTEGER,             -- as in groups.stage
    step INTEGER NOT NULL,
    policy_version INTEGER NOT NULL,
    at REAL NOT NULL,
    num_problems INTEGER NOT NULL,
    num_samples INTEGER NOT NULL,    -- sampled rollouts per problem
    max_turns INTEGER NOT NULL,
    pass_at_1 REAL NOT NULL,         -- share of correct sampled first turns
    ci_low REAL NOT NULL,            -- 95 % interval, clustered by problem
    ci_high REAL NOT NULL,
    pass_at_k TEXT NOT NULL,         -- JSON: k to unbiased estimate
    pass_at_1_greedy REAL,
    pass_at_1_multi REAL NOT NULL,   -- share of rollouts with a correct turn
    compile_rate REAL NOT NULL,
    detail TEXT NOT NULL,            -- JSON: parts, intervals, best@N, problems not judged
    UNIQUE (stage, step, policy_version)
);

CREATE TABLE programs (
    -- each captured program once, found by its hash; turn_programs refers to its program_id
    program_id INTEGER PRIMARY KEY,
    sha256 BLOB NOT NULL UNIQUE,     -- hash of body
    body BLOB NOT NULL               -- zstd frame: "forge show RUN --turn ID" prints it
);

CREATE TABLE turn_calls (
    -- calls of tools before each turn's answer
    group_id INTEGER NOT NULL,
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    call INTEGER NOT NULL,           -- index in the turn, from 0
    tool TEXT NOT NULL,              -- docs, run or profile
    arguments TEXT NOT NULL,         -- JSON
    message_id INTEGER,              -- texts: the message that asked
    result_id INTEGER,               -- texts: the reply
    seconds REAL NOT NULL,
    PRIMARY KEY (group_id, rollout, turn, call)
) WITHOUT ROWID;

CREATE TABLE turn_programs (
    -- the program that each turn was judged by; none for an answer that was refused before
    group_id INTEGER NOT NULL,
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    program_id INTEGER NOT NULL,
    PRIMARY KEY (group_id, rollout, turn)
) WITHOUT ROWID;

CREATE TABLE turn_protocols (
    -- correctness of each turn's candidate under further protocols
    group_id INTEGER NOT NULL,
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    protocol TEXT NOT NULL,          -- forge, kernelbench, kernelbench:own, ...
    status TEXT NOT NULL,            -- as in verdicts
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,            -- first mismatch or error
    PRIMARY KEY (group_id, rollout, turn, protocol)
) WITHOUT ROWID;

CREATE TABLE turn_shapes (
    -- status and times of each turn's candidate by shape, up to the first that is not correct
    group_id INTEGER NOT NULL,
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    shape INTEGER NOT NULL,          -- from 0, in the order of judging
    name TEXT NOT NULL,              -- name of the shape: N=4096, M=100
    status TEXT NOT NULL,            -- as in verdicts
    {_TIMES.strip()}
    PRIMARY KEY (group_id, rollout, turn, shape)
) WITHOUT ROWID;

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
    {_JUDGED.strip()}
    detail TEXT NOT NULL,
    PRIMARY KEY (judging, group_id, rollout, turn)
) WITHOUT ROWID;
"""

TOKEN_TABLES = """
CREATE TABLE tokens (
    -- exact tokens of each turn, as sampled; [store] keep_tokens decides which are kept
    group_id INTEGER NOT NULL,
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    prompt_ids BLOB NOT NULL,        -- zstd of little-endian u32
    completion_ids BLOB NOT NULL,    -- zstd of little-endian u32
    logprobs BLOB NOT NULL,          -- zstd of little-endian f32, one per token; NaN of replies
    PRIMARY KEY (group_id, rollout, turn)
);
"""
