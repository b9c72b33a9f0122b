"""Problems, experiments and models of several whole runs, each made once in a session."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from forge.config.schema import TinyModel
from forge.data.chat import ChatTemplate
from forge.data.problems import from_source
from forge.records import Message
from tests.prompting import PROMPTS

PROBLEM = """\
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.{}(x)

batch_size = 4
dim = 64

def get_inputs():
    return [torch.randn(batch_size, dim)]

def get_init_inputs():
    return []
"""
FUNCTION = "def f(x):\n    return torch.tanh(x)\n"

TINY = """\
[prompt]
preset = "tiny"
[model]
init = "tiny"
[model.tiny]
hidden_size = 64
num_layers = 2
num_heads = 2
num_kv_heads = 1
intermediate_size = 128
vocab_size = 512
"""
"""A model for runs whose answers do not matter."""

LITTLE = """\
[problems]
num_problems = 100
num_heldout = 24
sft_by_level = [0, 8]
[data]
repair_share = 0.0
[rollout]
max_completion_tokens = 8
[judge]
workers = 1
[eval]
samples = 1
greedy = false
max_turns = 1
"""
"""Tables of a run that does little."""

GRPO_EXPERIMENT = """\
name = "grpo"
[prompt]
preset = "tiny"
[model]
path = "model"
[problems]
source = "dir"
path = "problems"
num_heldout = 1
[judge]
workers = 1
[reward]
compile_error = -1.0
[rollout]
group_size = 4
groups_per_step = 2
max_turns = 1
max_completion_tokens = 16
max_replacements = 4.0
max_staleness = 1
[store]
texts = "plain"
[[stage]]
kind = "grpo"
steps = 9
learning_rate = 1e-6
save_every = 3
"""
SIZES = TinyModel(
    hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=64, vocab_size=320
)
ANSWERS = ("no", "```\nclass ModelNew(\n```")
"""An answer without code and one that does not compile: rewards 0 and -1, so groups have a signal.
"""
LOOP = "```\nwhile 1:0\n@jit\ndef k():0\nclass ModelNew:0\n```"
"""A candidate that runs until its deadline."""
LEARNED = {"model": ANSWERS, "loops": (ANSWERS[1], LOOP, LOOP), "stuck": (LOOP,)}
"""Answers of each model. One that is evaluated may give one alone, so that a judge is always busy;
the groups of a stage that trains need two."""


def teach(
    model_dir: Path,
    *,
    problems: list[Path],
    answers: tuple[str, ...] = ANSWERS,
    sizes: TinyModel = SIZES,
    words: str = "",
) -> None:
    """Trains a model directory that gives each of a few answers about equally often.

    Args:
        words: text about tools at the end of the first message.
    """
    import torch
    from transformers import Qwen3ForCausalLM

    from forge.train.trainer.model.init_model import make_model

    prompts = [PROMPTS.first_messages(from_source(path.read_text())) for path in problems]
    if words:
        prompts = [
            (replace(first, content=f"{first.content}\n\n{words}"), *others)
            for first, *others in prompts
        ]
    texts = [message.content for prompt in prompts for message in prompt]
    texts += answers * len(prompts)
    make_model(sizes.model_dump(), texts=texts, model_dir=model_dir, seed=0)
    chat, model = ChatTemplate.load(model_dir), Qwen3ForCausalLM.from_pretrained(model_dir)
    rows = [
        chat.training_row((*prompt, Message(role="assistant", content=answer)))
        for prompt in prompts
        for answer in answers
    ]
    torch.set_num_threads(1)  # more of them spin against everything else on this machine
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(40):
        for row in rows:
            ids = torch.tensor([row.input_ids])
            labels = torch.where(torch.tensor([row.completion_mask]) == 1, ids, -100)
            model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(model_dir)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taught:
    """Files that all tests of a session read, each made by the first process that needs it."""

    folder: Path

    def problems(self) -> Path:
        return self._made("problems", write_problems)

    def rows(self) -> Path:
        return self._made("rows.jsonl", _write_rows)

    def model(self, name: str = "model") -> Path:
        problems = sorted(self.problems().rglob("*.py"))
        return self._made(name, lambda path: teach(path, problems=problems, answers=LEARNED[name]))

    def project(self, folder: Path) -> Path:
        for path in (self.problems(), self.model()):
            shutil.copytree(path, folder / path.name)
        return folder

    def _made(self, name: str, make: Callable[[Path], None]) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (self.folder / f"{name}.done").exists():
                make(self.folder / name)
                (self.folder / f"{name}.done").touch()
        return self.folder / name


def taught_of(tmp_path_factory: pytest.TempPathFactory) -> Taught:
    """The files of a session, for all of its workers."""
    base = tmp_path_factory.getbasetemp()
    return Taught(folder=(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "taught")


def write_problems(path: Path) -> None:
    (path / "level1").mkdir(parents=True)
    for name in ("tanh", "exp", "abs"):
        (path / "level1" / f"{name}.py").write_text(PROBLEM.format(name))


def _write_rows(path: Path) -> None:
    rows = (
        [
            {"role": "user", "content": f"Write kernel {number}."},
            {"role": "assistant", "content": ANSWERS[number % 2]},
        ]
        for number in range(24)
    )
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
