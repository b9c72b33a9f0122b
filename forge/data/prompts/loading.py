"""Makes the prompts of a run from `[prompt]` and the facts of its judges.

Presets are folders of templates (`presets/`), and a file of the user replaces one of them. Called
before anything starts: a template that cannot be used is a ConfigError.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.data.answers import fenced_blocks
from forge.data.prompts.facts import PromptFacts
from forge.data.prompts.prompt_set import PromptSet, used_by
from forge.data.prompts.templates import check_template
from forge.errors import ConfigError

if TYPE_CHECKING:
    from forge.config.schema import PromptTable

PRESETS = Path(__file__).with_name("presets")
KINDS = ("system", "first", "feedback")
SUFFIX = ".jinja"
MAX_CHARS = {"tiny": 600}
"""Maximum length of a report's detail, by preset: three turns of a tiny model share a context of a
thousand tokens with the problem."""
OTHER_MAX_CHARS = 2400
MAX_BYTES = 1 << 20
"""Maximum size of a template or an example."""


def make_prompts(table: PromptTable, facts: PromptFacts | None = None) -> PromptSet:
    """The prompts of an experiment; without facts, of judges on a CPU.

    Raises:
        ConfigError: a template or the example cannot be read or used.
    """
    facts = facts or PromptFacts()
    templates = {kind: _template(table, kind) for kind in KINDS}
    used = used_by(templates)
    device = facts.device if table.hardware else None
    values: dict[str, Any] = {
        "policy": facts.policy,
        "protocol": facts.protocol,
        "is_timed": facts.is_timed,
        "reference_mode": facts.reference_mode,
        "hardware": None if device is None else {**asdict(device), "tflops": dict(device.tflops)},
        "example": _example(table) if "example" in used else None,
    }
    return PromptSet(
        preset=table.preset,
        templates=templates,
        values={name: value for name, value in values.items() if name in used},
        tolerances=dict(facts.tolerances) if "tolerance" in used else {},
        thinking=table.thinking,
        attempts=table.attempts,
        has_baseline=table.baseline,
        max_chars=MAX_CHARS.get(table.preset, OTHER_MAX_CHARS),
    )


def _template(table: PromptTable, kind: str) -> str:
    path: Path | None = getattr(table, kind)
    if path is None:
        return _preset(table.preset, kind)
    source = _read(path, key=f"prompt.{kind}")
    check_template(kind, source, name=str(path), key=f"prompt.{kind}")
    return source


@cache
def _preset(preset: str, kind: str) -> str:
    return (PRESETS / preset / f"{kind}{SUFFIX}").read_text(encoding="utf-8")


def _example(table: PromptTable) -> dict[str, str] | None:
    """The two blocks of the example's file. Raises ConfigError if it has others."""
    if table.example is False:
        return None
    path = table.example or PRESETS / "example.md"
    blocks = [code.strip("\n") for _, code in fenced_blocks(_read(path, key="prompt.example"))]
    if len(blocks) != 2:
        raise ConfigError(
            f"prompt.example: {path}: found {len(blocks)} fenced blocks; two, a problem and its "
            "answer"
        )
    return {"problem": blocks[0], "answer": blocks[1]}


def _read(path: Path, *, key: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{key}: {path}: cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{key}: {path}: larger than {MAX_BYTES >> 20} MiB; a short text")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{key}: {path}:{line}: not UTF-8 text, which a prompt must be") from None
