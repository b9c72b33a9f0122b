"""Triton's language reference, from the docstrings of the installed package: prints a JSON list of
[name, signature, text]. A child of `docs.py`, since it imports triton."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from typing import Any

MODULES = {"tl": "triton.language", "triton": "triton"}
"""Modules by the name that kernels give them."""
_ROLE = re.compile(r":(?:code|py:\w+):`")


def entries() -> list[tuple[str, str, str]]:
    """Name, signature and text of every public function and class of triton's own."""
    found = list[tuple[str, str, str]]()
    for prefix, module in MODULES.items():
        for name, value in vars(importlib.import_module(module)).items():
            inner = getattr(value, "fn", value)
            if name.startswith("_") or not callable(inner) or not _is_tritons(inner):
                continue
            text = getattr(value, "__doc__", None) or inner.__doc__
            if isinstance(text, str) and text.strip():
                text = _ROLE.sub("`", inspect.cleandoc(text))
                found.append((f"{prefix}.{name}", _signature(inner), text))
    return found


def _is_tritons(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("triton.")


def _signature(value: Any) -> str:
    """Its parameters, without those that the compiler passes."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    kept = [one for one in signature.parameters.values() if not one.name.startswith("_")]
    return str(signature.replace(parameters=kept, return_annotation=inspect.Signature.empty))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(entries()))
