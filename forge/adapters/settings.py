"""The options of `forge judge`, `forge problems check` and `forge.judge` that choose judges, as a
`[judge]` table.

A value that is not allowed is a ConfigError of one line; a missing GPU is a MachineError.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from forge.config.keys import one_of, validated
from forge.config.schema import ConstantsTable, JudgeTable, ProblemsTable, RulesName
from forge.errors import ConfigError, MachineError, pip_install
from forge.evalpool.cards import require_target
from forge.evalpool.site_packages import OPTION, require_installed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.process.devices import Gpu

_DEVICE = re.compile(r"cuda(:\d+)?")
MAX_JUDGES = 16
"""Default limit of judges. Each has torch and triton loaded: 0.4 GB."""
CHOICES = ("isolation", "compile", "baseline", "protocol", "policy")
"""Options that are keys of the table with a closed set of values."""
PHASES = ("compile_timeout_s", "correct_timeout_s", "timing_timeout_s")
MAX_TIMEOUT_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """Options that choose judges, as `forge judge --help` describes them."""

    device: str = "auto"
    isolation: str = "auto"
    compile: str = "ttir"
    baseline: str = "eager"
    protocol: str = "forge"
    policy: str | None = None
    """Absent: the protocol's own."""
    target: str | None = None
    """GPU to judge for on a CPU. Absent: the table's."""
    also: tuple[str, ...] = ()
    site_packages: tuple[str, ...] = ()
    workers: int | None = None
    """Number of judges; absent means one per core, at most MAX_JUDGES and one per candidate."""
    timeout: float | None = None
    """Maximum time of each phase, in s; absent means the defaults of the `[judge]` table."""
    url: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prefix: str = "--"
    """Beginning of an option's name in messages; empty for arguments in Python."""

    def table(self) -> JudgeTable:
        """The `[judge]` table with these options. Raises ConfigError or MachineError."""
        if self.url is not None:
            for option in fields(self):
                has_default = option.name in ("url", "more", "prefix")
                if not has_default and getattr(self, option.name) != option.default:
                    name = option.name.replace("_", "-")
                    raise ConfigError(f"--url: --{name} must be set where the pool is served")
            return validated(JudgeTable, {"url": [self.url]}, prefix="judge.")
        values: dict[str, Any] = {
            "also": list(self.also),
            "site_packages": list(self.site_packages),
        }
        values["workers"] = self.workers
        if self.workers is None:
            values["workers"] = len(os.sched_getaffinity(0))
        for name in CHOICES:
            if (value := getattr(self, name)) is not None:
                values[name] = one_of(f"{self.prefix}{name}", value, JudgeTable.model_fields[name])
        for name in self.also:
            one_of("--also", name, RulesName)
        if self.target is not None:
            values["target"] = self.target
        if self.timeout is not None:
            if not 0 < self.timeout <= MAX_TIMEOUT_S:
                raise ConfigError(
                    f"{self.prefix}timeout {self.timeout:g}: seconds above 0, "
                    f"at most {MAX_TIMEOUT_S:.0f}"
                )
            values |= dict.fromkeys(PHASES, self.timeout)
        table = validated(JudgeTable, {**values, **self.more}, prefix="judge.")
        for name in ("torch", "triton"):
            if find_spec(name) is None:
                raise MachineError(
                    f"judge: {name} is not installed: {pip_install('judge')}, or make setup"
                )
        require_installed(table.site_packages, key=OPTION)
        require_target(table.target, key=f"{self.prefix}target")
        return table

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs to judge on; empty for the CPU, which judges for any target. Raises ConfigError:
        the device is not a device name; MachineError: this machine does not have it."""
        if self.target is not None and self.device not in ("auto", "cpu"):
            raise ConfigError(
                f"{self.prefix}target {self.target}: belongs to {self.prefix}device cpu; a judge "
                "on a GPU judges for that GPU"
            )
        if self.device == "cpu" or self.url is not None or self.target is not None:
            return ()
        if self.device != "auto" and not _DEVICE.fullmatch(self.device):
            raise ConfigError(f"{self.prefix}device {self.device}: one of auto, cpu, cuda, cuda:N")
        from forge.process.devices import inventory

        gpus = inventory()
        if self.device == "auto":
            return gpus
        number = int(self.device.partition(":")[2] or 0)
        if number >= len(gpus):
            has = f"{len(gpus)} GPUs" if gpus else "no GPU"
            raise MachineError(
                f"{self.prefix}device {self.device}: this machine has {has}; "
                f"{self.prefix}device cpu needs none"
            )
        return (gpus[number],)


def checked_constants(values: Mapping[str, Any], *, prefix: str = "") -> ConstantsTable:
    """A table of module constants, as `problems.overrides` has it. Raises ConfigError."""
    given: dict[str, Any] = {"overrides": values}
    return validated(ProblemsTable, given, prefix=prefix).overrides
