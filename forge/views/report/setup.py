"""Set-up of a run: model, stages, problems, judge, machine, code, as words and as a table.

Pure. Values come from the resolved experiment and the last attempt, which a run made by hand may
lack or break: a missing value is left out.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from forge.views.text.numbers import gigabytes, grouped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.views.report.facts import Facts

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


def kinds_of(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Kind of each stage."""
    return [str(stage.get("kind")) for stage in stages]
