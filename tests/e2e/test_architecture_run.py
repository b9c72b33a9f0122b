"""Models of other architectures through whole runs: SFT, evaluation, GRPO and an export, by the
command line. `tests/train/test_architectures.py` plays the parts for every architecture."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from forge.data.problems import from_source
from tests.architectures import make_architecture
from tests.e2e.commands import forge, opened
from tests.e2e.experiments import ANSWERS, write_problems
from tests.prompting import PROMPTS

pytestmark = [
    pytest.mark.e2e, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
]  # fmt: skip

EXPERIMENT = """\
name = "{name}"
[model]
path = "{name}"
[problems]
source = "dir"
path = "problems"
num_heldout = 1
duplicates = "allow"
[prompt]
preset = "tiny"
[data]
source = "file"
path = "rows.jsonl"
[serve]
engine = "hf"
slots = 8
[judge]
workers = 1
[reward]
compile_error = -1.0
[rollout]
group_size = 8
groups_per_step = 1
max_turns = 1
max_completion_tokens = 24
max_replacements = 20.0
[eval]
samples = 1
greedy = false
max_turns = 1
[[stage]]
kind = "sft"
steps = 120
learning_rate = 1e-2
batch_size = 6
[[stage]]
kind = "eval"
[[stage]]
kind = "grpo"
steps = 1
learning_rate = 1e-4
[[stage]]
kind = "eval"
"""


def make_project(name: str, at: Path) -> None:
    """Problems, a model and rows that teach it two answers: GRPO gets a signal."""
    write_problems(at / "problems")
    rows = list[dict[str, Any]]()
    for path in sorted((at / "problems").rglob("*.py")):
        asked = PROMPTS.first_messages(from_source(path.read_text()))
        messages = [{"role": each.role, "content": each.content} for each in asked]
        rows += [{"messages": [*messages, {"role": "assistant", "content": answer}]}
                 for answer in ANSWERS]  # fmt: skip
    (at / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_architecture(name, at / name)
    (at / f"{name}.toml").write_text(EXPERIMENT.format(name=name))


@pytest.mark.parametrize("name", ["llama", "qwen3_5"])
def test_a_model_is_trained_played_and_exported_in_its_own_form(name: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    make_project(name, tmp_path)
    forge("run", f"{name}.toml", cwd=tmp_path)
    with opened(tmp_path / "runs" / f"{name}-1") as db:
        stages = [stage for (stage,) in db.execute("SELECT stage FROM evaluations")]
        gaps = [gap for (gap,) in db.execute("SELECT probe_gap FROM policies")]
    assert stages == ["eval-1", "eval-3"]
    assert len(gaps) == 2
    assert max(gaps) < 1e-3
    shutil.rmtree(tmp_path / "runs" / f"{name}-1" / "weights" / "sft-000120")
    forge("export", "model", f"{name}-1", "--merge", "--out", "out", cwd=tmp_path)
    for path in (tmp_path / name).iterdir():
        if path.suffix != ".safetensors":
            assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), path.name
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.bfloat16
    assert model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2).shape[1] > 3


def test_what_only_the_trainer_finds_out_ends_a_run_in_one_line(tmp_path: Path) -> None:
    make_project("afmoe", tmp_path)
    adapter = 'model.lora.target_modules=["lm_head"]'
    done = forge("run", "afmoe.toml", "--set", adapter, cwd=tmp_path, code=2)
    assert done.stderr.splitlines()[-1].startswith(
        "forge: model.lora.target_modules: found the output layer"
    )
