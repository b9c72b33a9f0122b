"""Small random Qwen3 checkpoints with transformers' results as the reference."""

import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM

import forge.data.chat

torch.set_num_threads(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A checkpoint, and the same weights in transformers (f32)."""

    path: Path
    model: Any

    def logits(self, prompt: Sequence[int], completion: Sequence[int]) -> torch.Tensor:
        ids = torch.tensor([[*prompt, *completion]])
        with torch.no_grad():
            return self.model(ids).logits[0, len(prompt) - 1 : -1]

    def logprobs(
        self, prompt: Sequence[int], completion: Sequence[int], *, temperature: float = 1.0
    ) -> np.ndarray:
        """Log probability of each completion token. [T]"""
        table = torch.log_softmax(self.logits(prompt, completion) / temperature, dim=-1)
        return table.gather(1, torch.tensor(completion)[:, None])[:, 0].numpy()


def make_reference(path: Path, *, seed: int, model_type: str = "qwen3", **values: Any) -> Reference:
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 512,
        "max_position_embeddings": 2048, "tie_word_embeddings": True, "bos_token_id": None,
        "eos_token_id": None, "pad_token_id": None,
        # Far from uniform, so that wrong weights or positions cannot pass.
        "initializer_range": 0.1,
    }  # fmt: skip
    config = AutoConfig.for_model(model_type, **{**sizes, **values})
    model: Any = AutoModelForCausalLM.from_config(config).eval().float()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += torch.randn_like(parameter) * 0.2
    model.save_pretrained(path)
    return Reference(path=path, model=model)


@pytest.fixture
def make_random(tmp_path: Path) -> Callable[..., Reference]:
    return lambda model_type, *, seed, **values: make_reference(
        tmp_path / f"{model_type}-{seed}", seed=seed, model_type=model_type, **values
    )


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return make_reference(tmp_path_factory.mktemp("tied"), seed=0)


@pytest.fixture(scope="session")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Other weights of the same shapes as `tied`."""
    return make_reference(tmp_path_factory.mktemp("newer"), seed=1)


@pytest.fixture(scope="session")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return make_reference(tmp_path_factory.mktemp("untied"), seed=2, tie_word_embeddings=False)


@pytest.fixture(scope="session")
def make_adapter(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Reference]:
    """Make a random PEFT adapter on a checkpoint. Keywords go to LoraConfig."""
    from peft import LoraConfig, get_peft_model

    def make(base: Reference, **config: Any) -> Reference:
        torch.manual_seed(7)
        path = tmp_path_factory.mktemp("adapter")
        lora = LoraConfig(
            init_lora_weights=False, task_type="CAUSAL_LM",
            **{"target_modules": "all-linear", **config},
        )  # fmt: skip
        with warnings.catch_warnings():
            # peft 0.18 uses a deprecated name of transformers 5.
            warnings.simplefilter("ignore", FutureWarning)
            # It has patterns for experts, which these adapters leave alone.
            warnings.simplefilter("ignore", RuntimeWarning)
            model = get_peft_model(AutoModelForCausalLM.from_pretrained(base.path), lora).eval()
        model.save_pretrained(str(path))
        return Reference(path=path, model=model)

    return make


@pytest.fixture
def talking(tied: Reference, tmp_path: Path) -> Path:
    """The checkpoint with a byte-level tokenizer and the project's chat template."""
    path, special = tmp_path / "talking", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    shutil.copytree(tied.path, path)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["user assistant system"], trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": special[2]}))
    template = Path(forge.data.chat.__file__).with_name("chat_template.jinja")
    shutil.copy(template, path / "chat_template.jinja")
    return path
