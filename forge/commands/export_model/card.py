"""Lineage of an exported model, and its model card."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from forge.config.load import load_experiment
from forge.config.schema import EvalStage
from forge.store.identity import read_identity
from forge.store.reader import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from forge.config.schema import Experiment
    from forge.serve.weights import Weights
    from forge.store.layout import RunPaths

EVALUATIONS = """
SELECT stage, step, policy_version, num_problems, num_samples, max_turns, pass_at_1, ci_low,
    ci_high, pass_at_1_greedy, pass_at_1_multi, compile_rate
FROM evaluations WHERE policy_version <= ? ORDER BY evaluation_id
"""
POLICY = "SELECT stage, step, sha256 FROM policies WHERE version = ?"
RUN = """
SELECT name, created_at, forge_version, code_commit, code_diff != '' AS is_changed
FROM runs, attempts ORDER BY attempt DESC LIMIT 1
"""


def lineage_of(
    paths: RunPaths, weights: Weights, *, kind: str, verified: Mapping[str, Any]
) -> dict[str, Any]:
    """Origin of exported weights, for lineage.json."""
    experiment = load_experiment(paths.experiment, is_here=False)
    with open_run(paths) as reader:
        (run,) = reader.rows(RUN)
        policy = next(iter(reader.rows(POLICY, (weights.version,))), None)
        evaluations = reader.rows(EVALUATIONS, (weights.version,))
    identity = read_identity(paths)
    return {
        "kind": kind,
        "base_model": experiment.model.path or "a random model made by the run",
        "base_revision": experiment.model.revision,
        "run": run["name"],
        "run_id": identity.id if identity else None,
        "created": _day(run["created_at"]),
        "forge_version": run["forge_version"],
        "commit": run["code_commit"],
        "has_uncommitted_changes": bool(run["is_changed"]),
        "policy_version": weights.version,
        "weights_sha256": policy["sha256"] if policy else None,
        "stage": policy["stage"] if policy else None,
        "step": policy["step"] if policy else None,
        "stages": list(_stages(experiment, last=policy["stage"] if policy else -1)),
        "lora": experiment.model.lora and experiment.model.lora.model_dump(mode="json"),
        "quantized_base_in_training": experiment.model.quantize is not None,
        "evaluations": evaluations,
        "verified": dict(verified),
    }


def render_card(lineage: Mapping[str, Any], *, name: str) -> str:
    """The model card, README.md."""
    return "\n".join([*_header(lineage), f"# {name}", "", *_origin(lineage), *_figures(lineage),
                      *_notes(lineage)]) + "\n"  # fmt: skip


def _header(lineage: Mapping[str, Any]) -> Iterator[str]:
    """Metadata that the hub reads."""
    yield "---"
    if "/" in lineage["base_model"] and not lineage["base_model"].startswith((".", "/", "~")):
        yield f"base_model: {lineage['base_model']}"
    yield "library_name: " + ("peft" if lineage["kind"] == "adapter" else "transformers")
    yield "tags: [triton, forge]"
    yield "---"


def _origin(lineage: Mapping[str, Any]) -> Iterator[str]:
    forms = {"merge": "whole weights", "adapter": "a PEFT adapter", "gguf": "a GGUF file"}
    changed = " with uncommitted changes" if lineage["has_uncommitted_changes"] else ""
    yield f"This is {forms[lineage['kind']]} of a run of forge, which trains models to write Triton"
    yield "kernels."
    yield ""
    yield f"- Base model: `{lineage['base_model']}`"
    yield f"- Run: `{lineage['run']}`, id `{lineage['run_id'] or 'unknown'}`, {lineage['created']}"
    yield f"- Policy version {lineage['policy_version']}, step {lineage['step'] or 0} of its stage"
    commit = lineage["commit"] or "unknown"
    yield f"- forge {lineage['forge_version']}, commit `{commit}`{changed}"
    for each in lineage["stages"]:
        rate = f"learning rate {each['learning_rate']:g}"
        yield f"- Stage {each['index']}: {each['kind']}, {each['length']}, {rate}"
    yield ""


def _figures(lineage: Mapping[str, Any]) -> Iterator[str]:
    yield "## Evaluation"
    yield ""
    if not lineage["evaluations"]:
        yield "The run has not evaluated these weights or earlier ones."
        yield ""
        return
    yield "| stage | step | problems × samples | pass@1 | 95 % | with feedback | compiles |"
    yield "|---|---|---|---|---|---|---|"
    for row in lineage["evaluations"]:
        size = f"{row['num_problems']} × {row['num_samples']}"
        interval = f"{_percent(row['ci_low'])} to {_percent(row['ci_high'])}"
        rates = (row["pass_at_1"], row["pass_at_1_multi"], row["compile_rate"])
        first, multi, compiles = map(_percent, rates)
        yield (
            f"| {row['stage']} | {row['step']} | {size} | {first} | {interval} | {multi} "
            f"| {compiles} |"
        )
    own = lineage["evaluations"][-1]["policy_version"] == lineage["policy_version"]
    yield ""
    yield "The last row is of these weights." if own else "All rows are of earlier weights."
    yield ""


def _notes(lineage: Mapping[str, Any]) -> Iterator[str]:
    yield "## Notes"
    yield ""
    if lineage["kind"] == "gguf":
        yield "- The GGUF file holds no vocabulary: tokenise with tokenizer.json."
    if lineage["quantized_base_in_training"]:
        yield "- Trained on a base in 4 bits; these weights belong to the base in full precision."
    yield f"- Verified by generating {lineage['verified']['num_tokens']} tokens with them."
    yield "- Licence: that of the base model and of the training data applies; check both before"
    yield "  you share these weights."
    yield "- lineage.json has these facts for programs."


def _stages(experiment: Experiment, *, last: int) -> Iterator[dict[str, Any]]:
    """Training stages up to the one that made the weights."""
    for index, stage in enumerate(experiment.stage[: last + 1]):
        if isinstance(stage, EvalStage):
            continue
        epochs = getattr(stage, "epochs", None)
        length = f"{stage.steps} steps" if epochs is None else f"{epochs:g} epochs"
        rate = stage.learning_rate
        yield {"index": index, "kind": stage.kind, "length": length, "learning_rate": rate}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()
