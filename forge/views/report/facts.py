"""All content of a report, queried from the run: numbers, kernels, events, configuration.

Each query reads a view or an indexed table and has a limit. The same store gives the same facts:
nothing depends on the current time (a running run is reported as of its last row).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import tomli

from forge.views.gains import load_before_after, load_gains
from forge.views.report.asking import ask, ask_one
from forge.views.report.run_charts import (
    EVALUATIONS,
    MOST_EVALUATIONS,
    TimeSpent,
    Training,
    evaluation_chart,
    fast_p_chart,
    load_parts,
    pass_at_k_chart,
)
from forge.views.report.samples import Samples
from forge.views.run_state import (
    LAST_OF_ATTEMPT,
    LAST_ROW,
    NODES,
    load_stages,
    run_state,
    stage_name,
    total_seconds,
)
from forge.views.show import load_by_protocol
from forge.views.text.numbers import NONE
from forge.views.text.secrets import hide_in_diff, hide_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.store.reader import RunReader
    from forge.views.report.charts import Chart

MOST_KERNELS = 40
MOST_EVENTS = 200

KERNELS = f"""
SELECT rank, problem_id, family, level, ranked_by, speedup_low, speedup, candidate_us, baseline_us,
    num_launches, turn_id, policy_version
FROM v_best_kernels WHERE rank <= {MOST_KERNELS} ORDER BY rank
"""

PROBLEMS = """
WITH found AS MATERIALIZED (SELECT DISTINCT purpose, problem_id FROM v_unjudgeable)
SELECT purpose, count(*) AS num_problems, sum(num_correct_turns > 0) AS num_solved,
    sum(correct_share IS NULL AND (purpose, problem_id) IN found) AS num_unjudgeable,
    sum(num_rollouts) AS num_rollouts, sum(num_turns) AS num_turns
FROM v_problems
WHERE purpose IS NOT NULL GROUP BY purpose ORDER BY purpose
"""

REASONS = """
SELECT purpose, status, reason, sum(num_turns) AS num_turns, min(example) AS example,
    max(example) AS another
FROM v_failures GROUP BY purpose, status, reason
ORDER BY purpose, num_turns DESC LIMIT 60
"""

EVENTS = """
SELECT at, attempt, kind, message FROM v_events ORDER BY event_id DESC LIMIT :most
"""

ATTEMPTS = f"""
SELECT attempt, started_at, ended_at, exit_code, reason, seed, code_commit, code_diff, versions,
    machine, {LAST_OF_ATTEMPT}
FROM attempts ORDER BY attempt
"""

PROCESSES = """
SELECT attempt, name, devices, started, lived_s, reason FROM v_processes
ORDER BY attempt, started, name LIMIT 200
"""

RUN = "SELECT name, created_at, experiment, forge_version FROM runs LIMIT 1"


class Facts:
    """Content of the report of one run."""

    def __init__(self, reader: RunReader) -> None:
        self.run = ask_one(reader, RUN)
        self.config = hide_secrets(self.run.get("experiment") or "")
        self.settings = _settings(self.config)
        self.stages = [each for each in load_stages(reader) if isinstance(each, dict)]
        self.attempts = ask(reader, ATTEMPTS)
        self.diff = hide_in_diff(self.attempts[-1]["code_diff"] or "") if self.attempts else ""
        self.last_row_at = ask_one(reader, LAST_ROW).get("at") or None
        self.state = run_state(reader)
        newest = ask(reader, EVALUATIONS, {"most": MOST_EVALUATIONS})
        self.evaluations = newest[::-1]
        self.parts = load_parts(reader, self.evaluations)
        self.protocols = load_by_protocol(reader)
        kinds = kinds_of(self.stages)
        self.gains = load_gains(reader, self.evaluations, kinds)
        self.before_after = load_before_after(reader, self.evaluations, kinds)
        self.training = Training(reader, kinds=kinds, evaluations=self.evaluations)
        self.spent = TimeSpent(reader)
        self.kernels = ask(reader, KERNELS)
        self.problems = ask(reader, PROBLEMS)
        self.reasons = ask(reader, REASONS)
        self.samples = Samples(
            reader, stages=self.stages, evaluations=self.evaluations, turns=self._named_turns()
        )
        self.events = ask(reader, EVENTS, {"most": MOST_EVENTS})[::-1]
        self.processes = ask(reader, PROCESSES)
        self.nodes = ask(reader, f"{NODES} LIMIT 200")
        self.measured = [
            evaluation_chart(self.evaluations), pass_at_k_chart(reader),
            fast_p_chart(reader, self.evaluations),
        ]  # fmt: skip
        self.trained = self.training.main_charts()
        self.trained_more = self.training.more_charts()
        self.failures = self.training.failure_chart()
        self.timed = self.spent.charts()

    @property
    def charts(self) -> list[Chart]:
        """Non-empty charts, in the order of the page."""
        every = [
            *self.measured, *self.trained, *self.trained_more, self.failures, *self.timed,
        ]  # fmt: skip
        return [chart for chart in every if not chart.is_empty]

    @property
    def seconds(self) -> float | None:
        """Duration of all attempts; a killed one ended with its last row."""
        return total_seconds(self.attempts, self.last_row_at)

    def _named_turns(self) -> list[str]:
        """Turns that the report names: of the pair, of best kernels, examples of failures."""
        pair = self.before_after
        found = [] if pair is None else [pair.before["turn_id"], pair.after["turn_id"]]
        found += [row["turn_id"] for row in self.kernels]
        return [*found, *(row[name] for row in self.reasons for name in ("example", "another"))]

    @property
    def num_rollouts(self) -> int:
        """Rollouts of all purposes."""
        return sum(row["num_rollouts"] for row in self.problems)

    @property
    def num_turns(self) -> int:
        """Turns of all purposes."""
        return sum(row["num_turns"] for row in self.problems)

    @property
    def missing(self) -> list[str]:
        """Parts that the report lacks, each with the reason."""
        found: list[str] = []
        kinds = {each.get("kind") for each in self.stages}
        if not self.attempts:
            found.append("no attempt: the run was never started")
        if not self.num_turns:
            found.append("no turn was played and judged")
        if not self.evaluations:
            why = "; it has no eval stage" if self.stages and "eval" not in kinds else " yet"
            found.append(f"no evaluation{why}")
        for row in self.training.open_steps:
            groups = f"{row['num_groups']} of {row['num_expected_groups']} groups"
            place = f"{stage_name(self.stages, row['stage'])}, step {row['step']}"
            found.append(f"{place}: open ({groups}), so in no curve")
        if not self.training.steps:
            why = "; it has no grpo stage" if self.stages and "grpo" not in kinds else " yet"
            found.append(f"no step of reinforcement learning{why}")
        if self.kernels and all(row["speedup_low"] is None for row in self.kernels):
            found.append("no speed-up: nothing was timed, as on a machine without a GPU")
        if self.num_turns and not self.kernels:
            found.append("no correct kernel")
        if self.state == "killed":
            found.append("how it ended: it was killed, or its machine stopped")
        return found


def when(at: float | None) -> str:
    """`2026-11-21 18:08:17` in UTC."""
    if at is None:
        return NONE
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # a row made by hand
        return NONE


def _settings(config: str) -> dict[str, Any]:
    """Tables of the resolved experiment; empty if it is not TOML."""
    try:
        return tomli.loads(config)
    except tomli.TOMLDecodeError:  # a run made by hand
        return {}


def kinds_of(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Kind of each stage."""
    return [str(stage.get("kind")) for stage in stages]
