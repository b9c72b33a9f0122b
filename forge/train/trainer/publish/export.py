"""`python -m forge.train.trainer.publish.export CONFIG.json`: writes weights as a model or an
adapter, loads them again, and generates with them.

Config: `kind` (merge, adapter), `model_dir`, `adapter` or null, `base_name` (for the adapter's
config), `out_dir`, `prompt_ids`, `stop_ids`, `num_tokens`, `trust_remote_code`, `threads`,
`result_path`. The result file holds the generated ids, and how far log-probabilities are from
those of the run's own weights. Runs on the CPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from forge.process.lease import collector_paused, end_process, hold_lease
from forge.train.checkpoints import link_or_copy
from forge.train.trainer.child.settings import model_class
from forge.train.trainer.publish.weights import named_dtype, save_weights, snapshot, stored_dtype

MAX_GAP = 0.1
"""Maximum mean |difference of log-probabilities| from the run's own weights, both computed in the
dtype of those. Weights of SmolLM2 rounded to bf16 give 0.004 (computing in bf16, too, 0.12); a
wrong tensor gives more than 1."""


def main() -> None:
    config = hold_lease()
    torch.set_num_threads(config["threads"])
    with collector_paused():
        result = export(config)
    Path(config["result_path"]).write_text(json.dumps(result))
    end_process()


@torch.no_grad()
def export(config: Mapping[str, Any]) -> dict[str, Any]:
    out, adapter = Path(config["out_dir"]), config["adapter"]
    out.mkdir(exist_ok=True)
    prompt = torch.tensor([config["prompt_ids"]])
    model_dir = Path(config["model_dir"])
    stored = stored_dtype(model_dir)
    wanted = named_dtype(model_dir / "config.json") or stored
    model = _load(config, model_dir, adapter, dtype=stored)
    want = model(prompt).logits.float().log_softmax(-1)
    if config["kind"] == "adapter":
        _copy(Path(adapter), out)
        _name_base(out / "adapter_config.json", config["base_name"])
    elif adapter is None and wanted.itemsize >= stored.itemsize:
        _copy(model_dir, out)
    else:
        _save(model, out, model_dir=model_dir, dtype=wanted)
    del model
    if config["kind"] == "adapter":
        exported = _load(config, model_dir, out, dtype=stored)
    else:
        exported = _load(config, out, None, dtype=stored)
    gap = float((exported(prompt).logits.float().log_softmax(-1) - want).abs().mean())
    if not gap <= MAX_GAP:
        sys.exit(f"exported log-probabilities differ by {gap:.3g} on average; at most {MAX_GAP}")
    found = exported.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=config["num_tokens"],
        do_sample=False, eos_token_id=config["stop_ids"], pad_token_id=config["stop_ids"][0],
    )  # fmt: skip
    ids = found[0, prompt.shape[1] :].tolist()
    return {"with": "transformers", "ids": ids, "num_tokens": len(ids), "logprob_gap": gap}


def _load(
    config: Mapping[str, Any], model_dir: Path, adapter: Path | str | None, *,
    dtype: torch.dtype | str = "auto",
) -> Any:  # fmt: skip
    trust = config["trust_remote_code"]
    kind = model_class(Path(model_dir), trust_remote_code=trust)
    model: Any = kind.from_pretrained(model_dir, dtype=dtype, trust_remote_code=trust)
    if adapter is None:
        return model.eval()
    from peft import PeftModel

    return PeftModel.from_pretrained(model, str(adapter)).eval()


def _save(model: Any, out: Path, *, model_dir: Path, dtype: torch.dtype) -> None:
    """Write a model with its adapter merged, in the given dtype."""
    if hasattr(model, "peft_config"):
        model = model.merge_and_unload().requires_grad_(True)
        if hasattr(model, "peft_config"):  # an attribute that PEFT leaves on the base
            del model.peft_config
    whole = out / "whole"
    weights = snapshot(model, dtype=dtype)
    save_weights(model, whole, model_dir=model_dir, sync=False, weights=weights)
    for path in whole.iterdir():
        path.rename(out / path.name)
    whole.rmdir()


def _copy(source: Path, out: Path) -> None:
    """Copy the files of a directory; its sub-folders are a trainer's own."""
    for path in source.iterdir():
        if path.is_file() and not path.name.startswith("."):
            link_or_copy(path, out / path.name)


def _name_base(path: Path, name: str | None) -> None:
    """Write the base's own name into an adapter's config, in place of a directory of the run."""
    if name is None:
        return
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = name
    # A new file: this one may be linked to the run's.
    Path(f"{path}.new").write_text(json.dumps(config, indent=2) + "\n")
    Path(f"{path}.new").replace(path)


if __name__ == "__main__":
    main()
