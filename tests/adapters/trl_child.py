"""TRL's GRPOTrainer trains two steps on scripted answers: `python trl_child.py URL reward|turns`.

The model is random; its `generate` writes a right kernel in even rows and a wrong one in odd rows.
With turns, a wrong one is repaired in the second turn. Prints what TRL logged, as JSON.
"""

import json
import sys
import tempfile
from typing import Any

import torch
from datasets import Dataset
from tiny_model import tiny_model, tiny_tokenizer
from transformers import Qwen3ForCausalLM
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl_kernels import TEMPLATE

from forge.adapters.trl import kernel_environment, kernel_reward
from tests.evalpool.judged import CODE, SOURCE

WRONG = CODE.replace("+ 1", "+ 2")
TOKENIZER = tiny_tokenizer(TEMPLATE.read_text())


class ScriptedModel(Qwen3ForCausalLM):
    """Writes what the test says, whatever its weights."""

    has_turns = False

    def generate(self, input_ids: Any = None, **_options: Any) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        texts = [self.reply(row, str(TOKENIZER.decode(ids))) for row, ids in enumerate(input_ids)]
        replies = [[*TOKENIZER.encode(text), TOKENIZER.eos_token_id] for text in texts]
        longest = max(map(len, replies))
        padded = [ids + [TOKENIZER.pad_token_id] * (longest - len(ids)) for ids in replies]
        return torch.cat([input_ids, torch.tensor(padded)], dim=1)

    def reply(self, row: int, prompt: str) -> str:
        """The answer in a row."""
        if not self.has_turns:
            return f"```python\n{WRONG if row % 2 else CODE}```"
        if "<tool_response>" not in prompt:
            return call(WRONG if row % 2 else CODE)
        last = prompt.rpartition("<tool_response>")[2]
        return call(CODE) if "judge> wrong" in last else "Done."


def call(code: str) -> str:
    """A tool call in Qwen3's format."""
    body = {"name": "submit_kernel", "arguments": {"code": code}}
    return f"<tool_call>\n{json.dumps(body)}\n</tool_call>"


def main(url: str, slot: str) -> None:
    """Train, and print the log."""
    ScriptedModel.has_turns = slot == "turns"
    options: dict[str, Any] = {"reward_funcs": kernel_reward(url)}
    if ScriptedModel.has_turns:
        options = {"environment_factory": kernel_environment(url)}
    torch.manual_seed(0)
    model = tiny_model(TOKENIZER, ScriptedModel)
    before = [each.clone() for each in model.parameters()]
    row = {"prompt": [{"role": "user", "content": "Write a kernel."}], "problem": SOURCE}
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, max_steps=2, per_device_train_batch_size=4, num_generations=4,
            max_completion_length=3000, use_cpu=True, report_to="none", logging_steps=1,
            save_strategy="no", disable_tqdm=True, learning_rate=1e-3, lr_scheduler_type="constant",
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=model, processing_class=TOKENIZER, args=config,
            train_dataset=Dataset.from_list([row] * 4), **options,
        )  # fmt: skip
        trainer.train()
    after = list(model.parameters())
    moved = max(float((a - b).abs().max().detach()) for a, b in zip(before, after, strict=True))
    steps = [each for each in trainer.state.log_history if "reward" in each]
    print("RESULT", json.dumps({"steps": steps, "moved": moved}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
