"""Words and tables of a report: opening paragraph, headline, cards, set-up, kernels by family,
tables.

Pure; `page` renders and escapes them. Values come from the resolved experiment and the rows of the
run, which one made by hand may lack or break: a missing value, and a sentence without its numbers,
is left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forge.views.gains import whole_evaluations
from forge.views.report.facts import MOST_EVENTS, MOST_KERNELS, when
from forge.views.report.run_charts import STEP_PARTS
from forge.views.run_state import (
    judged_label,
    judged_share,
    stage_name,
    trained_label,
    trained_share,
    unjudgeable_reasons,
)
from forge.views.text.numbers import (
    NONE,
    clock,
    gigabytes,
    grouped,
    launches,
    percent,
    share,
    without_empty,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.views.gains import Gain
    from forge.views.report.facts import Facts

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Head and rows."""
REWARD_STEPS = 5
"""Steps in a mean of rewards: each step draws other problems, so that one says little."""


def describe(facts: Facts) -> dict[str, Any]:
    """Headline, description, cards with key numbers, and the note on the list of kernels."""
    seconds = facts.seconds
    words = [f"{len(facts.attempts)} attempts"] if len(facts.attempts) > 1 else []
    words += [f"took {clock(seconds)}"] if seconds is not None else []
    kinds = " → ".join(str(each.get("kind", "?")) for each in facts.stages)
    about = [
        f"stages: {kinds}" if kinds else "",
        f"last row {when(facts.last_row_at)} UTC" if facts.last_row_at else "",
        f"forge {facts.run.get('forge_version', '?')}",
    ]
    last = facts.attempts[-1] if facts.attempts else {}
    reason = last.get("reason")
    why = f": {reason}" if reason and facts.state in ("failed", "stopped") else ""
    return {
        "headline": ", ".join([f"{facts.state}{why}", *words]),
        "about": "; ".join(part for part in about if part),
        "cards": [each for each in _cards(facts) if each is not None],
        "is_timed": any(row["speedup"] is not None for row in facts.kernels),
        "opening": opening(facts),
        "kernels_about": f", at most {MOST_KERNELS} of them"
        if len(facts.kernels) == MOST_KERNELS
        else "",
    }


def rounded_clock(seconds: float | None) -> str:
    """`6:23` or `1:06:23`, to the nearest second."""
    return clock(None if seconds is None else round(seconds))


def _card(title: str, figure: str, about: str) -> dict[str, str]:
    return {"title": title, "figure": figure, "about": about}


def _cards(facts: Facts) -> list[dict[str, str] | None]:
    num = len(facts.training.steps)
    steps = f"{num:,} {'step' if num == 1 else 'steps'} of GRPO" if num else "of all attempts"
    return [
        _pass_card(facts),
        _speed_card(facts),
        _solved_card(facts),
        _reward_card(facts),
        _card("Rollouts", f"{facts.num_rollouts:,}", f"{facts.num_turns:,} turns judged"),
        _card("Time", clock(facts.seconds), steps) if facts.attempts else None,
    ]


def _pass_card(facts: Facts) -> dict[str, str] | None:
    if not facts.evaluations:
        return None
    first, last = facts.evaluations[0], facts.evaluations[-1]
    about = f"{last['stage']}, 95 %: {percent(last['ci_low'])} to {percent(last['ci_high'])}"
    about += f"; {judged_label(last)}"
    if label := trained_label(last):
        about += f"; {label}"
    if len(facts.evaluations) > 1:
        about += f"; {percent(first['pass_at_1'])} in {first['stage']}"
    return _card("pass@1", percent(last["pass_at_1"]), about)


def _speed_card(facts: Facts) -> dict[str, str] | None:
    best = next((row for row in facts.kernels if row["speedup"] is not None), None)
    if best is None:
        return None
    about = f"{best['problem_id']}, measured {best['speedup']:.2f}×"
    return _card("Best kernel", f"≥ {best['speedup_low']:.2f}×", about)


