"""Words and tables of a report: headline, cards with key numbers, set-up, tables.

Pure; `page` renders and escapes them. Values come from the resolved experiment and the rows of the
run, which one made by hand may lack or break: a missing value is left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forge.views.report.facts import MOST_EVENTS, MOST_KERNELS, when
from forge.views.report.run_charts import STEP_PARTS
from forge.views.report.samples import MOST_SHOWN, PageLink
from forge.views.run_state import (
    judged_label,
    judged_share,
    parts_label,
    stage_name,
    trained_label,
    trained_share,
    unjudgeable_reasons,
)
from forge.views.text.numbers import (
    NONE,
    clock,
    grouped,
    percent,
    without_empty,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.views.report.facts import Facts

Table = tuple[Sequence[str], Sequence[Sequence[str | Sequence[str]]]]
"""Head and rows. A cell is a text, a link (`samples.PageLink`) or several of these."""
SETTINGS = {
    "problems": "source path num_problems num_heldout sizes dtypes",
    "rollout": "group_size groups_per_step max_turns gamma temperature max_completion_tokens",
    "reward": "compiled correct speedup speedup_cap",
    "judge": "policy protocol num_inputs compile baseline",
    "serve": "engine replicas precision",
}
"""Table of the experiment to its keys in the set-up; the whole experiment is at the end."""
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
        "kernels_about": f", at most {MOST_KERNELS} of them"
        if len(facts.kernels) == MOST_KERNELS
        else "",
    }


def describe_samples(facts: Facts) -> dict[str, Any]:
    """The rollouts: sets with their tables, those that are shown whole, and their prompts."""
    samples = facts.samples
    return {
        "about": f"{len(samples.shown):,} of {facts.num_rollouts:,} rollouts are shown whole: of "
        f"each set one for each problem and last verdict, at most {MOST_SHOWN}, and those that "
        'this report names. The others: "forge rollouts RUN --id g12.r3 --turns".',
        "sets": [
            {
                "anchor": each.anchor,
                "title": f"{each.title}: {len(each.played):,} rollouts",
                "verdicts": samples.verdicts(each),
                "problems": without_empty(*samples.problems(each)),
            }
            for each in samples.sets
        ],
        "rollouts": sorted(samples.shown.values(), key=lambda each: each.place),
        "prompts": {name: text for name, text in samples.prompts.items() if text},
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
        _card(
            "Rollouts",
            PageLink(f"{facts.num_rollouts:,}", "rollouts"),
            f"{facts.num_turns:,} turns judged",
        ),
        _card("Time", clock(facts.seconds), steps) if facts.attempts else None,
    ]


def _pass_card(facts: Facts) -> dict[str, str] | None:
    if not facts.evaluations:
        return None
    first, last = facts.evaluations[0], facts.evaluations[-1]
    about = f"{last['stage']}, 95 %: {percent(last['ci_low'])} to {percent(last['ci_high'])}"
    for label in (parts_label(last), judged_label(last), trained_label(last)):
        about += f"; {label}" if label else ""
    if len(facts.evaluations) > 1:
        about += f"; {percent(first['pass_at_1'])} in {first['stage']}"
    for gain in facts.gains:
        about += f"; {' and '.join(gain.by)} {gain.points()}"
    figure = facts.samples.of_evaluation(percent(last["pass_at_1"]), last)
    return _card("pass@1", figure, about)


def _speed_card(facts: Facts) -> dict[str, str] | None:
    best = next((row for row in facts.kernels if row["speedup"] is not None), None)
    if best is None:
        return None
    about = f"{best['problem_id']}, measured {best['speedup']:.2f}×"
    figure = facts.samples.of_turn(f"≥ {best['speedup_low']:.2f}×", best["turn_id"])
    return _card("Best kernel", figure, about)


def _solved_card(facts: Facts) -> dict[str, str] | None:
    row = next((row for row in facts.problems if row["purpose"] == "train"), None)
    if row is None:
        return None
    num_judged = row["num_problems"] - row["num_unjudgeable"]
    share = percent(row["num_solved"] / num_judged) if num_judged else NONE
    about = f"{share}, at least once"
    if row["num_unjudgeable"]:
        about += f"; {row['num_unjudgeable']:,} more unjudgeable"
    figure = facts.samples.of_training(f"{row['num_solved']:,} of {num_judged:,}")
    return _card("Training problems solved", figure, about)


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
        "protocols": _protocols(facts),
        "kernels": _kernels(facts),
        **_outcomes(facts),
        **_times(facts),
        **_history(facts),
    }
    return {name: without_empty(*table) if table[1] else None for name, table in every.items()}


def _evaluations(facts: Facts) -> Table:
    head = ["evaluation", "step", "policy", "problems × samples", "pass@1", "by source and level"]
    head += ["95 %", "greedy", "any turn", "compiles", "judged", "unjudgeable", "trained on"]
    link = facts.samples.of_evaluation
    return head, [
        [
            row["stage"],
            str(row["step"]),
            str(row["policy_version"]),
            f"{row['num_problems']} × {row['num_samples']}",
            link(percent(row["pass_at_1"]), row),
            parts_label(row) or NONE,
            f"{percent(row['ci_low'])} to {percent(row['ci_high'])}",
            link(percent(row["pass_at_1_greedy"]), row),
            link(percent(row["pass_at_1_multi"]), row),
            link(percent(row["compile_rate"]), row),
            judged_share(row) or NONE,
            unjudgeable_reasons(row) or NONE,
            trained_share(row) or NONE,
        ]
        for row in facts.evaluations
    ]


def _protocols(facts: Facts) -> Table:
    """Evaluations by the protocol that counts and by further ones, if there are any."""
    rows = [
        [row["stage"], str(row["step"]), f"{each['protocol']}, {each['policy']}",
         "yes" if each["counts"] else "no", percent(each["pass_at_1"]), percent(each["own_share"])]
        for row in facts.evaluations
        for each in facts.protocols.get((row["stage_index"], row["step"]), ())
    ]  # fmt: skip
    head = ["evaluation", "step", "protocol, policy", "counts", "pass@1", "own share of correct"]
    return head, rows


def _outcomes(facts: Facts) -> dict[str, Table]:
    parts = [
        [row["part"], row["name"], str(row["num"]),
         facts.samples.of_evaluation(percent(row["pass_at_1"]), facts.evaluations[-1]),
         percent(row["compile_rate"])]
        for row in facts.parts
    ]  # fmt: skip
    reasons = [
        [row["purpose"], row["status"], row["reason"],
         facts.samples.of_turn(f"{row['num_turns']:,}", row["example"]),
         [facts.samples.of_turn(each, each)
          for each in dict.fromkeys([row["example"], row["another"]])]]
        for row in facts.reasons
    ]  # fmt: skip
    return {
        "parts": (["by", "name", "first turns", "pass@1", "compiles"], parts),
        "reasons": (["in", "status", "reason", "turns", "examples"], reasons),
    }


def _gains(facts: Facts) -> Table:
    rows = [
        [", ".join(gain.by), gain.before, gain.after, gain.points(),
         "yes" if gain.is_clear else "no", f"{gain.estimate.num_problems}"]
        for gain in facts.gains
    ]  # fmt: skip
    return ["by", "from", "to", "gain in pass@1", "clear of zero", "problems"], rows


def _kernels(facts: Facts) -> Table:
    """The best kernel of each problem, best first."""
    head = ["problem", "family", "level", "at least", "speed-up", "µs", "baseline µs", "launches"]
    rows = [
        [row["problem_id"], row["family"] or NONE, str(row["level"]),
         facts.samples.of_turn(_digits(row["speedup_low"], 2, "×"), row["turn_id"]),
         _digits(row["speedup"], 2, "×"),
         _digits(row["candidate_us"], 1), _digits(row["baseline_us"], 1),
         str(row["num_launches"]), str(row["policy_version"]),
         facts.samples.of_turn(row["turn_id"], row["turn_id"])]
        for row in facts.kernels
    ]  # fmt: skip
    return [*head, "policy", "turn"], rows


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
    machine, versions = _unpack(last["machine"]), _unpack(last["versions"])
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


def setup_rows(facts: Facts) -> list[list[str]]:
    """Rows of (name, value), without empty ones."""
    rows = [
        ("model", _model(facts.settings)),
        ("stages", " → ".join(_stage(stage) for stage in facts.stages)),
        *(
            (name, _pairs(_table(facts.settings, name), keys.split()))
            for name, keys in SETTINGS.items()
        ),
    ]
    return [[name, value] for name, value in rows if value]


def _model(settings: Mapping[str, Any]) -> str:
    """`Qwen/Qwen3-0.6B with an adapter`, or `a random model of 2 layers`; empty if unknown."""
    model = _table(settings, "model")
    if path := model.get("path"):
        words = str(path)
    elif model.get("init") == "tiny":
        words = f"a random model of {_table(model, 'tiny').get('num_layers', '?')} layers"
    else:
        return "a served model" if model else ""
    return f"{words} with an adapter" if _table(model, "lora") else words


def _stage(stage: Mapping[str, Any]) -> str:
    """`sft (1,600 steps, learning rate 0.003)`."""
    inside = [f"{stage[name]:,} {name}" for name in ("steps", "epochs") if _is_number(stage, name)]
    if _is_number(stage, "learning_rate"):
        inside.append(f"learning rate {grouped(float(stage['learning_rate']))}")
    kind = str(stage.get("kind", "?"))
    return f"{kind} ({', '.join(inside)})" if inside else kind


def _is_number(table: Mapping[str, Any], name: str) -> bool:
    return isinstance(table.get(name), int | float) and bool(table[name])


def _pairs(table: Mapping[str, Any], names: Sequence[str]) -> str:
    """`group_size 8, max_turns 3`, in this order, without absent keys."""
    found = [(name, table[name]) for name in names if table.get(name) not in (None, [], "")]
    return ", ".join(f"{name} {_shown(value)}" for name, value in found)


def _shown(value: Any) -> str:
    return "/".join(map(str, value)) if isinstance(value, list) else str(value)


def _table(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = settings.get(name)
    return found if isinstance(found, dict) else {}


def _unpack(text: str) -> dict[str, Any]:
    """A JSON object from a column; empty if it is none."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
