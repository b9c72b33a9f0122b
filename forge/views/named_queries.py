"""The questions that are asked most, as SQL over the views: `forge sql RUN --named failures`.

The README shows some of them; a test runs all of them, here and through stock sqlite3.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A question and its SQL."""

    question: str
    sql: str


PASS_RATE = """
SELECT stage, step, num_groups, reward, pass_rate, pass_rate_multi, compile_rate
FROM v_steps ORDER BY stage, step
"""

LEVELS = """
SELECT level, family, count(DISTINCT group_id) AS num_groups,
    round(avg(CASE WHEN turn = 0 AND reward IS NOT NULL THEN is_correct END), 3) AS pass_rate,
    round(avg(CASE WHEN turn = 0 AND reward IS NOT NULL THEN is_compiled END), 3) AS compile_rate,
    max(CASE WHEN is_correct THEN speedup END) AS best_speedup
FROM v_turns WHERE purpose = 'train' GROUP BY level, family ORDER BY level, family
"""

FAILURES = """
SELECT status, reason, sum(num_turns) AS num_turns, min(example) AS example
FROM v_failures GROUP BY status, reason ORDER BY num_turns DESC
"""

BEST_KERNELS = """
SELECT problem_id, ranked_by, speedup_low, num_launches, turn_id, policy_version, code
FROM v_best_kernels ORDER BY rank
"""

FLAT_GROUPS = """
SELECT stage, step, count(*) AS num_groups, sum(is_flat) AS num_flat,
    sum(num_correct = 0) AS all_failed, sum(num_correct = num_rollouts) AS all_solved
FROM v_groups WHERE purpose = 'train' GROUP BY stage, step
"""

STALENESS = """
SELECT stage, staleness, count(*) AS num_samples, round(avg(reward), 3) AS reward
FROM v_samples GROUP BY stage, staleness ORDER BY stage, staleness
"""

IDLE = """
SELECT stage, role, round(sum(idle_s) / sum(step_s), 3) AS idle_share, count(*) AS num_steps
FROM v_idle GROUP BY stage, role ORDER BY stage, role
"""

LENGTHS = """
SELECT stage, step, round(completion_tokens, 1) AS completion_tokens, truncated_share, reward
FROM v_steps ORDER BY stage, step
"""

REWARD_TERMS = """
SELECT stage, step, term, round(mean, 4) AS mean, paid_share
FROM v_reward_terms WHERE purpose = 'train' ORDER BY stage, step, term
"""

BATCH = """
SELECT step, turn_id, problem_id, status, reward, discounted_return, advantage, staleness
FROM v_samples
WHERE stage = (SELECT max(stage) FROM sample_uses)
    AND step = (SELECT max(step) FROM sample_uses WHERE stage = v_samples.stage)
ORDER BY sample_id
"""

SUSPECTS = """
SELECT turn_id, problem_id, reward, speedup, num_launches, torch_share, candidate_spread_us,
    roofline_share
FROM v_turns WHERE reward IS NOT NULL ORDER BY reward DESC, speedup DESC
LIMIT (SELECT 1 + count(*) / 100 FROM turns)
"""

DUPLICATES = """
SELECT stage, step, purpose, sum(num_rollouts) AS num_rollouts,
    sum(num_distinct_completions) AS num_distinct,
    round(1 - 1.0 * sum(num_distinct_completions) / sum(num_rollouts), 3) AS duplicate_share
FROM v_duplicates GROUP BY stage, step, purpose ORDER BY stage, step
"""

EVALUATIONS = """
SELECT stage, step, policy_version, pass_at_1, ci_low, ci_high, pass_at_1_greedy, pass_at_1_multi,
    compile_rate
FROM v_evaluations
"""

UNSOLVED = """
SELECT problem_id, family, level, num_rollouts, best_reward
FROM v_problems WHERE purpose = 'train' AND num_correct_turns = 0
ORDER BY num_rollouts DESC, problem_id
"""

SIDE_BY_SIDE = """
SELECT problem_id, min_version AS policy_version, turn_id, status, reward, completion
FROM v_turns
WHERE turn = 0 AND min_version IN (
    (SELECT min(min_version) FROM turns), (SELECT max(min_version) FROM turns))
ORDER BY problem_id, min_version, turn_id
"""

LAST_MINUTE = """
SELECT time, kind, message FROM v_events
WHERE at >= (SELECT max(at) - 60 FROM events) ORDER BY event_id
"""

QUERIES: dict[str, NamedQuery] = {
    "pass-rate": NamedQuery("Pass rate by step: is it learning?", PASS_RATE),
    "levels": NamedQuery("Pass rate by level and family: on which problems?", LEVELS),
    "failures": NamedQuery("Failures by status: what does it get wrong?", FAILURES),
    "best-kernels": NamedQuery("Best kernel per problem, and what chose it", BEST_KERNELS),
    "flat-groups": NamedQuery("Groups without variance: how much was wasted?", FLAT_GROUPS),
    "staleness": NamedQuery("How old were samples when trained?", STALENESS),
    "idle": NamedQuery("Who waits? Idle share by role", IDLE),
    "lengths": NamedQuery("Length and truncation by step: is it padding?", LENGTHS),
    "reward-terms": NamedQuery("What each reward term paid by step", REWARD_TERMS),
    "batch": NamedQuery("What trained at the last step, with which advantages?", BATCH),
    "suspects": NamedQuery("Are high rewards honest? The top 1 %", SUSPECTS),
    "duplicates": NamedQuery("Do siblings still differ? Distinct first answers", DUPLICATES),
    "evaluations": NamedQuery("The evaluations with their intervals", EVALUATIONS),
    "unsolved": NamedQuery("Which problems were never solved?", UNSOLVED),
    "side-by-side": NamedQuery("A problem under the oldest and newest policy", SIDE_BY_SIDE),
    "last-minute": NamedQuery("What happened in the last 60 s?", LAST_MINUTE),
}
