"""Rows of a dataset from problems: prompt, and the problem as the adapters' functions take it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forge.adapters.subjects import known_problems, problem_names
from forge.config.keys import one_of
from forge.config.schema import PresetName, PromptTable, RowFormat
from forge.data.prompts.prompt_set import make_prompts


def kernel_rows(
    problems: str | Path, *, preset: str = "standard", format: RowFormat = "kernelbench"
) -> list[dict[str, Any]]:
    """`name`, `problem` (its source) and `prompt` (messages) of each problem, in order.

    Args:
        problems: directory of problems, problem file, or file of rows.
        preset: templates of the prompt, as prompt.preset.
        format: columns of a file of rows.

    Raises:
        ConfigError: a path, preset or problem that cannot be used.
    """
    one_of("preset", preset, PresetName)
    known = known_problems(problems, format=format)
    assert known is not None
    prompts = make_prompts(PromptTable.model_validate({"preset": preset}))
    rows: list[dict[str, Any]] = []
    for name in problem_names(known):
        problem = known.problem(known.file(name))
        messages = prompts.first_messages(problem)
        shown = [{"role": each.role, "content": each.content} for each in messages]
        rows.append({"name": name, "problem": problem.source, "prompt": shown})
    return rows
