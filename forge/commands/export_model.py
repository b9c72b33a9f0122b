"""`forge export model RUN`: a run's weights, merged, as an adapter, or as a GGUF file.

    weights of the run ── child ──▶ out: weights, verified by generating with them
                                    out/lineage.json, out/README.md ──▶ hub, with --push

The directory appears when it is complete and verified. Weights of quantized training are merged
into the base in full precision. Child processes merge, convert and verify: nothing here imports
torch.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from forge.config.load import load_experiment
from forge.config.schema import Experiment, TrainStage
from forge.data.chat import ChatTemplate
from forge.errors import ConfigError, MachineError, unwritable
from forge.runner.prepare.hub import PROMPT, export_job, run_child
from forge.runner.weights.model_dir import read_config
from forge.runner.weights.resume import find_weights
from forge.serve.architectures import no_llama
from forge.serve.engines import ENGINES
from forge.serve.weights import Weights
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.views.run_state import words_of
from forge.views.text import percent

EVALUATIONS = """
SELECT stage, step, policy_version, num_problems, num_samples, max_turns, pass_at_1, ci_low,
    ci_high, pass_at_1_greedy, pass_at_1_multi, compile_rate, num_trained_problems,
    num_shared_problems, num_judged_problems, unjudgeable, by_source, by_level
FROM v_evaluations WHERE policy_version <= ?
"""
POLICY = "SELECT stage, step, sha256 FROM policies WHERE version = ?"
RUN = """
SELECT name, created_at, forge_version, code_commit, code_diff != '' AS is_changed
FROM runs, attempts ORDER BY attempt DESC LIMIT 1
"""


class ModelForm(StrEnum):
    MERGE = "merge"
    ADAPTER = "adapter"
    GGUF = "gguf"


def export_model(
    paths: RunPaths, *, kind: ModelForm | None, out: Path | None, step: str, push_to: str
) -> dict[str, Any]:
    """Export and verify weights, and push them if asked to; returns what `--json` prints. Raises
    ConfigError: `out` exists, the run has no such weights or no adapter, or the llama engine does
    not support the architecture; MachineError: a package or the hub cannot be used, or the weights
    generate nothing."""
    weights = find_weights(paths, step)
    kind = kind or (ModelForm.MERGE if weights.adapter is None else ModelForm.ADAPTER)
    out = (out or Path(f"{paths.name}-{kind}")).absolute()
    if out.exists():
        raise ConfigError(f"--out {out}: it is there already; another directory")
    _require(paths, kind, weights)
    if push_to:
        check_hub(push_to)
    with _complete(out) as partial:
        verified = _write(paths, kind, weights, partial)
        lineage = lineage_of(paths, weights, kind=kind, verified=verified)
        (partial / "lineage.json").write_text(json.dumps(lineage, indent=2) + "\n")
        (partial / "README.md").write_text(render_card(lineage, name=push_to or out.name))
    url = push(out, push_to) if push_to else ""
    num_bytes = sum(each.stat().st_size for each in out.rglob("*") if each.is_file())
    found = {"path": str(out), "bytes": num_bytes, "answer": verified["answer"]}
    more = {"url": url, "note": verified.get("note", "")}
    return found | {key: value for key, value in more.items() if value}


@contextmanager
def _complete(out: Path) -> Generator[Path]:
    """A directory to fill, which gets its name when the block ends without an error."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent)
    except OSError as error:
        raise unwritable(f"--out {out}", error) from error
    with folder as name:
        partial = Path(name, out.name)
        partial.mkdir()
        yield partial
        partial.rename(out)


def _require(paths: RunPaths, kind: ModelForm, weights: Weights) -> None:
    if kind is ModelForm.ADAPTER and weights.adapter is None:
        raise ConfigError(f"{paths.name}: it trained all weights and has no adapter; --merge")
    if kind is ModelForm.GGUF:
        for name in ("llama_cpp", "gguf"):
            if importlib.util.find_spec(name) is None:
                advice = ENGINES["llama"].advice
                raise MachineError(f"--gguf needs {name}, which is not installed; {advice}")
        if refused := no_llama(read_config(weights.full)["model_type"]):
            raise ConfigError(f"--gguf: {refused}; --merge")


