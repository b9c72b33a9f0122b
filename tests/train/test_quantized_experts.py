"""4-bit weights of a mixture: experts are quantized while they are loaded, routers are not, and an
adapter on them is trained, published and trained further."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from forge.config.schema import LoraTable, ModelTable, QuantizeTable, SftStage
from tests.train.mixtures import EXPERTS, make_mixture
from tests.train.trained import settings_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

WIDE = {"hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64}
LORA = LoraTable(
    r=4, alpha=8, dropout=0.25, target_modules=["q_proj", "v_proj"], target_parameters=EXPERTS
)
STAGE = SftStage(kind="sft", steps=2, learning_rate=1e-2, batch_size=4)


def write_rows(at: Path) -> None:
    row = {"input_ids": list(range(5, 37)), "completion_mask": [0] * 3 + [1] * 29}
    (at / "rows.jsonl").write_text((json.dumps(row) + "\n") * 8)


def trainer_of(model_dir: Path, at: Path, table: ModelTable, **keys: Any) -> Any:
    from forge.train.trainer.sft import make_trainer, read_rows

    write_rows(at)
    settings = settings_of(STAGE, model_dir, at, model=table, **keys)
    return make_trainer(settings, rows=read_rows(at / "rows.jsonl"))


@pytest.mark.parametrize("kind", ["afmoe", "qwen3_moe"])
def test_experts_are_stored_in_4_bits_and_read_as_they_were(
    tiny_model: Path, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("bitsandbytes")
    import torch
    from transformers import AutoModelForCausalLM

    from forge.train.trainer.model.load import fused_experts, load_model

    model_dir = make_mixture(kind, tmp_path / "model", tokenizer=tiny_model, **WIDE)
    table = ModelTable(path=str(model_dir), lora=LORA, quantize=QuantizeTable(), dtype="bfloat16")
    exact: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    model: Any = load_model(settings_of(STAGE, model_dir, tmp_path, model=table))
    names = fused_experts(exact)
    assert len(names) == (2 if kind == "afmoe" else 4)
    assert fused_experts(model) == names
    for name in names:
        module, _, last = name.rpartition(".")
        stored = model.get_parameter(f"{module}.parametrizations.{last}.original")
        want = exact.get_parameter(name)
        assert stored.dtype == torch.uint8
        assert stored.numel() == want.numel() / 2
        found = getattr(model.get_submodule(module), last)
        assert found.shape == want.shape
        assert cosine(found, want) > 0.99
    kept = [n for n, p in model.named_parameters() if ("router" in n or "mlp.gate." in n)]
    assert kept
    assert all(model.get_parameter(name).is_floating_point() for name in kept)
    for name, p in exact.named_parameters():
        p.data = expanded(model, name)
    ids = torch.arange(5, 25)[None]
    assert cosine(logits_of(model, ids), logits_of(exact, ids)) > 0.999


def test_an_adapter_on_4_bit_experts_is_trained_published_and_trained_further(
    tiny_model: Path, tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes")
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from forge.train.trainer.publish.weights import save_weights

    model_dir = make_mixture("afmoe", tmp_path / "model", tokenizer=tiny_model, **WIDE)
    table = ModelTable(path=str(model_dir), lora=LORA, quantize=QuantizeTable())
    trainer = trainer_of(model_dir, tmp_path, table)
    experts = [n for n, p in trainer.model.named_parameters() if p.requires_grad and "experts" in n]
    assert len(experts) == 4, "A and B of two parameters in the one sparse layer"
    drops = {type(m).__name__ for n, m in trainer.model.named_modules() if ".lora_dropout." in n}
    assert drops == {"Dropout", "Identity"}, "on attention, not on experts"
    first = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    trainer.train()
    for name, p in trainer.model.named_parameters():
        assert torch.equal(p, first[name]) != p.requires_grad, name
    at = tmp_path / "published"
    save_weights(trainer.model, at, model_dir=model_dir, sync=False)
    base: Any = AutoModelForCausalLM.from_pretrained(model_dir)
    served: Any = PeftModel.from_pretrained(base, str(at))
    loaded = {n: p for n, p in served.named_parameters() if "experts" in n and "lora_B" in n}
    assert len(loaded) == 2
    assert all(p.any() for p in loaded.values())
    # The same adapter, applied by PEFT to the same weights in full precision.
    for name, p in served.base_model.model.named_parameters():
        if "lora_" not in name:
            p.data = expanded(trainer.model.base_model.model, name)
    ids = torch.arange(5, 25)[None]
    ours = logits_of(trainer.model, ids)
    assert torch.equal(logits_of(trainer.model, ids), ours), "updates leave nothing behind"
    assert cosine(ours, logits_of(served, ids)) > 0.9999
    with served.disable_adapter():
        assert cosine(ours, logits_of(served, ids)) < 0.999
    again = trainer_of(model_dir, tmp_path, table, adapter=at, work_dir=tmp_path / "again")
    held = {n for n, p in again.model.named_parameters() if p.requires_grad}
    assert held == {n for n, p in trainer.model.named_parameters() if p.requires_grad}
    again.train()


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    from torch.nn.functional import cosine_similarity

    a, b = (x.detach().flatten().float() for x in (a, b))
    return float(cosine_similarity(a, b, dim=0))


def logits_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits without dropout. bitsandbytes' inference on a CPU needs wider layers than these, so
    the layers are in the mode of training."""
    import torch

    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.eval()
    return model(ids).logits.detach()


def expanded(model: Any, name: str) -> torch.Tensor:
    """A weight of a quantized model in full precision."""
    from bitsandbytes.functional import (  # pyright: ignore[reportMissingImports]
        dequantize_4bit,
    )

    path, _, last = name.rpartition(".")
    p = getattr(model.get_submodule(path), last)
    is_linear = type(p).__name__ == "Params4bit"
    return dequantize_4bit(p.data, p.quant_state) if is_linear else p.detach().clone()
