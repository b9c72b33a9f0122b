"""Checks of `[prompt]`: files that exist, and the tag that a random model knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.config.checks.mistake import absent, mistake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.config.checks.mistake import Mistake
    from forge.config.schema import Experiment

TINY_TAG = "think"
"""Tag in the vocabulary and the chat template of a random model."""


def check_prompt(experiment: Experiment) -> Iterator[Mistake]:
    """Files that exist, and no other tag of thinking than the tokenizer's."""
    prompt = experiment.prompt
    files = {
        "system": prompt.system,
        "first": prompt.first,
        "feedback": prompt.feedback,
        "example": prompt.example or None,
    }
    for key, path in files.items():
        if path is not None and not path.is_file():
            yield absent(f'found "{path}", which is not a file; a text file', "prompt", key)
    if experiment.model.init and prompt.thinking != TINY_TAG:
        text = f'found "{prompt.thinking}" with model.init, whose chat template knows "{TINY_TAG}"'
        yield mistake(f"{text} alone", "prompt", "thinking")
