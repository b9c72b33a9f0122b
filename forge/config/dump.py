"""Writes a resolved experiment as TOML: the `experiment.toml` of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tomli_w

if TYPE_CHECKING:
    from forge.config.schema import Experiment


def dump_experiment(experiment: Experiment, *, comment: str = "") -> str:
    """The whole experiment with its defaults, under a comment; absent keys stay absent.

    `load_experiment` reads the text to an equal value.
    """
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + tomli_w.dumps(experiment.model_dump(mode="json", exclude_none=True))
