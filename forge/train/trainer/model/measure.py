"""Measures a model that is not loaded: parameters, linear layers, fused experts, KV cache.

`python -m forge.train.trainer.model.measure` reads a `config.json` from stdin and writes JSON. It
makes transformers' model on the meta device, where tensors have shapes and no values, and lets it
read two tokens.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forge.process.lease import collector_paused, end_process

with collector_paused():
    import torch
    import transformers

    from forge.train.trainer.child.settings import class_of


def main() -> None:
    """Write the shape, `{"refused": reason}` for a config that cannot be used, or `{"unknown":
    reason}` for a model that transformers does not make."""
    raw: dict[str, Any] = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):
        found = _answer(raw)
    json.dump(found, sys.stdout)
    end_process()


def _answer(raw: dict[str, Any]) -> dict[str, Any]:
    kind = raw["model_type"]
    if kind not in transformers.CONFIG_MAPPING:
        return {"unknown": f"transformers {transformers.__version__} has no model_type {kind!r}"}
    try:
        with TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(_without_kernels(raw)))
            config = transformers.AutoConfig.from_pretrained(folder)
    except Exception as error:
        return {"refused": _line(error)}
    try:
        return _measure(config)
    except Exception as error:
        return {"unknown": f"transformers does not make it: {_line(error)}"}


def _without_kernels(config: dict[str, Any]) -> dict[str, Any]:
    """The config without keys such as attn_implementation, by which transformers would load the
    code of a kernel; shapes do not depend on it."""
    return {
        key: _without_kernels(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if not key.endswith("_implementation")
    }


def _measure(config: Any) -> dict[str, Any]:
    with torch.device("meta"), torch.no_grad():
        # In bf16, which the kernels of mixtures ask for.
        kind = class_of(config)
        make = getattr(kind, "from_config", None) or kind._from_config
        model = make(config, dtype=torch.bfloat16)
        tokens = torch.zeros(1, 2, dtype=torch.long)
        made = model(input_ids=tokens, use_cache=True, logits_to_keep=1)
    head = model.get_output_embeddings()
    linear, experts = defaultdict[str, list[Any]](list), defaultdict[str, list[Any]](list)
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not head:
            linear[path.rpartition(".")[2]].append(module.weight)
        for name, weight in module.named_parameters(recurse=False):
            if path.endswith(".experts") and weight.dim() == 3:
                experts[name].append(weight)
    text = config.get_text_config()
    heads, hidden = text.num_attention_heads, text.hidden_size
    expert = getattr(text, "moe_intermediate_size", None) or text.intermediate_size
    return {
        "params": model.num_parameters(),
        "linear": {name: _sums(weights) for name, weights in linear.items()},
        "experts": {name: _sums(weights) for name, weights in experts.items()},
        "kv": _kv_values(getattr(made, "past_key_values", None)),
        "hidden": hidden,
        "layers": text.num_hidden_layers,
        "heads": heads,
        "head_dim": getattr(text, "head_dim", None) or hidden // heads,
        "intermediate": text.intermediate_size,
        "expert_intermediate": expert if experts else 0,
        "active_experts": getattr(text, "num_experts_per_tok", None) or 1 if experts else 0,
        "vocab": text.vocab_size,
    }


def _sums(weights: list[torch.Tensor]) -> tuple[int, int, int]:
    """Number of weights, their values, and the sum of their widths: [..., in, out] count in + out
    for each of the matrices."""
    values = sum(weight.numel() for weight in weights)
    widths = sum(weight.shape[:-2].numel() * sum(weight.shape[-2:]) for weight in weights)
    return len(weights), values, widths


def _kv_values(cache: Any) -> list[tuple[int | None, int]]:
    """Values of a token in the layers with each window; None for no window. A state (linear
    attention, Mamba, convolutions) does not grow and is left out."""
    found = defaultdict[int | None, int](int)
    for layer in getattr(cache, "layers", ()):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is not None and values is not None:
            window = getattr(layer, "sliding_window", None)
            found[window] += (keys.numel() + values.numel()) // 2
    return list(found.items())


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return text or type(error).__name__


if __name__ == "__main__":
    main()