def _solved_card(facts: Facts) -> dict[str, str] | None:
    row = next((row for row in facts.problems if row["purpose"] == "train"), None)
    if row is None:
        return None
    num_judged = row["num_problems"] - row["num_unjudgeable"]
    share = percent(row["num_solved"] / num_judged) if num_judged else NONE
    about = f"{share}, at least once"
    if row["num_unjudgeable"]:
        about += f"; {row['num_unjudgeable']:,} more unjudgeable"
    return _card("Training problems solved", f"{row['num_solved']:,} of {num_judged:,}", about)


def _reward_card(facts: Facts) -> dict[str, str] | None:
    rewards = [row for row in facts.training.steps if row["reward"] is not None]
    if not rewards:
        return None
    if len(rewards) < 2 * REWARD_STEPS:
        return _card("Reward", grouped(rewards[-1]["reward"]), f"step {rewards[-1]['step']}")
    first, last = (
        grouped(sum(row["reward"] for row in part) / REWARD_STEPS)
        for part in (rewards[:REWARD_STEPS], rewards[-REWARD_STEPS:])
    )
    about = f"mean of the last {REWARD_STEPS} steps; {first} in the first {REWARD_STEPS}"
    return _card("Reward", last, about)


def tables(facts: Facts) -> dict[str, Table | None]:
    """Every table by its name in the page; None for one without rows."""
    every = {
        "setup": (["part", "setting"], setup_rows(facts)),
        "evaluations": _evaluations(facts),
        "gains": _gains(facts),
        **_outcomes(facts),
        **_times(facts),
        **_history(facts),
    }
    return {name: without_empty(*table) if table[1] else None for name, table in every.items()}


def _evaluations(facts: Facts) -> Table:
    head = ["evaluation", "step", "policy", "problems × samples", "pass@1", "95 %", "greedy"]
    head += ["any turn", "compiles", "judged", "unjudgeable", "trained on"]
    return head, [
        [
            row["stage"],
            str(row["step"]),
            str(row["policy_version"]),
            f"{row['num_problems']} × {row['num_samples']}",
            percent(row["pass_at_1"]),
            f"{percent(row['ci_low'])} to {percent(row['ci_high'])}",
            percent(row["pass_at_1_greedy"]),
            percent(row["pass_at_1_multi"]),
            percent(row["compile_rate"]),
            judged_share(row) or NONE,
            unjudgeable_reasons(row) or NONE,
            trained_share(row) or NONE,
        ]
        for row in facts.evaluations
    ]


def _outcomes(facts: Facts) -> dict[str, Table]:
    parts = [
        [row["part"], row["name"], str(row["num"]), percent(row["pass_at_1"]),
         percent(row["compile_rate"])]
        for row in facts.parts
    ]  # fmt: skip
    reasons = [
        [row["purpose"], row["status"], row["reason"], f"{row['num_turns']:,}", row["example"]]
        for row in facts.reasons
    ]
    return {
        "parts": (["by", "name", "first turns", "pass@1", "compiles"], parts),
        "reasons": (["in", "status", "reason", "turns", "example"], reasons),
    }


def _gains(facts: Facts) -> Table:
    rows = [
        [", ".join(gain.by), gain.before, gain.after, gain.points(),
         "yes" if gain.is_clear else "no", f"{gain.estimate.num_problems}"]
        for gain in facts.gains
    ]  # fmt: skip
    return ["by", "from", "to", "gain in pass@1", "clear of zero", "problems"], rows


def _digits(value: float | None, places: int, unit: str = "") -> str:
    return NONE if value is None else f"{value:,.{places}f}{unit}"


def _times(facts: Facts) -> dict[str, Table]:
    names = list(STEP_PARTS.values())
    idle = [
        [stage_name(facts.stages, row["stage"]), row["role"], percent(row["idle_share"]),
         f"{rounded_clock(row['step_s'])} of steps"]
        for row in facts.spent.idle
    ]  # fmt: skip
    stages = [
        [str(row["message"]).partition(":")[0], rounded_clock(row["seconds"])]
        for row in facts.spent.stages
    ]
    phases = [
        [row["phase"], f"{row['total_s']:,.1f}", f"{row['num_turns']:,}", f"{row['mean_s']:.4f}",
         f"{row['max_s']:.3f}"]
        for row in facts.spent.phases
    ]  # fmt: skip
    slowest = [
        [stage_name(facts.stages, row["stage"]), str(row["step"]),
         *(_digits(row[name], 2) for name in names)]
        for row in facts.spent.slowest()
    ]  # fmt: skip
    return {
        "idle": (["stage", "role", "idle", "of"], idle),
        "stages": (["stage", "time"], stages),
        "phases": (["phase", "seconds", "turns", "mean s", "longest s"], phases),
        "slowest": (["stage", "step", *names], slowest),
    }


