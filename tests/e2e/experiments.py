"""Problems and experiments that several whole runs use, and a model for GRPO to improve."""

from __future__ import annotations

from pathlib import Path

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

batch_size = 4096
dim = 393216

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
overrides = { batch_size = 4, dim = 64 }
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


def teach(model_dir: Path, *, problems: list[Path], answers: tuple[str, ...] = ANSWERS) -> None:
    """Trains a model directory that gives each of a few answers about equally often."""
    import torch
    from transformers import Qwen3ForCausalLM

    from forge.train.trainer.model.init_model import make_model

    prompts = [PROMPTS.first_messages(from_source(path.read_text())) for path in problems]
    texts = [message.content for prompt in prompts for message in prompt]
    texts += answers * len(prompts)
    make_model(SIZES.model_dump(), texts=texts, model_dir=model_dir, seed=0)
    chat, model = ChatTemplate.load(model_dir), Qwen3ForCausalLM.from_pretrained(model_dir)
    rows = [
        chat.training_row((*prompt, Message(role="assistant", content=answer)))
        for prompt in prompts
        for answer in answers
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(40):
        for row in rows:
            ids = torch.tensor([row.input_ids])
            labels = torch.where(torch.tensor([row.completion_mask]) == 1, ids, -100)
            model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(model_dir)
