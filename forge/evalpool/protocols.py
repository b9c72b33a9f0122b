# pyright: strict
"""Protocols that judges know, by device. Called by a run's plan and by `open_pool`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.errors import ConfigError

if TYPE_CHECKING:
    from forge.config.schema import JudgeTable


def require_known_protocols(table: JudgeTable, *, has_gpus: bool) -> None:
    """Refuses protocols that judges on GPUs do not know. Raises ConfigError."""
    for key, names in (("protocol", [table.protocol]), ("also", table.also)):
        others = [name for name in names if name != "forge"]
        if has_gpus and others:
            raise ConfigError(
                f"judge.{key}: found {', '.join(others)}; a judge on a GPU knows forge alone, one "
                "without a GPU (devices.judge = 0, --device cpu) the others, too"
            )