def _history(facts: Facts) -> dict[str, Table]:
    attempts = [
        [str(row["attempt"]), when(row["started_at"]), when(row["ended_at"]),
         NONE if row["exit_code"] is None else str(row["exit_code"]), row["reason"] or NONE]
        for row in facts.attempts
    ]  # fmt: skip
    events = [
        [when(row["at"]), str(row["attempt"] or NONE), row["kind"], row["message"]]
        for row in facts.events
    ]
    if len(events) == MOST_EVENTS:
        events.insert(
            0, ["…", "", "", f"earlier ones are in the store; these are the last {MOST_EVENTS}"]
        )
    processes = [
        [str(row["attempt"]), row["name"], row["devices"] or NONE, row["started"] or NONE,
         rounded_clock(row["lived_s"]), row["reason"]]
        for row in facts.processes
    ]  # fmt: skip
    head = ["attempt", "name", "devices", "started (UTC)", "lived", "ended"]
    return {
        "attempts": (["attempt", "started (UTC)", "ended", "exit", "reason"], attempts),
        "events": (["time (UTC)", "attempt", "kind", "what"], events),
        "processes": (head, processes),
        "nodes": _nodes(facts),
        "machine": _machine_table(facts),
    }


def _nodes(facts: Facts) -> Table:
    """Nodes of `[cluster]`."""
    head = ["attempt", "node", "roles", "GPUs", "joined (UTC)", "left", "lost", "state"]
    rows = [
        [str(row["attempt"]), row["node"], row["roles"], str(row["num_gpus"]),
         when(row["joined_at"]), when(row["left_at"]), str(row["num_lost"]),
         row["state"] if row["state"] == "up" else f"{row['state']}: {row['reason']}"]
        for row in facts.nodes
    ]  # fmt: skip
    return (head, rows) if rows else ([], [])


def _machine_table(facts: Facts) -> Table:
    """Machine of the last attempt: the run may have been resumed elsewhere."""
    if not facts.attempts:
        return [], []
    last = facts.attempts[-1]
    machine, versions = unpack(last["machine"]), unpack(last["versions"])
    gpus = machine.get("gpus") or []
    rows = [
        ["commit", last["code_commit"] or "outside a checkout"],
        ["seed", str(last["seed"])],
        *([key, _value(value)] for key, value in machine.items() if key != "gpus"),
        ["GPUs", "; ".join(_value(gpu) for gpu in gpus) or "none"],
        ["versions", ", ".join(f"{name} {version}" for name, version in versions.items())],
    ]
    return ["", "last attempt"], rows


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


NUM_REASONS = 3
"""Reasons of failure that are named."""
VERBS = {"done": "trained", "running": "is training"}
"""State of a run to the verb; any other run ended early."""


def opening(facts: Facts) -> list[str]:
    """The sentences, in order."""
    found = [
        _trained(facts), _from_where_to_where(facts), _gained(facts), _best_kernel(facts),
        _failed(facts), _cost(facts),
    ]  # fmt: skip
    return [each for each in found if each]


def _trained(facts: Facts) -> str:
    """`This run trained … in 1,600 steps of SFT and 20 steps of GRPO on 60 problems.`"""
    steps = [
        f"{num:,} {'step' if num == 1 else 'steps'} of {kind.upper()}"
        for kind, num in facts.trained_steps
    ]
    model = model_words(facts.settings)
    if not steps:
        if not model:
            return ""
        if facts.evaluations:
            return f"This run evaluated {model}."
        return f"This run of {model} has trained and evaluated nothing."
    verb = VERBS.get(facts.state, "trained, before it ended early,")
    return f"This run {verb} {model or 'a model'} in {_listed(steps)}{problem_words(facts)}."


