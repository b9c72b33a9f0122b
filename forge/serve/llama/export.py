"""`python -m forge.serve.llama.export CONFIG.json`: writes a model as a GGUF file, loads the file
in llama.cpp and generates with it.

Config: `model_dir`, `path` of the file, `prompt_ids`, `stop_ids`, `num_tokens`, `threads`,
`result_path`. The result file holds the generated ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from forge.process.lease import hold_lease
from forge.serve.checkpoint_files import read_json
from forge.serve.llama.checkpoint import Checkpoint, Precision, open_weights, write_model
from forge.serve.llama.model import BATCH_TOKENS, DecodeBatch, LlamaModel, ModelSettings


def main() -> None:
    """Export the model of the config."""
    config = hold_lease()
    Path(config["result_path"]).write_text(json.dumps(export(config)))


def export(config: Mapping[str, Any]) -> dict[str, Any]:
    """Write the file and generate greedily with it. Raises ConfigError for an architecture that the
    llama engine does not serve."""
    model_dir, path = Path(config["model_dir"]), Path(config["path"])
    is_bf16 = read_json(model_dir / "config.json").get("dtype") == "bfloat16"
    precision = Precision.FAST if is_bf16 else Precision.EXACT
    checkpoint = open_weights(model_dir, served=None)
    assert isinstance(checkpoint, Checkpoint), "an adapter was merged before"
    write_model(checkpoint, path, precision)
    prompt = np.array(config["prompt_ids"], dtype=np.int32)[-BATCH_TOKENS:]
    model = LlamaModel(
        ModelSettings(
            model_dir=model_dir,
            work_dir=path.parent,
            gguf=path,
            context_tokens=len(prompt) + config["num_tokens"],
            precision=precision,
            threads=config["threads"],
            allow_in_place=False,
        )
    )
    try:
        ids = _generate(model, prompt, stop=config["stop_ids"], num=config["num_tokens"])
    finally:
        model.close()
    return {"with": "llama.cpp", "ids": ids, "num_tokens": len(ids), "precision": str(precision)}


def _generate(model: LlamaModel, prompt: np.ndarray, *, stop: list[int], num: int) -> list[int]:
    """The most likely tokens after a prompt."""
    batch = DecodeBatch(model.binding, capacity=BATCH_TOKENS)
    ids: list[int] = []
    tokens, start = prompt, 0
    while len(ids) < num:
        batch.clear()
        batch.add_run(0, tokens, start)
        batch.want_last()
        ids.append(int(model.decode(batch)[0].argmax()))
        if ids[-1] in stop:
            break
        start += len(tokens)
        tokens = np.array(ids[-1:], dtype=np.int32)
    return ids


if __name__ == "__main__":
    main()
