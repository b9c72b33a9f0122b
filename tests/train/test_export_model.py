"""Exported models: whole weights, adapters and GGUF files that generate as the run's weights do."""

import importlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from forge.cli import run_command
from forge.commands import export_model as exporting
from forge.config.load import load_experiment
from forge.errors import ChildDied, ConfigError, MachineError
from forge.records import Event, PolicyVersion
from forge.runner.prepare import hub
from forge.runner.prepare.hub import run_child, with_run
from forge.serve.weights import Weights
from forge.store.layout import RunPaths
from tests.store.storefactory import attempt, evaluation, write_run
from tests.train.mixtures import ATTENTION, EXPERTS, make_mixture
from tests.views.terminals import told

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

EXPERIMENT = """
name = "toy"
[model]
path = "org/base"
[problems]
source = "dir"
path = "problems"
[[stage]]
kind = "grpo"
steps = 4
learning_rate = 1e-3
"""


def adapter_on(model_dir: Path, at: Path) -> Path:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    base: Any = AutoModelForCausalLM.from_pretrained(model_dir)
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    get_peft_model(base, lora).save_pretrained(str(at))
    return at


@pytest.fixture(scope="module")
def run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """A run that published an adapter after steps 2 and 4; step 2's is deleted."""
    root = tmp_path_factory.mktemp("runs") / "toy-1"
    start = Weights(full=tiny_model)
    policies = [
        PolicyVersion(
            version=step, attempt=1, stage=0, step=step, path=f"weights/grpo-{step:06d}",
            sha256=f"{step:064d}", publish_s=0.1, probe_gap=0.0,
        )
        for step in (2, 4)
    ]  # fmt: skip
    begun = Event(
        at=1.0, kind="stage_start", message="grpo-0",
        data={"stage": 0, "weights": start.to_json()},
    )  # fmt: skip
    scores = [evaluation(step=0, pass_at_1=0.1), evaluation("grpo-0@4", step=4, pass_at_1=0.6)]
    records = [attempt(1), begun, *policies, *scores]
    anyio.run(lambda: write_run(root, records))
    (root / "experiment.toml").write_text(EXPERIMENT)
    (root / "weights").mkdir()
    adapter_on(tiny_model, root / "weights" / "grpo-000004")
    return RunPaths(root)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the children's work here, which saves their start."""

    async def run_child(module: str, job: dict[str, Any]) -> dict[str, Any]:
        return importlib.import_module(module).export({**job, "threads": 1})

    monkeypatch.setattr(exporting, "run_child", run_child)
    monkeypatch.setattr(hub, "run_child", run_child)


def export(run: RunPaths, kind: str, out: Path, **keys: str) -> SimpleNamespace:
    form = exporting.ModelForm(kind) if kind else None
    options = {"step": "", "push_to": "", **keys}
    found = exporting.export_model(run, kind=form, out=out, **options)
    return SimpleNamespace(**found | {"path": Path(found["path"])})


def logits(model_dir: Path, adapter: Path | None = None) -> Any:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(model_dir)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    with torch.no_grad():
        return model.eval()(torch.arange(5, 40)[None]).logits


def test_merged_weights_and_an_adapter_compute_what_the_run_computed(
    run: RunPaths, tiny_model: Path, tmp_path: Path, in_this_process: None
) -> None:
    import torch

    want = logits(tiny_model, run.weights / "grpo-000004")
    merged, adapter = tmp_path / "merged", tmp_path / "adapter"
    assert export(run, "merge", merged).answer
    assert export(run, "", adapter, step="4").answer, "as trained: an adapter"
    assert torch.allclose(logits(merged), want, atol=1e-4)
    assert torch.allclose(logits(tiny_model, adapter), want, atol=1e-5)
    assert not torch.allclose(logits(tiny_model), want, atol=1e-2)
    assert (merged / "tokenizer.json").is_file()
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "org/base"
    ours = json.loads((run.weights / "grpo-000004" / "adapter_config.json").read_text())
    assert ours["base_model_name_or_path"] == str(tiny_model), "the run's file is unchanged"