def _write(paths: RunPaths, kind: ModelForm, weights: Weights, out: Path) -> dict[str, Any]:
    """Write the weights; returns the facts of their verification."""
    experiment = load_experiment(paths.experiment, is_here=False)
    chat = ChatTemplate.load(weights.full, chat_template=experiment.model.chat_template)
    job = export_job(weights, experiment.model)
    merged = out / ".merged" if kind is ModelForm.GGUF else out
    form = "adapter" if kind is ModelForm.ADAPTER else "merge"
    module = "forge.train.trainer.publish.export"
    found = anyio.run(run_child, module, {**job, "kind": form, "out_dir": str(merged)})
    if kind is ModelForm.GGUF:
        job = {
            **{key: job[key] for key in ("prompt_ids", "stop_ids", "num_tokens")},
            "model_dir": str(merged),
            "path": str(out / f"{paths.name}.gguf"),
            "name": paths.name,
            "template": chat.template.source,
            "question": PROMPT,
        }
        found = anyio.run(run_child, "forge.serve.llama.export", job)
        # Beside the file, for programs that tokenise themselves.
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            if (merged / name).is_file():
                (merged / name).rename(out / name)
        shutil.rmtree(merged)
    if not found["ids"]:
        raise MachineError(f"{paths.name}: the exported weights generate nothing")
    answer = chat.decode(found.pop("ids"), skip_special=False)
    return {**found, "prompt": PROMPT, "answer": answer}


def check_hub(name: str) -> None:
    """Raise MachineError if the hub cannot be reached or no account is logged in. Call it before
    the work that an upload would lose."""
    from huggingface_hub import HfApi

    api: Any = HfApi()
    try:
        api.whoami()
    except Exception as error:  # network, proxy and token errors share no base class
        raise _refused(name, error) from error


def push(folder: Path, name: str) -> str:
    """Upload a directory to a private repository, which is made if needed. Returns its address."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        made = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder)
    except Exception as error:
        raise _refused(name, error, saved=f"; the model is in {folder}") from error
    return str(made)


def _refused(name: str, error: Exception, *, saved: str = "") -> MachineError:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")
    return MachineError(f"--push {name}: the hub cannot be used: {line}{saved}")


def lineage_of(
    paths: RunPaths, weights: Weights, *, kind: str, verified: Mapping[str, Any]
) -> dict[str, Any]:
    experiment = load_experiment(paths.experiment, is_here=False)
    with open_run(paths) as reader:
        (run,) = reader.rows(RUN)
        policy = next(iter(reader.rows(POLICY, (weights.version,))), None)
        evaluations = reader.rows(EVALUATIONS, (weights.version,))
    return {
        "kind": kind,
        "base_model": experiment.model.path or "a random model made by the run",
        "base_revision": experiment.model.revision,
        "run": run["name"],
        "created": datetime.fromtimestamp(run["created_at"], UTC).date().isoformat(),
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
    """The model card, README.md: metadata that the hub reads, the lineage, the evaluations."""
    facts = {key: value for key, value in lineage.items() if key != "evaluations" and value}
    library = "peft" if lineage["kind"] == "adapter" else "transformers"
    base = lineage["base_model"]
    is_on_hub = "/" in base and not base.startswith((".", "/", "~"))
    about = (
        "Weights of a run of forge, which trains models to write Triton kernels. The licence of "
        "the base model and that of the training data apply: check both before you share them."
    )
    lines = [
        "---",
        *([f"base_model: {base}"] if is_on_hub else []),
        f"library_name: {library}",
        "tags: [triton, forge]",
        "---",
        f"# {name}",
        "",
        about,
        "",
        *_table(
            ["fact", "value"],
            [
                [key, value if isinstance(value, str) else json.dumps(value)]
                for key, value in facts.items()
            ],
        ),
        "",
        "## Evaluation",
        "",
        *_figures(lineage),
    ]
    return "\n".join(lines) + "\n"


def _figures(lineage: Mapping[str, Any]) -> Iterator[str]:
    rows = lineage["evaluations"]
    if not rows:
        yield "The run has not evaluated these weights or earlier ones."
        return
    head = ["stage", "step", "problems × samples", "pass@1", "95 %", "with feedback", "compiles"]
    yield from _table([*head, "of"], [
        [row["stage"], row["step"], f"{row['num_problems']} × {row['num_samples']}",
         percent(row["pass_at_1"]), f"{percent(row['ci_low'])} to {percent(row['ci_high'])}",
         percent(row["pass_at_1_multi"]), percent(row["compile_rate"]),
         "; ".join(filter(None, (words["parts"], words["trained"])))]
        for row in rows for words in [words_of(row)]
    ])  # fmt: skip
    own = rows[-1]["policy_version"] == lineage["policy_version"]
    yield ""
    yield "The last row is of these weights." if own else "All rows are of earlier weights."


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(map(str, cells))} |"


def _stages(experiment: Experiment, *, last: int) -> Iterator[dict[str, Any]]:
    """Training stages up to the one that made the weights."""
    for index, stage in enumerate(experiment.stage[: last + 1]):
        if not isinstance(stage, TrainStage):
            continue
        epochs = getattr(stage, "epochs", None)
        length = f"{stage.steps} steps" if epochs is None else f"{epochs:g} epochs"
        rate = stage.learning_rate
        yield {"index": index, "kind": stage.kind, "length": length, "learning_rate": rate}
