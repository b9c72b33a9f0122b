"""Supervised fine-tuning on one GPU: tokens a second, MFU and peak memory of the SFT trainer.

    python -m bench.sft --shape 8b --tokens 8192 --steps 20 --out 8b.json
    python -m bench.sft --shape trinity-mini --tokens 4096 --batch 8 --steps 3 --out trinity.json

Random weights of the shape, an adapter as in the recipe of that name, random rows of full length.
The first two steps are left out of the times. Model FLOPs of a token are those of a forward and of
a backward to activations: 4 · parameters that a token uses + 6 · layers · heads · head size · row
(causal: half the positions); an adapter's own gradients are below 2 % of it. MFU is their share of
the card's dense bf16 peak (after Chowdhery et al., PaLM, appendix B, with 4 in place of 6 since the
weights have no gradients); work that is repeated in a backward does not count.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

PEAK_TFLOPS = {"H100": 989.0, "H200": 989.0}
"""Dense bf16, of the SXM cards' data sheet."""
DROPPED_STEPS = 2
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
RECIPES: dict[str, dict[str, Any]] = {
    "tiny": {"lora": {"r": 4, "alpha": 8, "target_modules": MODULES}},
    "tiny-mixture": {
        "lora": {"r": 4, "alpha": 8, "target_modules": MODULES, "target_parameters": EXPERTS},
        "quantize": {"bits": 4},
    },
    "8b": {"lora": {"r": 64, "alpha": 128, "target_modules": [*MODULES, *MLP]}},
    "trinity-mini": {
        "lora": {
            "r": 64,
            "alpha": 128,
            "dropout": 0.05,
            "target_modules": MODULES,
            "target_parameters": EXPERTS,
        },
        "quantize": {"bits": 4},
    },
}
"""Keys of `[model]`."""


def config_of(shape: str) -> Any:
    """The model's configuration."""
    from transformers import AfmoeConfig, Qwen3Config

    from forge.runner.plan.shape import KNOWN

    if shape in ("tiny", "tiny-mixture"):
        sizes: dict[str, Any] = {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": 512,
        }
        if shape == "tiny":
            return Qwen3Config(**sizes, dtype="bfloat16")
        return AfmoeConfig(
            **sizes,
            moe_intermediate_size=32,
            num_experts=4,
            num_experts_per_tok=2,
            num_shared_experts=1,
            num_dense_layers=1,
            dtype="bfloat16",
        )
    known = {**KNOWN["qwen3-8b" if shape == "8b" else shape], "max_position_embeddings": 40_960}
    kind = Qwen3Config if shape == "8b" else AfmoeConfig
    return kind(**known, dtype="bfloat16")


