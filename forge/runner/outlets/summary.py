"""Figures of a run at its end: on the console evaluations, the best kernel and further commands;
with `eval.suite` the last evaluation as `results.json` and as a row of Markdown, `leaderboard.md`.

Called by `run.py` when the last stage has ended; the files also for a run that has finished before.
A field of the JSON never changes its meaning or goes away.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from rich.console import Group as RichGroup
from rich.text import Text

from forge.config.schema import ModelTable
from forge.runner.live.progress import Console
from forge.runner.plan.placement import Placement
from forge.runner.weights.resume import sha256_of_weights
from forge.store.layout import RunPaths, write_file
from forge.store.reader import RunReader, open_run
from forge.views.fitting import Fitting
from forge.views.run_state import load_experiment
from forge.views.show import load_evaluations, render_best_kernel, render_evaluations, show_run
from forge.views.text import NONE, gigabytes, percent, without_empty

PEAK = "SELECT stage, max(value) FROM metrics WHERE key = 'train/peak_bytes/max' GROUP BY stage"


def show_summary(paths: RunPaths, console: Console, placement: Placement | None = None) -> None:
    """Prints the summary as `forge show` does, and the peak GPU memory of trainers."""
    if console.quiet:
        return
    shown = show_run(paths)
    if shown["evaluations"]:
        console.show(render_evaluations(shown["evaluations"]))
    if shown["best_kernel"] is not None:
        console.show(render_best_kernel(shown["best_kernel"]))
    for line in _peaks(paths, placement):
        console.say(line)
    name = paths.root if paths.root.parent.name != "runs" else paths.name
    console.say(
        f"more:  forge show {name}  ·  forge rollouts {name} --best  ·  "
        f"forge sql {name} --named failures"
    )


def _peaks(paths: RunPaths, placement: Placement | None) -> Iterator[str]:
    """A line for each stage: measured and planned peak of the largest rank."""
    if placement is None or not placement.train:
        return
    roles = [placement.bytes_by_gpu.get(gpu.uuid, {}) for gpu in placement.train]
    planned = max(role.get("train", 0) for role in roles)
    beside = f", {gigabytes(planned)} planned" if planned else ""
    with open_run(paths) as reader:
        rows = reader.query(PEAK).rows
    for stage, peak in rows:
        yield f"trainer of stage {stage}: {gigabytes(peak)} of a GPU at its peak{beside}"


def write_results(paths: RunPaths, model: ModelTable, console: Console) -> None:
    """Write both files and show the figures; nothing before an evaluation has ended. Reads the
    weights completely, whose digest is part of the results."""
    with open_run(paths) as reader:
        result = load_result(reader, weights_sha256=_digest(model, paths))
    if result is None:
        return
    write_file(paths.root / RESULTS, json.dumps(result, indent=1) + "\n")
    write_file(paths.root / LEADERBOARD, leaderboard(result))
    if not console.quiet:
        console.show(render_result(result))
    console.say(f"results: {paths.root / RESULTS}  and  {LEADERBOARD}")


def _digest(model: ModelTable, paths: RunPaths) -> str | None:
    """Digests of a model's weights and of its adapter's; None if a server has the model."""
    if model.is_absent:
        return None
    path = Path(model.path) if model.path is not None else paths.weights / "init"
    digests = [sha256_of_weights(each) for each in (path, model.adapter) if each is not None]
    return "+".join(digests) or None


SCHEMA = 1
RESULTS = "results.json"
CUT = ("notify", "sinks", "store")
"""Tables of an experiment without an effect on results."""
METHODS = {
    "pass_at_k": "unbiased estimator 1 - C(n-c, k) / C(n, k), mean over problems "
    "(Chen et al., arXiv 2107.03374, eq. 1)",
    "best_at": "unbiased mean of the best of k of n rollouts of up to t turns, sum of "
    "C(i-1, k-1) v_i / C(n, k) over ascending v_i (Walder and Karkhanis, arXiv 2505.15201)",
    "fast_p": "share of answers that are correct and more than p times as fast as the baseline "
    "(Ouyang et al., arXiv 2502.10517), mean over problems; p = 0: correct",
    "geomean": "exp of the mean over problems of the mean log speed-up",
    "roofline": "share of the card's peak rate that correct kernels reach, mean over problems",
    "interval": "95 % percentile bootstrap over problems, 2000 resamples, seed 0",
}

_ATTEMPTS = "SELECT * FROM attempts ORDER BY attempt DESC LIMIT 1"
_PROBLEMS = """
SELECT p.problem_id, p.family, p.level, p.precision, lower(hex(s.sha256)) AS sha256,
    (SELECT max(v.speedup) FROM groups g JOIN verdicts v USING (group_id)
        WHERE g.problem_id = p.problem_id AND g.purpose = 'eval' AND g.stage = :stage
        AND v.status = 'correct') AS best_speedup,
    (SELECT u.reason FROM v_unjudgeable u WHERE u.problem_id = p.problem_id
        AND u.stage = :stage AND u.purpose = 'eval' LIMIT 1) AS unjudgeable
