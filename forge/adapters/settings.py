"""The options of `forge judge`, `forge problems check` and `forge.judge` that choose judges, as a
`[judge]` table.

A value that is not allowed is a ConfigError of one line; a missing GPU is a MachineError.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, get_args

from forge.config.keys import validated
from forge.config.schema import JudgeTable
from forge.config.schema.judge import RulesName
from forge.config.schema.problems import ConstantsTable, ProblemsTable, RowFormat
from forge.errors import ConfigError, MachineError, pip_install
from forge.evalpool.site_packages import OPTION, require_installed
from forge.evalpool.targets import require_target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.process.devices import Gpu

_DEVICE = re.compile(r"cuda(:\d+)?")
MAX_JUDGES = 16
"""Default limit of judges. Each has torch and triton loaded: 0.4 GB."""
PRECISIONS = ("fp32", "fp16", "bf16")
PHASES = ("compile_timeout_s", "correct_timeout_s", "timing_timeout_s")
"""Keys of the `[judge]` table that `--timeout` sets."""
MAX_TIMEOUT_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """Options that choose judges."""

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
    """Further protocols."""
    site_packages: tuple[str, ...] = ()
    """Distributions that references may import."""
    workers: int | None = None
    """Number of judges; absent means one per core, at most MAX_JUDGES and one per candidate."""
    timeout: float | None = None
    """Maximum time of each phase, in s; absent means the defaults of the `[judge]` table."""
    url: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further keys of the `[judge]` table."""
    prefix: str = "--"
    """Beginning of an option's name in messages; empty for arguments in Python."""

    def table(self) -> JudgeTable:
        """The `[judge]` table with these options. Raises ConfigError or MachineError."""
        if self.url is not None:
            for option in fields(self):
                has_default = option.name in ("url", "more", "prefix")
                if not has_default and getattr(self, option.name) != option.default:
                    raise ConfigError(
                        f"--url: --{option.name.replace('_', '-')} must be set where the pool is "
                        "served"
                    )
            return validated(JudgeTable, {"url": [self.url]}, prefix="judge.")
        chosen: dict[str, str] = {
            name: value
            for name in ("isolation", "compile", "baseline", "protocol", "policy", "target")
            if (value := getattr(self, name)) is not None
        }
        for name, value in chosen.items():
            if name != "target":
                _require(f"{self.prefix}{name}", value, allowed=_allowed(name))
        for name in self.also:
            _require("--also", name, allowed=get_args(RulesName))
        workers = len(os.sched_getaffinity(0)) if self.workers is None else self.workers
        lists = {"also": list(self.also), "site_packages": list(self.site_packages)}
        values: dict[str, Any] = {
            "workers": workers,
            **lists,
            **chosen,
            **self._deadlines(),
            **self.more,
        }
        table = validated(JudgeTable, values, prefix="judge.")
        _require_torch()
        require_installed(table.site_packages, key=OPTION)
        require_target(table.target, key=f"{self.prefix}target")
        return table

    def _deadlines(self) -> dict[str, float]:
        if self.timeout is None:
            return {}
        if not 0 < self.timeout <= MAX_TIMEOUT_S:
            raise ConfigError(
                f"{self.prefix}timeout {self.timeout:g}: seconds above 0, "
                f"at most {MAX_TIMEOUT_S:.0f}"
            )
        return dict.fromkeys(PHASES, self.timeout)

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs to judge on; empty for the CPU, which judges for any target.

        Raises:
            ConfigError: the device is not a device name.
            MachineError: this machine does not have it.
        """
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


def _require_torch() -> None:
    """Raises MachineError without the packages of a judge."""
    for name in ("torch", "triton"):
        if find_spec(name) is None:
            raise MachineError(
                f"judge: {name} is not installed: {pip_install('judge')}, or make setup"
            )


def _allowed(key: str) -> tuple[str, ...]:
    """Values of a key of the `[judge]` table."""
    return get_args(JudgeTable.model_fields[key].annotation)


def checked_constants(values: Mapping[str, Any]) -> ConstantsTable:
    """A table of module constants, as `problems.overrides` has it. Raises ConfigError."""
    given: dict[str, Any] = {"overrides": values}
    return validated(ProblemsTable, given).overrides


def check_precision(precision: str) -> None:
    """Raises ConfigError if it is not one of PRECISIONS."""
    _require("--precision", precision, allowed=PRECISIONS)


def check_format(name: str) -> RowFormat:
    """The format of rows of this name. Raises ConfigError for any other."""
    allowed: tuple[RowFormat, ...] = get_args(RowFormat)
    for each in allowed:
        if name == each:
            return each
    raise ConfigError(f"--format {name}: one of {', '.join(allowed)}")


def _require(option: str, value: str, *, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"{option} {value}: one of {', '.join(allowed)}")