def write_model(shape: str, at: Path, *, device: str) -> tuple[int, int]:
    """Writes random weights in bf16, one file a layer, and a small tokenizer. Returns the number of
    parameters, and of those that one token uses."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    from bench.trainers_workload import make_model

    config = config_of(shape)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    at.mkdir(parents=True)
    config.save_pretrained(str(at))
    tokenizer = make_model("tiny", at.with_name("tokenizer"))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / name, at / name)
    draw = torch.Generator(device).manual_seed(0)
    layers: dict[str, dict[str, torch.Tensor]] = {}
    weight_map: dict[str, str] = {}
    num_all = num_used = 0
    share = getattr(config, "num_experts_per_tok", 1) / getattr(config, "num_experts", 1)
    for name, value in model.state_dict().items():
        layer = name.split("layers.")[1].split(".")[0] if "layers." in name else "rest"
        layers.setdefault(layer, {})[name] = value
        num_all += value.numel()
        is_expert = ".experts." in name
        num_used += int(value.numel() * share) if is_expert else value.numel()
        if "embed_tokens" in name:
            num_used -= value.numel()
    for layer, tensors in layers.items():
        file = f"layer-{layer}.safetensors"
        made = {name: _drawn(value, draw, device=device) for name, value in tensors.items()}
        save_file(made, str(at / file), metadata={"format": "pt"})
        weight_map |= dict.fromkeys(made, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (at / "model.safetensors.index.json").write_text(json.dumps(index))
    return num_all, num_used


def _drawn(value: Any, draw: Any, *, device: str) -> Any:
    import torch

    if value.dim() < 2:
        return torch.ones(value.shape, dtype=value.dtype)
    made = torch.empty(value.shape, dtype=value.dtype, device=device)
    return made.normal_(0.0, 0.02, generator=draw).cpu()


def make_trainer(args: argparse.Namespace, model_dir: Path, at: Path) -> Any:
    """forge's own trainer of an SFT stage."""
    from forge.config.schema import ModelTable, RolloutTable, SftStage
    from forge.train.trainer.child.settings import TrainerSettings
    from forge.train.trainer.sft import stage as sft

    stage = SftStage(
        kind="sft",
        steps=args.steps,
        batch_size=args.batch,
        max_length=args.tokens,
        micro_batch_tokens=args.tokens * args.rows,
        learning_rate=2e-4,
        attention=args.attention,
    )
    table = ModelTable(path=str(model_dir), dtype="bfloat16", **RECIPES[args.shape])
    settings = TrainerSettings(
        stage=stage.model_dump(mode="json"),
        model=table.model_dump(mode="json"),
        rollout=RolloutTable().model_dump(mode="json"),
        model_dir=model_dir,
        rows_path=at / "rows.jsonl",
        work_dir=at / "work",
        weights_dir=at / "weights",
        control_socket=at / "none.sock",
        seed=0,
    )
    draw = random.Random(0)
    with (at / "rows.jsonl").open("w") as file:
        for _ in range(args.batch * args.steps):
            ids = [draw.randrange(10, 300) for _ in range(args.tokens)]
            mask = [0] * (args.tokens // 4) + [1] * (args.tokens - args.tokens // 4)
            file.write(json.dumps({"input_ids": ids, "completion_mask": mask}) + "\n")
    return sft.make_trainer(settings, rows=sft.read_rows(at / "rows.jsonl"))


def main() -> int:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=RECIPES, required=True)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=2, help="rows a step")
    parser.add_argument("--rows", type=int, default=1, help="rows of a micro-batch")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    import torch
    from transformers import TrainerCallback

    has_gpu = torch.cuda.is_available()
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            if has_gpu:
                torch.cuda.synchronize()
            ends.append(time.monotonic())

    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        at = Path(folder)
        began = time.monotonic()
        device = "cuda" if has_gpu else "cpu"
        num_all, num_used = write_model(args.shape, at / "model", device=device)
        written_s, began = time.monotonic() - began, time.monotonic()
        trainer = make_trainer(args, at / "model", at)
        loaded_s = time.monotonic() - began
        trainer.add_callback(Clock())
        loaded_bytes = torch.cuda.max_memory_allocated() if has_gpu else 0
        trainer.train()
    config = config_of(args.shape)
    times = [after - before for before, after in itertools.pairwise(ends)]
    step_s = statistics.median(times[DROPPED_STEPS - 1 :])
    tokens_per_s = args.batch * args.tokens / step_s
    scores = 6 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    flops = 4 * num_used + scores * args.tokens
    name = torch.cuda.get_device_name() if has_gpu else "cpu"
    peak = next((value for card, value in PEAK_TFLOPS.items() if card in name), None)
    found = {
        "shape": args.shape,
        "card": name,
        "tokens": args.tokens,
        "batch": args.batch,
        "rows": args.rows,
        "steps": len(ends),
        "attention": str(trainer.model.config._attn_implementation),
        "parameters": num_all,
        "used_parameters": num_used,
        "step_s": round(step_s, 3),
        "tokens_per_s": round(tokens_per_s, 1),
        "tflops": round(tokens_per_s * flops / 1e12, 1),
        "mfu": None if peak is None else round(tokens_per_s * flops / peak / 1e12, 3),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if has_gpu else None,
        "reserved_gb": round(torch.cuda.max_memory_reserved() / 1e9, 2) if has_gpu else None,
        "peak_while_loading_gb": round(loaded_bytes / 1e9, 2),
        "written_s": round(written_s, 1),
        "loaded_s": round(loaded_s, 1),
        "losses": [one["loss"] for one in trainer.state.log_history if "loss" in one][-3:],
    }
    print(json.dumps(found))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
