"""`forge show RUN`: the results of a run, as tables for people and as one JSON object for programs.

`load_show` is the only source of both, so they cannot disagree.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Group as RichGroup
from rich.text import Text

from forge.records.verdict import join_rules, split_rules
from forge.store.layout import RunPaths
from forge.store.reader import RunReader, open_run
from forge.views import run_state, text
from forge.views.fitting import Fitting


def show_run(run: str | Path | RunPaths, *, store_dir: Path = Path("runs")) -> dict[str, Any]:
    """`load_show` of a run by path, name, `name-n` or `last`."""
    with open_run(run, store_dir=store_dir) as reader:
        return load_show(reader)


BY_PROTOCOL = """
WITH firsts AS (
    SELECT g.stage, g.step, g.problem_id, v.group_id, v.rollout, v.turn, v.status,
        1 - v.torch_share AS own_share
    FROM groups g JOIN verdicts v USING (group_id)
    WHERE g.purpose = 'eval' AND NOT g.is_greedy AND v.turn = 0
        AND v.status NOT IN ('unjudgeable', 'infra_error')
        AND g.group_id NOT IN (SELECT group_id FROM v_replayed)
), judged AS (
    SELECT stage, step, problem_id, '' AS protocol, status, own_share FROM firsts
    UNION ALL
    SELECT f.stage, f.step, f.problem_id, n.protocol, coalesce(o.status, f.status), f.own_share
    FROM firsts f CROSS JOIN (SELECT DISTINCT protocol FROM turn_protocols) n
    LEFT JOIN turn_protocols o ON o.group_id = f.group_id AND o.rollout = f.rollout
        AND o.turn = f.turn AND o.protocol = n.protocol
), problem AS (
    SELECT stage, step, protocol, avg(status = 'correct') AS rate,
        avg(CASE WHEN status = 'correct' THEN own_share END) AS own_share
    FROM judged GROUP BY stage, step, problem_id, protocol
)
SELECT stage, step, protocol, avg(rate) AS pass_at_1, avg(own_share) AS own_share
FROM problem GROUP BY stage, step, protocol ORDER BY stage, step, protocol
"""
"""First answers of each evaluation: pass@1 and the share of the work that own kernels of correct
ones do, means over problems, by the verdict that counts (without a name) and by further
protocols."""


def load_show(reader: RunReader) -> dict[str, Any]:
    """A JSON object: name, state, stages, evaluations (oldest first), best kernel, counters, idle
    shares by stage."""
    run = run_state.load_run_state(reader, now=time.time())
    stages = run_state.load_stages(reader)
    return {
        "name": reader.paths.name,
        "path": str(reader.paths.root),
        "state": run.state,
        "reason": run.reason,
        "attempts": reader.rows(
            "SELECT attempt, started_at, ended_at, exit_code, reason FROM attempts ORDER BY attempt"
        ),
        "stages": _stages(reader, run),
        "stage": run.stage,
        "step": run.step,
        **run.played,
        "evaluations": load_evaluations(reader),
        # over all problems, by the rule of v_best_kernels; without times, the hardest problem
        "best_kernel": reader.one("SELECT * FROM v_best_kernels ORDER BY rank LIMIT 1"),
        "counters": load_counters(reader),
        "rows": [
            row["message"]
            for row in reader.rows(
                "SELECT message FROM events WHERE kind = 'sft_rows' ORDER BY event_id"
            )
        ],
        "verdicts": dict(
            reader.query(
                "SELECT status, count(*) FROM verdicts GROUP BY status ORDER BY 2 DESC"
            ).rows
        ),
        "idle": {
            run_state.stage_name(stages, stage): shares
            for stage, shares in run_state.load_idle_by_stage(reader).items()
        },
        "policy_version": run.policy_version,
    }


def load_evaluations(reader: RunReader) -> list[dict[str, Any]]:
    """Evaluations that count, oldest first: their fields, and fast_1, which is None if untimed."""
    rows = reader.rows(
        "SELECT e.*, f.fast_p AS fast_1 FROM evaluations e LEFT JOIN v_fast_p f "
        "ON f.stage = e.stage_index AND f.step = e.step "
        "AND f.policy_version = e.policy_version AND f.p = 1 WHERE (e.stage, e.step, "
        "e.policy_version) IN (SELECT stage, step, policy_version FROM v_evaluations) "
        "ORDER BY at, evaluation_id"
    )
    by_protocol = load_by_protocol(reader)
    for row in rows:
        del row["evaluation_id"]
        row["by_protocol"] = by_protocol.get((row["stage_index"], row["step"]), [])
        row["pass_at_k"] = dict(json.loads(row["pass_at_k"]))
        row["detail"] = dict(json.loads(row["detail"]))
        for name in ("num_trained_problems", "num_judged_problems", "unjudgeable"):
            row[name] = row["detail"][name]
        row["num_shared_problems"] = row["detail"].get("num_shared_problems", 0)
        row |= {name: row["detail"].get(name, {}) for name in ("by_source", "by_level")}
    return rows


def load_by_protocol(reader: RunReader) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Figures of first answers of each evaluation, by stage index and step: for the protocol that
    counts, then for further ones."""
    judge = run_state.load_experiment(reader).get("judge", {})
    own = join_rules(judge.get("protocol", "forge"), judge.get("policy", "own"))
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in reader.rows(BY_PROTOCOL):
        place, rules = (row.pop("stage"), row.pop("step")), row.pop("protocol")
        protocol, policy = split_rules(rules or own)
        each = {"protocol": protocol, "policy": policy, "counts": not rules, **row}
        found.setdefault(place, []).append(each)
    return found


