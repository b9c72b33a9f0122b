"""The wire records of control.sock that people's commands use. The trainer's are in `train`.

GET  /status           -> {"ok": true, "run": ..., "stage": ..., ...}   the runner's progress
POST /stop {"reason"}  -> {}                                            as a first Ctrl-C
POST /save             -> {"message": ...}    a checkpoint at the end of the step, or 400
POST /evaluate         -> {"message": ...}    an evaluation after the step, or 400
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Role = Literal["supervisor", "trainer", "serve", "judge"]
Health = Literal["green", "yellow", "red"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentStatus:
    """One process of a run as its supervisor sees it, at most a second or two old."""

    name: str
    """`supervisor`, `trainer`, `serve-0`, `judge-1`."""
    role: Role
    device: str
    """`cpu`, or what it was pinned to: `GPU 0`, `GPU 2,3`; the address of a remote one."""
    phase: str
    """What it is doing: `starting`, `training`, `waiting for a batch`, `asleep`, `gone`, ..."""
    health: Health
    """yellow: a queue at its bound, memory over 90 %, just restarted. red: failed, recovering, or
    silent beyond its stall limit."""
    why: str
    """The figure that decides: `queue 256 of 256`, `memory 93 % of 80 GB`, `restarted 20 s ago`.
    Empty for green."""
    memory_bytes: int | None
    """Resident, its own children included; None for one that is not there or not here."""
    gpu_memory_bytes: int | None
    """What it holds of its cards; None without a card, or where the driver does not tell."""
    gpu_use: float | None
    """0..1, of its cards, whoever uses them; None as above."""
    progress_age_s: float | None
    """Since it last answered or finished something; None before that."""
    num_restarts: int
    last_words: str
    """The last line of its log, printable."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ComponentStatus:
        """Takes the fields it knows; a newer runner may send more."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})

    def to_json(self) -> dict[str, Any]:
        """As it goes over the socket."""
        return asdict(self)


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
    """A verdict that the cache has is not judged; `Standing.turns_per_s` counts its turn."""
    idle: Mapping[str, float] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    components: Sequence[ComponentStatus] = ()
    """The supervisor first, then by role and name."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LiveStatus:
        """Takes the fields it knows; a newer runner may send more."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        components = [ComponentStatus.from_json(each) for each in known.pop("components", ())]
        return cls(**known, components=components)