def test_a_run_is_the_model_of_the_next_with_its_adapter_merged_once(
    run: RunPaths,
    tiny_model: Path,
    tmp_path: Path,
    in_this_process: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "next.toml").write_text(EXPERIMENT.replace("org/base", str(run.root)))

    def start(*overrides: str, merges: bool = True) -> Path:
        file = tmp_path / "next.toml"
        experiment = load_experiment(file, overrides=overrides, is_here=False)
        return Path(with_run(experiment, merges=merges).model.path or "")

    assert start(merges=False) == tiny_model
    merged = start()
    want = logits(tiny_model, run.weights / "grpo-000004")
    assert torch.allclose(logits(merged), want, atol=1e-4)
    monkeypatch.delattr(hub, "run_child")
    assert start(f"model.path={run.root}:4") == merged, "not merged again"
    with pytest.raises(ConfigError, match=r"toy-1:2: no weights .* there are: 4"):
        start(f"model.path={run.root}:2")


def test_an_export_to_a_full_disk_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait() -> None: ...

    @asynccontextmanager
    async def open_child(spec: object, **_: object) -> AsyncIterator[Any]:
        died = ChildDied("export died: OSError: [Errno 28] No space left on device")
        yield SimpleNamespace(wait=wait, died=lambda doing: died)

    monkeypatch.setattr("forge.train.handle.open_child", open_child)
    with pytest.raises(MachineError, match="out: the disk is full"):
        anyio.run(run_child, "forge.export", {"out_dir": "out"})