def load_counters(reader: RunReader) -> dict[str, int]:
    row = reader.one(
        "SELECT (SELECT count(*) FROM groups WHERE num_rollouts > 0) AS groups, "
        "(SELECT count(*) FROM trajectories) AS rollouts, count(*) AS turns, "
        "coalesce(sum(num_prompt_tokens), 0) AS prompt_tokens, "
        "coalesce(sum(num_completion_tokens), 0) AS completion_tokens, "
        "(SELECT count(*) FROM problems) AS problems, "
        "(SELECT count(*) FROM samples) AS samples, "
        "(SELECT count(DISTINCT sample_id) FROM sample_uses) AS trained_samples, "
        "(SELECT count(*) FROM policies) AS policies FROM turns"
    )
    return row or {}


def render_show(data: dict[str, Any]) -> RichGroup:
    counters = data["counters"]
    stages = ", ".join(f"{s['name']} {s['state']}" for s in data["stages"]) or "none"
    parts: list[Any] = [
        Text(f"{data['name']}: {data['state']}", style="bold"),
        *(Text(line) for line in run_state.why_lines(data["reason"])),
        Text(f"stages: {stages}"),
        *(Text(line) for line in run_state.describe_steps(data)),
        Text(
            f"{counters['groups']} groups, {counters['rollouts']} rollouts, {counters['turns']} "
            "turns, "
            f"{counters['completion_tokens']} tokens generated, {counters['trained_samples']} "
            "samples trained"
        ),
        Text("verdicts: " + (", ".join(f"{k} {v}" for k, v in data["verdicts"].items()) or "none")),
    ]
    parts += [Text(message) for message in data["rows"]]
    for stage, shares in data["idle"].items():
        words = ", ".join(f"{role} {text.percent(share)}" for role, share in shares.items())
        parts.append(Text(f"idle in {stage}: {words}"))
    if data["evaluations"]:
        parts += [Text(""), render_evaluations(data["evaluations"])]
    if data["best_kernel"] is not None:
        parts += [Text(""), render_best_kernel(data["best_kernel"])]
    return RichGroup(*parts)


def render_best_kernel(best: dict[str, Any]) -> RichGroup:
    """The best kernel: problem, speed-up, turn and code. A model wrote it: control characters are
    made visible."""
    from rich.syntax import Syntax

    best = text.printable_values(best)
    if best["speedup"] is None:
        speed = text.launches(best["num_launches"])
    else:
        speed = (
            f"at least {text.factor(best['speedup_low'])} ({text.factor(best['speedup'])}: "
            f"{best['candidate_us']:.1f} µs, baseline {best['baseline_us']:.1f} µs)"
        )
    place = f"{best['problem_id']}, {speed}, {best['turn_id']}"
    return RichGroup(
        Text(f"best kernel: {place} (by {best['ranked_by']})"),
        Syntax(best["code"] or "", "python", background_color="default"),
    )


def render_evaluations(evaluations: list[dict[str, Any]]) -> RichGroup:
    """One row per evaluation; also the table that ends a run. Fits 80 columns.

    n is problems × sampled rollouts. All rates are of the judged problems; fast_1 is of first
    turns, like pass@1; multi counts a rollout that any of its turns solves.
    """
    rows = [_evaluation(row) for row in evaluations]
    heads = list(rows[0]) if rows else []
    table = Fitting(*text.without_empty(heads, [list(row.values()) for row in rows]))
    words = [(row["stage"], run_state.words_of(row)) for row in evaluations]
    lines = [
        Text(text.printable(f"{stage}: pass@1 of {each['parts']}"))
        for stage, each in words
        if each["parts"]
    ]
    named = [each for each in words[:-1] if each[1]["judged_share"]] + words[-1:]
    lines += [Text(f"{stage}: {each['judged']}") for stage, each in named]
    for row in evaluations[-1:]:
        lines += [
            Text(
                f"{row['stage']} by protocol {each['protocol']}, policy {each['policy']}: "
                f"{text.percent(each['pass_at_1'])}, "
                f"own share of correct {text.percent(each['own_share'])}"
            )
            for each in row["by_protocol"]
            if len(row["by_protocol"]) > 1
        ]
    return RichGroup(Text("evaluations", style="italic"), table, *lines)


def _evaluation(row: dict[str, Any]) -> dict[str, str]:
    words, last_k = run_state.words_of(row), max(row["pass_at_k"], key=int, default=None)
    return {
        "stage": row["stage"],
        "n": f"{row['num_problems']}×{row['num_samples']}",
        "pass@1": text.percent(row["pass_at_1"]),
        "95 %": f"{100 * row['ci_low']:.0f}–{100 * row['ci_high']:.0f}",
        "fast_1": text.percent(
            row["fast_1"] if row["pass_at_1"] else None
        ),  # 0 of 0 does not imply times
        "greedy": text.percent(row["pass_at_1_greedy"]),
        "multi": text.percent(row["pass_at_1_multi"]),
        "pass@k": f"{text.percent(row['pass_at_k'][last_k])} @{last_k}" if last_k else text.NONE,
        "compiles": text.percent(row["compile_rate"]),
        "judged": words["judged_share"] or text.NONE,
        "trained on": words["trained_share"] or text.NONE,
    }


def _stages(reader: RunReader, run: run_state.RunState) -> list[dict[str, Any]]:
    rungs = run_state.load_ladder(
        reader, run_state.load_stages(reader), is_running=run.state == "running"
    )
    own = [rung for rung in rungs if not rung.name.startswith("@")]
    return [
        {
            "index": index, "name": each.name, "kind": each.kind, "steps": each.num_steps,
            "state": each.state,
        }
        for index, each in enumerate(own)
    ]  # fmt: skip