def _from_where_to_where(facts: Facts) -> str:
    chosen = whole_evaluations(facts.evaluations)
    if not chosen:
        return ""
    first, last = chosen[0], chosen[-1]
    on = "held-out problems" if not trained_label(last) else f"problems ({trained_label(last)})"
    end = f"{percent(last['pass_at_1'])} in {last['stage']} ({_interval(last)}; {_of(last)})"
    if len(chosen) == 1:
        return f"pass@1 on {on} was {end}."
    same = _of(first) == _of(last)
    begin = f"{percent(first['pass_at_1'])} in {first['stage']}{'' if same else f' ({_of(first)})'}"
    return f"pass@1 on {on} went from {begin} to {end}."


def _gained(facts: Facts) -> str:
    """The paired gain of each training stage."""
    parts = [f"{_listed(list(gain.by))} {_verb(gain)} {gain.points()}" for gain in facts.gains]
    return f"Paired by problem, {_listed(parts)}." if parts else ""


def _verb(gain: Gain) -> str:
    if not gain.is_clear:
        return "shows no clear gain:"
    return "gained" if gain.estimate.value > 0 else "made it worse:"


def _best_kernel(facts: Facts) -> str:
    if not facts.num_turns:
        return ""
    best = next((row for row in facts.kernels if row["speedup_low"] is not None), None)
    if best is not None:
        times = f"{best['candidate_us']:,.1f} µs against {best['baseline_us']:,.1f} µs"
        return (
            f"The best kernel, for {best['problem_id']}, is at least {best['speedup_low']:.2f} "
            f"times as fast as the baseline ({times})."
        )
    if not facts.kernels:
        return "No kernel was correct."
    solved = next((row for row in facts.problems if row["purpose"] == "train"), None)
    untimed = "nothing was timed, as on a machine without a GPU"
    if solved is None:
        return f"Kernels are ranked by launches and length: {untimed}."
    of = f"{solved['num_solved']:,} of {solved['num_problems']:,} training problems"
    return f"{of} were solved at least once; {untimed}."


def _failed(facts: Facts) -> str:
    total = sum(row["num_turns"] for row in facts.reasons)
    if not total:
        return ""
    counts: dict[str, int] = {}
    for row in facts.reasons:
        name = f"{row['status']} ({row['reason']})"
        counts[name] = counts.get(name, 0) + row["num_turns"]
    worst = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:NUM_REASONS]
    parts = [f"{name} {share(num / total)}" for name, num in worst]
    return f"Of {total:,} failed turns, most were {_listed(parts)}."


def _cost(facts: Facts) -> str:
    seconds = facts.seconds
    if seconds is None:
        return ""
    cards = gpu_names(facts)
    spent = f"It took {clock(seconds)}"
    if cards:
        spent += f" on {_listed(cards)}"
    else:
        spent += " without a GPU"
    attempts = f", in {len(facts.attempts)} attempts" if len(facts.attempts) > 1 else ""
    played = f": {facts.num_rollouts:,} rollouts, {facts.num_turns:,} turns judged"
    return f"{spent}{attempts}{played if facts.num_turns else ''}."


def _interval(row: Mapping[str, Any]) -> str:
    return f"95 %: {percent(row['ci_low'])} to {percent(row['ci_high'])}"


def _of(row: Mapping[str, Any]) -> str:
    samples = "sample" if row["num_samples"] == 1 else "samples"
    return f"{row['num_problems']} problems × {row['num_samples']} {samples}"


def _listed(parts: list[str]) -> str:
    """`a, b and c`."""
    return " and ".join([*[", ".join(parts[:-1])] * (len(parts) > 1), *parts[-1:]])


LONGEST_COMMIT = 12
MAIN_VERSIONS = ("forge", "python", "torch", "triton", "trl", "vllm", "llama-cpp-python")


