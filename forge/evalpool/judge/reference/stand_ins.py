"""Stand-ins for what a sandbox lacks: a model hub and torch's compiler.

Called before a reference is run. Expected results are eager's; a baseline is timed as the source
says. A sandbox reaches no hub; `sandbox/root.py` has put the
configs that the reference names into the child's home directory, where transformers looks for them.
`from_pretrained` then makes a model from its config: float32 unless the call names a type, in
evaluation mode as that of a hub. A kernel is judged on the same weights, whatever they are.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import torch

NAME = "transformers"
DTYPES = ("dtype", "torch_dtype")
"""Arguments of `from_pretrained` that name the type of the weights."""


def replace_hub(source: str) -> None:
    """Makes `from_pretrained` of models need no weights, if the source mentions transformers and it
    can be imported; otherwise its own import says what is missing."""
    if NAME not in source:
        return
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    with suppress(ImportError):
        from transformers import AutoConfig, PreTrainedModel
        from transformers.models.auto.auto_factory import _BaseAutoModelClass

        def of_class(cls: Any, name: Any = None, *_: Any, config: Any = None, **how: Any) -> Any:
            config = cls.config_class.from_pretrained(name) if config is None else config
            return cls._from_config(config, dtype=_dtype(how)).eval()

        def of_auto(cls: Any, name: Any = None, *_: Any, config: Any = None, **how: Any) -> Any:
            config = AutoConfig.from_pretrained(name) if config is None else config
            return cls.from_config(config, dtype=_dtype(how)).eval()

        owners: list[tuple[Any, Any]] = [
            (PreTrainedModel, of_class),
            (_BaseAutoModelClass, of_auto),
        ]
        for owner, function in owners:
            owner.from_pretrained = classmethod(function)


def _dtype(how: dict[str, Any]) -> torch.dtype:
    found = next((how[name] for name in DTYPES if how.get(name) is not None), None)
    if isinstance(found, str):
        found = getattr(torch, found, None)
    return found if isinstance(found, torch.dtype) else torch.float32


def config_fields(value: object) -> dict[str, Any] | None:
    """Fields of a config of transformers that JSON can hold, and aliases; None for others."""
    if not type(value).__module__.startswith(f"{NAME}."):
        return None
    to_dict = getattr(value, "to_dict", None)
    if to_dict is None:
        return None
    fields = {str(name): each for name, each in to_dict().items() if _is_plain(each)}
    aliases = getattr(value, "attribute_map", {})
    return fields | {name: fields[own] for name, own in aliases.items() if own in fields}


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def run_eagerly(source: str) -> None:
    """Makes `torch.compile` in a source do nothing. Torch's compiler takes a second to import, so
    other sources are left alone."""
    if "compile" in source:
        torch.compiler.set_stance("force_eager")