FROM problems p JOIN texts s ON s.text_id = p.source_id
WHERE p.problem_id IN (SELECT problem_id FROM groups WHERE purpose = 'eval' AND stage = :stage)
ORDER BY p.problem_id
"""
_JUDGES = """
SELECT v.device, v.harness, v.isolation, count(*) AS num_verdicts
FROM groups g JOIN verdicts v USING (group_id)
WHERE g.purpose = 'eval' AND g.stage = :stage AND v.harness <> ''
GROUP BY v.device, v.harness, v.isolation ORDER BY 4 DESC
"""
_PROMPTS = "SELECT DISTINCT prompt_hash FROM turns WHERE prompt_hash IS NOT NULL ORDER BY 1"
_STATUSES = """
SELECT v.status, count(*) FROM groups g JOIN verdicts v USING (group_id)
WHERE g.purpose = 'eval' AND g.stage = :stage AND NOT g.is_greedy
    AND g.group_id NOT IN (SELECT group_id FROM v_replayed)
GROUP BY v.status ORDER BY 2 DESC
"""


def load_result(reader: RunReader, *, weights_sha256: str | None) -> dict[str, Any] | None:
    """The last evaluation of an eval stage as JSON; None before one has ended.

    Args:
        weights_sha256: digest of the model's weights; None if they are a server's.
    """
    found = [row for row in load_evaluations(reader) if "@" not in row["stage"]]
    if not found:
        return None
    row = found[-1]
    experiment = load_experiment(reader)
    place = {"stage": row["stage_index"]}
    hashes = reader.query(_PROMPTS).rows
    return {
        "schema": SCHEMA,
        "weights_sha256": weights_sha256,
        "run": {"name": reader.paths.name},
        "at": row["at"],
        "model": _model(experiment),
        "suite": _suite(reader, experiment, row),
        "sampling": {
            "seed": experiment["eval"].get("seed", experiment["seed"]),
            "samples": row["num_samples"],
            "turns": row["max_turns"],
            "temperature": experiment["eval"].get("temperature", 1.0),
            "has_greedy": row["pass_at_1_greedy"] is not None,
            "max_completion_tokens": experiment["rollout"]["max_completion_tokens"],
            "context_tokens": experiment["serve"]["context_tokens"],
            "stop_at_speedup": experiment["reward"]["stop_at_speedup"],
        },
        "judge": {**_public(experiment["judge"]), "used": reader.rows(_JUDGES, place)},
        "prompt": {**experiment["prompt"], "hashes": [each for (each,) in hashes]},
        "counts": _counts(reader, row),
        "metrics": _metrics(row),
        "by_protocol": row["by_protocol"],
        "other_baseline": row["detail"].get("speed_other"),
        "by_turn": row["detail"]["speed"]["by_turn"],
        "best_by_turn": row["detail"]["speed"]["best_by_turn"],
        "best_at": row["detail"].get("best_at", []),
        "parts": {
            name: row["detail"].get(name, {}) for name in ("by_source", "by_level", "by_family")
        },
        "methods": METHODS,
        "machine": _machine(reader),
        "experiment": {name: _public(each) for name, each in experiment.items() if name not in CUT},
    }


def _public(table: Any) -> Any:
    """A table of the experiment without `env`, whose values may be secrets."""
    if not isinstance(table, dict):
        return table
    return {k: v for k, v in cast("dict[str, Any]", table).items() if k != "env"}


def _model(experiment: dict[str, Any]) -> dict[str, Any]:
    model, serve, label = experiment["model"], experiment["serve"], experiment["eval"].get("label")
    return {
        "label": label or serve.get("model_name") or model.get("path") or experiment["name"],
        **{name: model[name] for name in ("path", "revision", "adapter", "init") if name in model},
        "url": serve.get("url") or None,
        "model_name": serve.get("model_name"),
    }


def _suite(reader: RunReader, experiment: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """The problems with the hashes of their sources and their results. `sha256` is the hash of the
    lines `id hash`."""
    tallies = row["detail"]["tallies"]
    problems = {
        each.pop("problem_id"): each
        for each in reader.rows(_PROBLEMS, {"stage": row["stage_index"]})
    }
    for name, each in problems.items():
        each["num_samples"], each["num_correct"] = tallies.get(name, (0, 0))
    lines = "".join(f"{name} {each['sha256']}\n" for name, each in problems.items())
    return {
        "name": experiment["eval"].get("suite") or experiment["name"],
        "num_problems": len(problems),
        "sha256": hashlib.sha256(lines.encode()).hexdigest(),
        "problems": problems,
    }


def _counts(reader: RunReader, row: dict[str, Any]) -> dict[str, Any]:
    """Problems that count and that do not, and sampled turns by status: `infra_error` and
    `unjudgeable` are no scores."""
    statuses = reader.query(_STATUSES, {"stage": row["stage_index"]}).rows
    return {
        "num_problems": row["num_problems"],
        "num_judged_problems": row["num_judged_problems"],
        "unjudgeable": row["unjudgeable"],
        "num_cut_short": row["detail"]["multi"]["num_cut_short"],
        "num_context_full": row["detail"]["num_context_full"],
        "turns_by_status": dict(statuses),
    }


def _metrics(row: dict[str, Any]) -> dict[str, Any]:
    """Figures of first answers, each [value, low, high] or None."""
    first, detail = row["detail"]["speed"]["by_turn"]["0"], row["detail"]
    multi = detail["multi"]
    return {
        "pass_at_k": {
            k: [value, *detail["pass_at_k_ci"][k]] for k, value in row["pass_at_k"].items()
        },
        "pass_at_1_greedy": row["pass_at_1_greedy"],
        "pass_at_1_multi": [multi["value"], multi["ci_low"], multi["ci_high"]],
        "compile_rate": [row["compile_rate"], *detail["compile_rate_ci"]],
        "fast_p": first["fast_p"],
        "geomean_correct": first["geomean_correct"],
        "geomean_all": first["geomean_all"],
        "geomean_floor": detail["speed"]["floor"],
        "roofline": first["roofline"],
    }


def _machine(reader: RunReader) -> dict[str, Any]:
    """The last attempt: commit with a digest of uncommitted changes, versions, cores, GPUs."""
    row = reader.one(_ATTEMPTS) or {}
    diff: str = row["code_diff"]
    return {
        "forge_version": reader.value("SELECT forge_version FROM runs"),
        "commit": row["code_commit"],
        "code_diff_sha256": hashlib.sha256(diff.encode()).hexdigest() if diff else None,
        "num_attempts": row["attempt"],
        "versions": json.loads(row["versions"]),
        **json.loads(row["machine"]),
    }


BAR = 12
LEADERBOARD = "leaderboard.md"
SHOWN = ("0", "1", "2")


def leaderboard(result: dict[str, Any]) -> str:
    """Head and row of a Markdown table, and the notes that the figures need."""
    cells = _cells(result)
    escaped = [" ".join(cell.split()).replace("|", "\\|") for cell in cells.values()]
    lines = [list(cells), ["---"] * len(cells), escaped]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{_notes(result)}\n"


def render_result(result: dict[str, Any]) -> RichGroup:
    """The figures of first answers, of each turn, and of the best by each turn."""
    known = [(name, cell) for name, cell in _cells(result).items() if cell != NONE]
    kinds = {"turn": result["by_turn"], "best by": result["best_by_turn"]}
    columns: dict[str, dict[str, Any]] = {
        f"{kind} {int(number) + 1}": of
        for kind, found in kinds.items()
        for number, of in found.items()
        if kind == "turn" or len(found) > 1
    }
    floor = f"all, floor {result['metrics']['geomean_floor']:g}x"
    lines = [["p", *columns]]
    lines += [
        [f"fast_{p}", *(_percent(each["fast_p"][p]) for each in columns.values())]
        for p in result["metrics"]["fast_p"]
    ]
    for head, name in (("geomean", "geomean_correct"), (floor, "geomean_all")):
        lines.append([head, *(_times(each[name]) for each in columns.values())])
    lines = [line for line in lines if any(cell != NONE for cell in line[1:])]
    if len(lines) <= len(columns):  # without times there is one figure: a line a turn is narrower
        lines = list(zip(*lines, strict=True))
    parts: list[Any] = [Fitting(("figure", "value"), known), Fitting(lines[0], lines[1:])]
    if result["sampling"]["samples"] > 1 and result["best_at"]:
        parts.append(Fitting(*_best_at(result["best_at"])))
    return RichGroup(*parts, Text(_notes(result)))


def _best_at(rows: Sequence[dict[str, Any]]) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """best@N by turns and rollouts, with the tokens of a problem, and the share solved as a bar."""
    head = ["best@", "turns x rollouts", "tokens", "solved", "", "fast_1", "fast_1.2", "of all"]
    cells = [
        [
            f"{row['answers']:.3g}", f"{row['turns']} x {row['rollouts']}", f"{row['tokens']:,.0f}",
            _percent(row["solved"]), "█" * round(BAR * row["solved"][0]),
            _percent(row["fast_1"]), _percent(row["fast_1_2"]), _times(row["speedup"]),
        ]
        for row in rows
    ]  # fmt: skip
    return without_empty(head, cells)


def _cells(result: dict[str, Any]) -> dict[str, str]:
    metrics, counts, judge = result["metrics"], result["counts"], result["judge"]
    sampling, last = result["sampling"], list(result["best_by_turn"].values())[-1]
    judged = f"{counts['num_judged_problems']} of {counts['num_problems']}"
    ks = sorted(metrics["pass_at_k"], key=int)
    ends = dict.fromkeys([*ks[:1], *ks[-1:]])  # k = 1, and the largest
    at_k = {f"pass@{k}": _percent(metrics["pass_at_k"][k]) for k in ends}
    fast = {f"fast_{p}": _percent(metrics["fast_p"][p]) for p in SHOWN}
    best = {f"best fast_{p}": _percent(last["fast_p"][p]) for p in SHOWN}
    return {
        "model": result["model"]["label"],
        "suite": result["suite"]["name"],
        "problems judged": judged,
        "samples x turns": f"{sampling['samples']} x {sampling['turns']}",
        "protocol": f"{judge['protocol']}, {judge['policy']}",
        "device": ", ".join(dict.fromkeys(each["device"] for each in judge["used"])) or NONE,
        "baseline": judge["baseline"],
        **at_k,
        **_protocols(result["by_protocol"]),
        "compiles": _percent(metrics["compile_rate"]),
        **fast,
        **(best if sampling["turns"] > 1 else {}),
        "geomean": _times(metrics["geomean_correct"]),
        "geomean of all": _times(metrics["geomean_all"]),
        **_other(result["other_baseline"]),
        "roofline": _percent(metrics["roofline"]),
        "commit": result["machine"]["commit"][:8] or NONE,
    }


def _protocols(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Cells of the own share, and of pass@1 by further protocols with theirs."""
    cells: dict[str, str] = {}
    for each in rows:
        own = percent(each["own_share"])
        if each["counts"]:
            cells["own share of correct"] = own
        else:
            name = f"pass@1 ({each['protocol']}, {each['policy']})"
            cells[name] = f"{percent(each['pass_at_1'])}, own share {own}"
    return cells