def unpack(text: str) -> dict[str, Any]:
    """A JSON object from a column; empty if it is none."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def model_words(settings: Mapping[str, Any]) -> str:
    """`Qwen/Qwen3-0.6B with an adapter`, or `a random model of 2 layers`; empty if unknown."""
    model = _table(settings, "model")
    if path := model.get("path"):
        words = str(path)
    elif model.get("init") == "tiny":
        layers = _table(model, "tiny").get("num_layers", "?")
        words = f"a random model of {layers} layers"
    else:
        return "a served model" if model else ""
    return f"{words} with an adapter" if _table(model, "lora") else words


def problem_words(facts: Facts) -> str:
    """` on 60 generated problems`: those that were played in training."""
    row = next((row for row in facts.problems if row["purpose"] == "train"), None)
    if row is None:
        return ""
    kind = "generated " if _table(facts.settings, "problems").get("source") == "generated" else ""
    return f" on {row['num_problems']:,} {kind}problems"


def gpu_names(facts: Facts) -> list[str]:
    """`2 × NVIDIA H100` of the last attempt, without GPUs empty."""
    gpus = _machine(facts).get("gpus")
    names = Counter(
        str(gpu.get("name", "GPU")) if isinstance(gpu, dict) else str(gpu)
        for gpu in (gpus if isinstance(gpus, list) else [])
    )
    return [f"{num} × {name}" for name, num in names.items()]


def setup_rows(facts: Facts) -> list[list[str]]:
    """Rows of (name, value), without empty ones."""
    settings = facts.settings
    last = facts.attempts[-1] if facts.attempts else {}
    stages = " → ".join(_stage(stage) for stage in facts.stages)
    rows = [
        ("model", model_words(settings)),
        ("stages", stages),
        ("problems", _pairs(_table(settings, "problems"), "source", "path", "num_problems",
                            "num_heldout", "sizes", "families", "dtypes")),
        ("rollouts", _pairs(_table(settings, "rollout"), "group_size", "groups_per_step",
                            "max_turns", "gamma", "temperature", "max_completion_tokens")),
        ("reward", _pairs(_table(settings, "reward"), "compiled", "correct", "speedup",
                          "speedup_cap")),
        ("judge", _pairs(_table(settings, "judge"), "policy", "protocol", "num_inputs", "compile",
                         "baseline")),
        ("engine", _pairs(_table(settings, "serve"), "engine", "replicas", "precision")),
        ("machine", _machine_words(facts)),
        ("code", _code_words(last, facts)),
        ("versions", _versions(last)),
    ]  # fmt: skip
    return [[name, value] for name, value in rows if value]


def _stage(stage: Mapping[str, Any]) -> str:
    """`sft (1,600 steps, learning rate 0.003)`."""
    inside = [f"{stage[name]:,} {name}" for name in ("steps", "epochs") if _is_number(stage, name)]
    if _is_number(stage, "learning_rate"):
        inside.append(f"learning rate {grouped(float(stage['learning_rate']))}")
    kind = str(stage.get("kind", "?"))
    return f"{kind} ({', '.join(inside)})" if inside else kind


def _is_number(table: Mapping[str, Any], name: str) -> bool:
    return isinstance(table.get(name), int | float) and bool(table[name])


def _pairs(table: Mapping[str, Any], *names: str) -> str:
    """`group_size 8, max_turns 3`, in this order, without absent keys."""
    found = [(name, table[name]) for name in names if table.get(name) not in (None, [], "")]
    return ", ".join(f"{name} {_shown(value)}" for name, value in found)


def _shown(value: Any) -> str:
    return "/".join(map(str, value)) if isinstance(value, list) else str(value)


def _machine_words(facts: Facts) -> str:
    machine = _machine(facts)
    memory = machine.get("memory_bytes")
    parts = [
        str(machine.get("host", "")),
        f"{machine['cores']} cores" if machine.get("cores") else "",
        gigabytes(memory) if isinstance(memory, int | float) else "",
        ", ".join(gpu_names(facts)) or ("no GPU" if machine else ""),
    ]
    return ", ".join(part for part in parts if part)


def _code_words(last: Mapping[str, Any], facts: Facts) -> str:
    if not last:
        return ""
    commit = str(last["code_commit"] or "")[:LONGEST_COMMIT] or "outside a checkout"
    changed = ", changed" if facts.diff else ""
    return f"commit {commit}{changed}; seed {last['seed']}"


def _versions(last: Mapping[str, Any]) -> str:
    versions = unpack(last["versions"]) if last else {}
    return ", ".join(f"{name} {versions[name]}" for name in MAIN_VERSIONS if name in versions)


def _machine(facts: Facts) -> dict[str, Any]:
    return unpack(facts.attempts[-1]["machine"]) if facts.attempts else {}


def _table(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = settings.get(name)
    return found if isinstance(found, dict) else {}


CODES_PER_FAMILY = 2
"""Kernels of a family whose source is shown."""
MOST_CODES = 16
NO_FAMILY = "other problems"

TRAITS = {
    "tl.dot": re.compile(r"\btl\.dot\("),
    "autotuned": re.compile(r"@triton\.autotune"),
    "loops": re.compile(r"^\s+(?:for|while)\b", re.MULTILINE),
    "atomics": re.compile(r"\btl\.atomic_"),
    "descriptors": re.compile(r"\btl\.(?:make_tensor_descriptor|make_block_ptr)\("),
    "num_warps": re.compile(r"\bnum_warps\s*="),
    "row blocks": re.compile(r"next_power_of_2\("),
    "no mask": re.compile(r"\A(?!.*\bmask\s*=).*\btl\.load\(", re.DOTALL),
}
"""Feature of a kernel to a pattern of its source."""


def kernels_by_family(kernels: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Families in the order of their best kernel: name, note, head and rows of a table, and the
    kernels whose source is shown.
    """
    families: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in kernels:
        families[row["family"] or NO_FAMILY].append(row)
    num_codes = 0
    found: list[dict[str, Any]] = []
    for name, rows in families.items():
        codes = [row for row in rows if row["code"]][:CODES_PER_FAMILY][: MOST_CODES - num_codes]
        num_codes += len(codes)
        head, cells, shared = _told_apart(rows, name)
        num = "1 kernel" if len(rows) == 1 else f"{len(rows)} kernels"
        note = ", ".join([num, *shared])
        found.append({"name": name, "note": note, "head": head, "rows": cells, "codes": codes})
    return found


