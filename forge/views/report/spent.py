"""Use of time: idle shares, parts of a step, phases of judging, slowest steps."""

from __future__ import annotations

from typing import Any

from forge.views.report.asking import Asker, label
from forge.views.report.charts import Chart, Kind, Line, make_line
from forge.views.run.conversation import MENTIONED_QUEUE_S
from forge.views.run.standing import IDLE_BY_STAGE

IDLE = """
SELECT stage, step, role, idle_share FROM v_idle WHERE step_s > 0 ORDER BY stage, step, role
"""

PHASES = """
SELECT phase, sum(num_turns) AS num_turns, sum(total_s) AS total_s,
    sum(total_s) / sum(num_turns) AS mean_s, max(max_s) AS max_s
FROM v_phases GROUP BY phase ORDER BY total_s DESC LIMIT 20
"""

QUEUED = """
SELECT (sum(judge_s) - (SELECT sum(total_s) FROM v_phases WHERE purpose = 'train'))
    / sum(num_turns) AS mean_s
FROM v_steps
"""

STEP_PARTS = {
    "step/wall/seconds": "whole step",
    "train/step/seconds": "trainer steps",
    "train/wait/seconds": "trainer waits for a batch",
    "train/publish_wait/seconds": "trainer waits for a publish",
    "weights/publish/seconds": "weights to the replicas",
}
"""Metric to its label."""

STEP_SECONDS = f"""
SELECT stage, step, key, value FROM v_metrics
WHERE key IN ({", ".join(f"'{key}'" for key in STEP_PARTS)}) AND value IS NOT NULL
ORDER BY stage, step
"""

STAGES = """
SELECT message, json_extract(data, '$.stage') AS stage, json_extract(data, '$.seconds') AS seconds
FROM v_events WHERE kind = 'stage_end' ORDER BY event_id LIMIT 100
"""

NUM_SLOWEST = 8


class TimeSpent:
    """Seconds of a run by role, stage, step and phase."""

    def __init__(self, asker: Asker) -> None:
        self.idle = asker.rows("idle shares", IDLE_BY_STAGE)
        self._idle_by_step = asker.rows("idle shares by step", IDLE)
        self.phases = asker.rows("phases of judging", PHASES)
        self._queued_s = asker.one("the queue of the judges", QUEUED).get("mean_s")
        self.stages = asker.rows("time by stage", STAGES)
        seconds = asker.rows("seconds by step", STEP_SECONDS)
        self._steps: dict[tuple[int, int], dict[str, float]] = {}
        for row in seconds:
            self._steps.setdefault((row["stage"], row["step"]), {})[row["key"]] = row["value"]

    def slowest(self) -> list[dict[str, Any]]:
        """The steps that took longest, with their parts in seconds."""
        wall = "step/wall/seconds"
        timed = [(place, parts) for place, parts in self._steps.items() if wall in parts]
        timed.sort(key=lambda item: (-item[1][wall], item[0]))
        return [
            {"stage": stage, "step": step} | {name: parts.get(k) for k, name in STEP_PARTS.items()}
            for (stage, step), parts in timed[:NUM_SLOWEST]
        ]

    def charts(self) -> list[Chart]:
        """All charts of time, including empty ones."""
        return [self._idle_chart(), self._step_chart(), self._phase_chart()]

    def _idle_chart(self) -> Chart:
        stage = max((row["stage"] for row in self._idle_by_step), default=None)
        rows = [row for row in self._idle_by_step if row["stage"] == stage]
        roles = sorted({row["role"] for row in rows})
        lines = [
            make_line(
                label(role),
                [(row["step"], row["idle_share"]) for row in rows if row["role"] == role],
            )
            for role in roles
        ]
        return Chart(
            name="idle", title="Idle share", x_label=f"step of stage {stage}",
            y_label="share of the step", lines=tuple(lines), is_share=True,
            note="A replica or judge is idle without a request, the trainer while it waits for a "
            "batch.",
        )  # fmt: skip

    def _step_chart(self) -> Chart:
        stage = max((place[0] for place in self._steps), default=None)
        places = [place for place in self._steps if place[0] == stage]
        lines = [
            make_line(name, [(step, self._steps[stage, step].get(key)) for stage, step in places])
            for key, name in STEP_PARTS.items()
        ]
        return Chart(
            name="step-time", title="Seconds per step", x_label=f"step of stage {stage}",
            y_label="seconds", lines=tuple(line for line in lines if line.points),
        )  # fmt: skip

    def _phase_chart(self) -> Chart:
        names = tuple(label(row["phase"]) for row in self.phases)
        seconds = [row["total_s"] for row in self.phases]
        queued_s = self._queued_s or 0.0  # belongs to no phase
        note = f"Before these, a training turn waited {queued_s:.1f} s for a judge (mean)."
        return Chart(
            name="phases", title="Slowest phases of judging", x_label="phase",
            y_label="seconds, all judges together", kind=Kind.BARS, names=names,
            lines=(Line(label="seconds", x=list(range(len(names))), y=seconds),),
            note=note if queued_s >= MENTIONED_QUEUE_S else "",
        )  # fmt: skip
