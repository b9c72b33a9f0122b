# pyright: strict
"""Lists the modules of an engine's interpreter and their versions, without importing them.

`engines` runs this file in that interpreter, which need not have forge: so it imports the standard
library only. It is called directly for this process's interpreter.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "vllm", "peft", "llama-cpp-python")
MODULES = (
    "anyio", "forge", "gguf", "jinja2", "llama_cpp", "numpy", "peft", "starlette",
    "tokenizers", "torch", "transformers", "uvicorn", "vllm",
)  # fmt: skip


def describe() -> dict[str, Any]:
    """As JSON: versions of Python and packages, modules that can be found, vLLM's requirements, and
    llama.cpp's backends."""
    found = {name: one for name in PACKAGES if (one := _distribution(name))}
    return {
        "python": sys.version_info[:2],
        "versions": {name: one.version for name, one in found.items()},
        "modules": [name for name in MODULES if importlib.util.find_spec(name) is not None],
        "vllm_requires": (found["vllm"].requires or []) if "vllm" in found else [],
        "llama_backends": _llama_backends(),
    }


def _distribution(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _llama_backends() -> list[str]:
    """`cpu`, `cuda`, `hip`, `vulkan`: each is a library beside llama.cpp."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return []
    files = (Path(spec.origin).parent / "lib").glob("libggml-*.so")
    return sorted({file.name.removeprefix("libggml-").removesuffix(".so") for file in files})


if __name__ == "__main__":
    json.dump(describe(), sys.stdout)
