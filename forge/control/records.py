"""The wire records of control.sock that people's commands use. The trainer's are in `train`.

GET  /status           -> {"ok": true, "run": ..., "stage": ..., ...}   the runner's progress
POST /stop {"reason"}  -> {}                                            as a first Ctrl-C
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def short(value: float) -> str:
    """Three digits, and no exponent for what may be thousands: 0.251, 3120."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStatus:
    """What a running supervisor says of itself."""

    run: str
    stage: str
    """What is going on: `prepare: pairs`, `sft-1`, ..."""
    done: int
    total: int
    unit: str
    elapsed_s: float
    eta_s: float | None
    """To the end of the stage."""
    tokens_per_s: float
    judged_per_s: float
    idle: Mapping[str, float] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LiveStatus:
        """Takes the fields it knows; a newer runner may send more."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})

    def to_line(self) -> str:
        """One line for a terminal."""
        parts = [f"{self.stage} {self.done}/{self.total} {self.unit}" if self.total else self.stage]
        parts += [f"{name} {short(value)}" for name, value in self.numbers.items()]
        parts += [f"{self.tokens_per_s:.0f} tok/s"] if self.tokens_per_s else []
        parts += [f"{self.judged_per_s:.1f} judged/s"] if self.judged_per_s else []
        if self.idle:
            parts.append("idle " + " ".join(f"{role} {v:.0%}" for role, v in self.idle.items()))
        if self.eta_s is not None:
            parts.append(f"ETA {int(self.eta_s) // 60}:{int(self.eta_s) % 60:02d}")
        return "  ".join(parts)
