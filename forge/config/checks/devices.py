"""Checks of `[devices]`, and of variables in `env` tables that would move a child to other GPUs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forge.config.checks.mistake import mistake, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.config.checks.mistake import Mistake
    from forge.config.schema import Experiment

PINNING = re.compile(r"\w+_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|GPU_DEVICE_ORDINAL")
"""Variables by which drivers choose GPUs. A child gets them from the plan."""


def check_devices(experiment: Experiment) -> Iterator[Mistake]:
    """GPUs for a role only if there are some, and shared evenly by the replicas."""
    devices, replicas = experiment.devices, experiment.serve.replicas
    wanted = {"train": devices.train, "serve": devices.serve, "judge": devices.judge}
    for role, num in wanted.items():
        if num and devices.gpus is None:
            text = f'found {show(num)}, and devices.gpus is absent; set it to "auto" or a list'
            yield mistake(text, "devices", role)
    if devices.serve == "auto" or not devices.serve:
        return
    if replicas > devices.serve and replicas % devices.serve:
        yield mistake(
            f"found {replicas} replicas on {devices.serve} GPUs; one per GPU, or the same number "
            "on each GPU",
            *("serve", "replicas"),
        )
    if devices.serve > replicas and devices.serve % replicas:
        text = f"found {devices.serve} GPUs for {replicas} replicas; the same number for each"
        yield mistake(text, "devices", "serve")


def check_pinning(experiment: Experiment) -> Iterator[Mistake]:
    """No `env` table chooses the GPUs of a child, which could belong to another process."""
    for table, env in (("serve", experiment.serve.env), ("judge", experiment.judge.env)):
        for name, value in env.items():
            if PINNING.fullmatch(name):
                text = f"found {show(value)}; remove it, devices.gpus chooses the GPUs"
                yield mistake(text, table, "env", name)