def short_problem(problem_id: str, family: str) -> str:
    """`sum-hardtanh-sin` of `reduction-sum-hardtanh-sin` in the family reduction."""
    return problem_id.removeprefix(f"{family}-") if family else problem_id


def traits_of(code: str | None) -> str:
    """`loops, tl.dot`, a dash for none of them."""
    found = [name for name, pattern in TRAITS.items() if pattern.search(code or "")]
    return ", ".join(found) or NONE


def _told_apart(
    rows: Sequence[Mapping[str, Any]], family: str
) -> tuple[list[str], list[list[str]], list[str]]:
    """Head, rows, and the values that all rows share; columns of dashes are left out."""
    columns = {
        "problem": [short_problem(row["problem_id"], family) for row in rows],
        "at least": [_digits(row["speedup_low"], 2, "×") for row in rows],
        "speed-up": [_digits(row["speedup"], 2, "×") for row in rows],
        "µs": [_digits(row["candidate_us"], 1) for row in rows],
        "baseline µs": [_digits(row["baseline_us"], 1) for row in rows],
        "level": [str(row["level"]) for row in rows],
        "launches": [str(row["num_launches"]) for row in rows],
        "uses": [traits_of(row["code"]) for row in rows],
        "lines": [_num_lines(row["code"]) for row in rows],
        "policy": [str(row["policy_version"]) for row in rows],
        "turn": [row["turn_id"] for row in rows],
    }
    is_one = len(rows) == 1
    same = {name for name, cells in columns.items() if len(set(cells)) == 1 and not is_one}
    shared = [
        launches(int(cells[0])) if name == "launches" else f"{name} {cells[0]}"
        for name, cells in columns.items()
        if name in same and cells[0] != NONE
    ]
    kept = [n for n, cells in columns.items() if n not in same and set(cells) != {NONE}]
    return kept, [[columns[name][i] for name in kept] for i in range(len(rows))], shared


def _num_lines(code: str | None) -> str:
    return str(len(code.splitlines())) if code else NONE
