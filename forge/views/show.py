"""`forge show RUN`: what came out of a run, for people as tables and for programs as one JSON
object.

`load_show` is the one source of both, so they cannot disagree.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.store.reader import RunReader, open_run
from forge.views.standing import load_stages, load_standing
from forge.views.terminal import percent, printable_values

if TYPE_CHECKING:
    from rich.console import Group as RichGroup
    from rich.table import Table as RichTable

    from forge.store.layout import RunPaths


def show_run(run: str | Path | RunPaths, *, store_dir: Path = Path("runs")) -> dict[str, Any]:
    """`load_show` of a run by path, name, `name-n` or `last`."""
    with open_run(run, store_dir=store_dir) as reader:
        return load_show(reader)


def load_show(reader: RunReader) -> dict[str, Any]:
    """A JSON object: name, state, stages, evaluations (oldest first), best kernel, counters, idle
    shares.
    """
    standing = load_standing(reader, now=time.time())
    return {
        "name": reader.paths.name,
        "path": str(reader.paths.root),
        "state": standing.state,
        "attempts": load_attempts(reader),
        "stages": _stages(reader),
        "stage": standing.stage,
        "step": standing.step,
        "evaluations": load_evaluations(reader),
        "best_kernel": load_best_kernel(reader),
        "counters": load_counters(reader),
        "verdicts": _counts(
            reader, "SELECT status, count(*) FROM verdicts GROUP BY status ORDER BY 2 DESC"
        ),
        "idle": _counts(
            reader, "SELECT role, sum(idle_s) / sum(step_s) FROM v_idle GROUP BY role ORDER BY role"
        ),
        "policy_version": standing.policy_version,
    }


def load_evaluations(reader: RunReader) -> list[dict[str, Any]]:
    """Every evaluation, oldest first, as its record has it."""
    rows = reader.rows("SELECT * FROM evaluations ORDER BY at, evaluation_id")
    for row in rows:
        del row["evaluation_id"]
        row["pass_at_k"] = json.loads(row["pass_at_k"])
        row["detail"] = json.loads(row["detail"])
    return rows


def load_attempts(reader: RunReader) -> list[dict[str, Any]]:
    """Each start of the run and how it ended."""
    return reader.rows(
        "SELECT attempt, started_at, ended_at, exit_code, reason FROM attempts ORDER BY attempt"
    )


def load_best_kernel(reader: RunReader) -> dict[str, Any] | None:
    """The best of all problems by the rule of v_best_kernels; where untimed, the hardest."""
    return reader.one("SELECT * FROM v_best_kernels WHERE purpose <> 'chat' ORDER BY rank LIMIT 1")


def load_counters(reader: RunReader) -> dict[str, int]:
    """Rows, as the terminal's counters say them."""
    row = reader.one(
        "SELECT (SELECT count(*) FROM groups WHERE num_rollouts > 0) AS groups, "
        "(SELECT count(*) FROM trajectories) AS rollouts, count(*) AS turns, "
        "coalesce(sum(num_prompt_tokens), 0) AS prompt_tokens, "
        "coalesce(sum(num_completion_tokens), 0) AS completion_tokens, "
        "(SELECT count(*) FROM problems) AS problems, (SELECT count(*) FROM samples) AS samples, "
        "(SELECT count(DISTINCT sample_id) FROM sample_uses) AS trained_samples, "
        "(SELECT count(*) FROM policies) AS policies FROM turns"
    )
    return row or {}


def render_show(data: dict[str, Any]) -> RichGroup:
    """The same object as tables."""
    from rich.console import Group as RichGroup
    from rich.text import Text

    counters = data["counters"]
    stages = ", ".join(f"{s['name']} {s['state']}" for s in data["stages"]) or "none"
    parts: list[Any] = [
        Text(f"{data['name']}: {data['state']}", style="bold"),
        Text(f"stages: {stages}"),
        Text(
            f"{counters['groups']} groups, {counters['rollouts']} rollouts, {counters['turns']} "
            "turns, "
            f"{counters['completion_tokens']} tokens generated, {counters['trained_samples']} "
            "samples trained"
        ),
        Text("verdicts: " + (", ".join(f"{k} {v}" for k, v in data["verdicts"].items()) or "none")),
    ]
    if data["idle"]:
        parts.append(
            Text("idle: " + ", ".join(f"{k} {percent(v)}" for k, v in data["idle"].items()))
        )
    if data["evaluations"]:
        parts += [Text(""), render_evaluations(data["evaluations"])]
    if data["best_kernel"] is not None:
        parts += [Text(""), render_best_kernel(data["best_kernel"])]
    return RichGroup(*parts)


def render_best_kernel(best: dict[str, Any]) -> RichGroup:
    """Where it stands and its code, which a model wrote: control characters are made visible."""
    from rich.console import Group as RichGroup
    from rich.syntax import Syntax
    from rich.text import Text

    best = printable_values(best)
    speed = (
        f"{best['speedup']:.2f}x"
        if best["speedup"] is not None
        else f"{best['num_launches']} launch(es)"
    )
    place = f"{best['problem_id']}, {speed}, {best['turn_id']} (by {best['ranked_by']})"
    return RichGroup(
        Text(f"best kernel: {place}"),
        Syntax(best["code"] or "", "python", background_color="default"),
    )


def render_evaluations(evaluations: list[dict[str, Any]]) -> RichTable:
    """A line an evaluation; also the table that ends a run. Fits 80 columns.

    n is problems × sampled rollouts; multi counts a rollout that any of its turns solves.
    """
    from rich.table import Table as RichTable

    table = RichTable(
        show_edge=False, header_style="bold", title="evaluations", title_justify="left"
    )
    for name in (
        "stage",
        "n",
        "pass@1",
        "95 %",
        "greedy",
        "multi",
        "pass@k",
        "compiles",
    ):
        table.add_column(name, justify="left" if name == "stage" else "right")
    for row in (printable_values(row) for row in evaluations):
        last_k = max(row["pass_at_k"], key=int, default=None)
        table.add_row(
            row["stage"],
            f"{row['num_problems']}×{row['num_samples']}",
            percent(row["pass_at_1"]),
            f"{100 * row['ci_low']:.0f}–{100 * row['ci_high']:.0f}",
            percent(row["pass_at_1_greedy"]),
            percent(row["pass_at_1_multi"]),
            f"{percent(row['pass_at_k'][last_k])} @{last_k}" if last_k else "–",
            percent(row["compile_rate"]),
        )
    return table


def _stages(reader: RunReader) -> list[dict[str, Any]]:
    """Index, name, kind and state (waiting, started, done) of each stage."""
    marks = reader.rows(
        "SELECT json_extract(data, '$.stage') AS stage, max(kind = 'stage_end') AS is_done FROM "
        "events "
        "WHERE kind IN ('stage_start', 'stage_end') GROUP BY 1"
    )
    states = {row["stage"]: "done" if row["is_done"] else "started" for row in marks}
    return [
        {
            "index": index,
            "name": f"{stage.get('kind')}-{index}",
            "kind": stage.get("kind"),
            "steps": stage.get("steps"),
            "state": states.get(index, "waiting"),
        }
        for index, stage in enumerate(load_stages(reader))
    ]


def _counts(reader: RunReader, sql: str) -> dict[str, Any]:
    return dict(reader.query(sql).rows)
