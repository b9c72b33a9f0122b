"""TRL's GRPOTrainer, unchanged, rewarded by forge's judge. One step with a tiny random model.

forge judge --serve --listen 127.0.0.1:8200 &
python examples/trl_kernels.py http://127.0.0.1:8200
python examples/trl_kernels.py http://127.0.0.1:8200 --turns    # several turns, by tool calls
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import trl
from datasets import Dataset
from tiny_model import tiny_model, tiny_tokenizer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from forge.adapters.trl import kernel_environment, kernel_reward

PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1

def get_inputs():
    return [torch.randn(64)]

def get_init_inputs():
    return []
"""
ASK = "Write a Triton kernel in a class ModelNew that replaces Model. Answer with one python block."
TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"


def main() -> None:
    """Train one step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="address of forge judge --serve")
    parser.add_argument("--turns", action="store_true", help="let the model call submit_kernel")
    given = parser.parse_args()
    tokenizer = tiny_tokenizer(TEMPLATE.read_text())
    row = {"prompt": [{"role": "user", "content": f"{ASK}\n{PROBLEM}"}], "problem": PROBLEM}
    slot: dict[str, Any] = {"reward_funcs": kernel_reward(given.url)}
    if given.turns:
        slot = {"environment_factory": kernel_environment(given.url)}
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=tiny_model(tokenizer),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list([row]),
            args=GRPOConfig(
                output_dir=folder,
                max_steps=1,
                per_device_train_batch_size=4,
                num_generations=4,
                max_completion_length=64,
                use_cpu=True,
                report_to="none",
                logging_steps=1,
                save_strategy="no",
                disable_tqdm=True,
            ),
            **slot,
        )
        trainer.train()
        logged = trainer.state.log_history[0]
        print({key: value for key, value in logged.items() if "reward" in key})


if __name__ == "__main__":
    main()