def test_an_adapter_on_the_experts_of_a_mixture_is_merged(tiny_model: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from forge.train.trainer.publish.export import export as export_here

    model_dir = make_mixture("afmoe", tmp_path / "model", tokenizer=tiny_model)
    base: Any = AutoModelForCausalLM.from_pretrained(model_dir)
    lora = LoraConfig(
        r=2, target_modules=ATTENTION, target_parameters=EXPERTS, init_lora_weights=False
    )
    get_peft_model(base, lora).save_pretrained(str(tmp_path / "adapter"))
    out = tmp_path / "merged"
    found = export_here(
        {
            "kind": "merge", "model_dir": model_dir, "adapter": tmp_path / "adapter",
            "base_name": None, "out_dir": out, "trust_remote_code": False,
            "prompt_ids": list(range(5, 25)), "stop_ids": [2], "num_tokens": 4,
        }
    )  # fmt: skip
    assert found["logprob_gap"] < 1e-4
    assert (logits(model_dir) - logits(out)).abs().max() > 1e-2


def test_the_card_has_the_origin_and_the_figures_of_the_weights(
    run: RunPaths, tmp_path: Path, in_this_process: None
) -> None:
    out = tmp_path / "out"
    found = export(run, "merge", out)
    lineage = json.loads((out / "lineage.json").read_text())
    assert lineage["base_model"] == "org/base"
    assert (lineage["run"], lineage["commit"]) == ("toy-1", "f369244")
    assert (lineage["policy_version"], lineage["stage"], lineage["step"]) == (4, 0, 4)
    assert lineage["weights_sha256"] == f"{4:064d}"
    assert lineage["stages"] == [
        {"index": 0, "kind": "grpo", "length": "4 steps", "learning_rate": 1e-3}
    ]
    assert [row["pass_at_1"] for row in lineage["evaluations"]] == [0.1, 0.6]
    assert lineage["verified"]["answer"] == found.answer
    assert lineage["verified"]["logprob_gap"] < 1e-4
    card = (out / "README.md").read_text()
    assert "base_model: org/base" in card
    assert "| grpo-0@4 | 4 | 2 × 2 | 60.0 % |" in card
    assert "The last row is of these weights." in card
    assert "licence" in card
    assert "f369244" in card


def test_a_gguf_file_generates_what_the_merged_weights_generate(
    run: RunPaths, tmp_path: Path, in_this_process: None
) -> None:
    pytest.importorskip("llama_cpp")
    merged = export(run, "merge", tmp_path / "merged")
    found = export(run, "gguf", tmp_path / "gguf")
    assert {path.name for path in found.path.iterdir()} == {
        "toy-1.gguf", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
        "lineage.json", "README.md",
    }  # fmt: skip
    assert found.answer == merged.answer
    assert "| kind | gguf |" in (found.path / "README.md").read_text()


def test_an_export_that_cannot_be_made_leaves_nothing(
    run: RunPaths, tiny_model: Path, tmp_path: Path, in_this_process: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with pytest.raises(ConfigError, match=r"toy-1:2: no weights of that step .* there are: 4"):
        export(run, "merge", tmp_path / "out", step="2")
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="it is there already"):
        export(run, "merge", tmp_path / "there")
    whole = Weights(full=tiny_model)
    monkeypatch.setattr(exporting, "find_weights", lambda *_: whole)
    with pytest.raises(ConfigError, match="has no adapter; --merge"):
        export(run, "adapter", tmp_path / "out")
    monkeypatch.setattr(exporting, "read_config", lambda _: {"model_type": "bert"})
    with pytest.raises(ConfigError, match=r"--gguf: model_type is 'bert'; .* llama, "):
        export(run, "gguf", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_weights_that_differ_from_the_runs_are_not_exported(
    run: RunPaths, tiny_model: Path, tmp_path: Path, in_this_process: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from forge.train.trainer.publish import export as child

    def forget(model: Any, out: Path, *, model_dir: Path, dtype: Any) -> None:
        child._copy(model_dir, out)  # the base without its adapter

    monkeypatch.setattr(child, "_save", forget)
    with pytest.raises(SystemExit, match="exported log-probabilities differ by"):
        export(run, "merge", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_push_is_checked_before_the_work_and_uploads_the_directory(
    run: RunPaths, tmp_path: Path, in_this_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    uploaded: list[tuple[str, set[str]]] = []

    class Api:
        reason = "Connection refused\nmore"

        def whoami(self) -> None:
            if self.reason:
                raise OSError(self.reason)

        def create_repo(self, name: str, **_: Any) -> Any:
            class Url(str):
                repo_id = name

            return Url(f"https://huggingface.co/{name}")

        def upload_folder(self, *, repo_id: str, folder_path: Path) -> None:
            uploaded.append((repo_id, {path.name for path in folder_path.iterdir()}))

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    line = "--push me/toy: the hub cannot be used: Connection refused"
    with pytest.raises(MachineError) as refused:
        export(run, "adapter", tmp_path / "out", push_to="me/toy")
    assert str(refused.value) == line
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(Api, "reason", "")
    found = export(run, "adapter", tmp_path / "out", push_to="me/toy")
    assert found.url == "https://huggingface.co/me/toy"
    ((name, files),) = uploaded
    assert name == "me/toy"
    assert {"adapter_model.safetensors", "README.md", "lineage.json"} <= files


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["model", "--merge", "--gguf"], "one of --merge, --adapter, --gguf"),
        (["parquet"], "forge export parquet: --out DIR is missing"),
        (["csv", "--out", "x"], "there are parquet and model"),
        (["parquet", "--out", "x", "--push", "a/b"], "--push is for a model"),
    ],
)
def test_arguments_that_do_not_fit_are_named(
    run: RunPaths, argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    form, *more = argv
    assert words in told(capsys, "export", form, run.root, *more, code=2)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["merge", "adapter", "gguf"])
def test_the_command_exports_in_processes_of_its_own(
    run: RunPaths, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "gguf":
        pytest.importorskip("llama_cpp")
    out = tmp_path / "out"
    argv = ["export", "model", str(run.root), f"--{kind}", "--out", str(out), "--json"]
    assert run_command(argv) == 0, capsys.readouterr().err
    said = SimpleNamespace(**json.loads(capsys.readouterr().out))
    assert (said.path, bool(said.answer)) == (str(out), True)
    assert (out / "README.md").is_file()