def _other(other: dict[str, Any] | None) -> dict[str, str]:
    """Cells of first answers against the other baseline, if it was measured."""
    if other is None:
        return {}
    first, name = other["by_turn"]["0"], other["baseline"]
    return {
        f"fast_1 ({name})": _percent(first["fast_p"]["1"]),
        f"geomean ({name})": _times(first["geomean_correct"]),
    }


def _notes(result: dict[str, Any]) -> str:
    counts = result["counts"]
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts["unjudgeable"].items())
    infra = counts["turns_by_status"].get("infra_error", 0)
    notes = [
        "Intervals: 95 %, over problems. All rates are of the judged problems"
        + (f"; unjudgeable: {reasons}." if reasons else "; none was unjudgeable.")
    ]
    if infra:
        notes.append(f"{infra} turns were lost to faults of the machine and count nowhere.")
    if result["metrics"]["fast_p"]["1"] is None:
        notes.append("No times: the judge had no GPU.")
    else:
        notes.append(
            "geomean: speed-ups of correct kernels; of all: wrong answers and slower ones count as "
            f"{result['metrics']['geomean_floor']:g}x."
        )
    return " ".join(notes)


def _percent(interval: Sequence[float | None] | None) -> str:
    if interval is None or interval[0] is None:
        return NONE
    value, low, high = (100 * (each or 0.0) for each in interval)
    return f"{value:.1f} % ({low:.0f}-{high:.0f})"


def _times(interval: Sequence[float | None] | None) -> str:
    if interval is None or interval[0] is None:
        return NONE
    value, low, high = interval
    return f"{value:.2f}x ({low:.2f}-{high:.2f})" if high is not None else f"{value:.2f}x"
