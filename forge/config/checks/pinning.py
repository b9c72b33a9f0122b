"""Check that no child is told by the experiment which GPUs it sees. Part of `checks.check`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forge.config.checks.mistake import Mistake, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.config.schema import Experiment

PINNING = re.compile(r"\w+_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|GPU_DEVICE_ORDINAL")
"""Variables by which drivers choose cards. A child gets them from the plan."""


def pinning(experiment: Experiment) -> Iterator[Mistake]:
    """Variables in `env` tables that would move a child to cards that others own."""
    for table, env in (("serve", experiment.serve.env), ("judge", experiment.judge.env)):
        for name, value in env.items():
            if PINNING.fullmatch(name):
                text = f"found {show(value)}; nothing, since devices.gpus says which cards are used"
                yield Mistake(path=(table, "env", name), text=text)
