"""The table of models in the documentation has the architectures that are tested, and says of each
what the tests and the code say."""

from __future__ import annotations

from pathlib import Path

from forge.serve.architectures import no_llama
from tests.architectures import ARCHITECTURES

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "models.md"
IN_LLAMA: dict[str, str] = dict.fromkeys(("mistral", "mixtral", "phi3"), "up to its window")
IN_LLAMA["gpt_oss"] = "not with `truncate` off"
TRIED_IN_VLLM = frozenset({"llama", "qwen3"})
"""Served by vLLM in `tests/serve/test_vllm_gpu.py` or in `bench/RESULTS.md`."""


def row_of(name: str) -> str:
    """The line of an architecture."""
    chosen = ARCHITECTURES[name]
    cells = (
        f"`{name}`", chosen.models, "yes", "yes" if chosen.packs else "no", "yes",
        IN_LLAMA.get(name, "no" if no_llama(name) else "yes"),
        "yes" if name in TRIED_IN_VLLM else "not tried",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def test_the_table_of_models_says_what_is_tested() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert rows[1:] == [row_of(name) for name in ARCHITECTURES]
