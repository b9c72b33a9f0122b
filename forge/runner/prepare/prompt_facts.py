"""The prompts of a run: made from its settings and its judges' card, recorded, and read again.

The room of prompts imports no judge, so what prompts state about judges is collected here.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.config.schema import PromptTable
from forge.data.prompts.prompt_set import DeviceFacts, PromptFacts, PromptSet, make_prompts
from forge.errors import ConfigError
from forge.evalpool.judge.numbers.protocols import PROTOCOLS
from forge.evalpool.judge.numbers.tolerance import TOLERANCE
from forge.records import Event
from forge.store.reader import open_run
from forge.store.resume import events

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.config.schema import Experiment, JudgeTable
    from forge.process.devices import Gpu
    from forge.store.layout import RunPaths
    from forge.store.reader import RunReader

KIND = "prompts"
"""Kind of the event that holds a run's prompts."""
PRECISIONS = ("fp32", "fp16", "bf16")
SLOWER = {"PCIE", "NVL", "LAPTOP", "MOBILE", "D", "40GB", "MAXQ"}
"""Words in the name of a card that has other peaks than its namesake in `CARDS`."""
UNITS = {"fp32": ("fp32",), "tf32": ("tf32",), "half": ("fp16", "bf16")}
"""Dtypes by the unit that computes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPeaks:
    """Peaks of a card, from its vendor's data sheet."""

    num_sms: int
    """Multiprocessors (AMD: compute units)."""
    ghz: float
    """Boost clock."""
    gbps: float
    """Memory rate, in 1e9 bytes a second."""
    flops_per_clock: Mapping[str, int]
    """Dense FLOPs of one multiprocessor in a clock, by unit."""


_AMPERE = {"fp32": 128, "tf32": 1024, "half": 2048}
_CONSUMER = {"fp32": 256, "tf32": 512, "half": 1024}
_HOPPER = {"fp32": 256, "tf32": 2048, "half": 4096}
_BLACKWELL = {"fp32": 256, "tf32": 4096, "half": 8192}
_CDNA3 = {"fp32": 256, "tf32": 1024, "half": 2048}
CARDS: Mapping[str, CardPeaks] = {
    "A100": CardPeaks(num_sms=108, ghz=1.41, gbps=2039, flops_per_clock=_AMPERE),
    "H100": CardPeaks(num_sms=132, ghz=1.83, gbps=3352, flops_per_clock=_HOPPER),
    "H200": CardPeaks(num_sms=132, ghz=1.83, gbps=4800, flops_per_clock=_HOPPER),
    "B200": CardPeaks(num_sms=148, ghz=1.86, gbps=8000, flops_per_clock=_BLACKWELL),
    "L40S": CardPeaks(num_sms=142, ghz=2.52, gbps=864, flops_per_clock=_CONSUMER),
    "RTX3090": CardPeaks(num_sms=82, ghz=1.695, gbps=936, flops_per_clock=_CONSUMER),
    "RTX4090": CardPeaks(num_sms=128, ghz=2.52, gbps=1008, flops_per_clock=_CONSUMER),
    "RTX5090": CardPeaks(num_sms=170, ghz=2.407, gbps=1792, flops_per_clock=_CONSUMER),
    "MI300X": CardPeaks(num_sms=304, ghz=2.1, gbps=5300, flops_per_clock=_CDNA3),
}
"""By short name: the SXM and 80 GB versions where there are several."""


def prompts_of(experiment: Experiment, judges: Sequence[Gpu]) -> PromptSet:
    """The prompts of an experiment whose judges have these cards. Raises ConfigError for a template
    that cannot be used."""
    return prompts_for(experiment.prompt, experiment.judge, judges)


def prompts_for(prompt: PromptTable, judge: JudgeTable, judges: Sequence[Gpu]) -> PromptSet:
    """The prompts of `[prompt]` and `[judge]` for judges that have these cards. Raises ConfigError
    for a template that cannot be used."""
    tolerances = TOLERANCE if judge.protocol == "forge" else PROTOCOLS[judge.protocol].tolerances
    facts = PromptFacts(
        policy=judge.policy,
        protocol=judge.protocol,
        tolerances={name: tolerances[name] for name in PRECISIONS},
        is_timed=bool(judges) and judge.timing,
        reference_mode=judge.baseline,
        device=_device(judges),
    )
    return make_prompts(prompt, facts)


def card_facts(name: str, *, memory_bytes: int = 0) -> DeviceFacts:
    """Facts about a card by the name that its driver gives it, with peaks where they are known."""
    memory_gb = round(memory_bytes / (1 << 30)) or None
    card = CARDS.get(_card_name(name))
    if card is None:
        return DeviceFacts(name=name, memory_gb=memory_gb)
    clocks = card.num_sms * card.ghz / 1e3
    tflops = {
        dtype: round(card.flops_per_clock[unit] * clocks)
        for unit, dtypes in UNITS.items()
        for dtype in dtypes
    }
    return DeviceFacts(
        name=name,
        memory_gb=memory_gb,
        bandwidth_gbps=round(card.gbps),
        num_multiprocessors=card.num_sms,
        tflops=tflops,
    )


def recorded_prompts(reader: RunReader) -> PromptSet | None:
    """The prompts of a run's last attempt; None for runs of versions that recorded none."""
    return next(reversed(_recorded(reader)), None)


def prompts_by_hash(reader: RunReader) -> dict[str, PromptSet]:
    """Every set of prompts of a run by its hash, and the last one by an empty hash, for turns that
    have none. Versions that recorded none had the preset `tiny` alone."""
    recorded = _recorded(reader) or [make_prompts(PromptTable(preset="tiny"))]
    return {"": recorded[-1], **{each.hash: each for each in recorded}}


def prompts_of_run(paths: RunPaths, experiment: Experiment) -> PromptSet:
    """The prompts that a run used, or those of its experiment if it recorded none."""
    with open_run(paths) as reader:
        recorded = recorded_prompts(reader)
    return prompts_of(experiment, ()) if recorded is None else recorded


def _recorded(reader: RunReader) -> list[PromptSet]:
    try:
        return [PromptSet.from_json(event.data) for event in events(reader, kind=KIND)]
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{reader.paths.run_db}: an event of kind {KIND} is not as forge wrote it: {error!r}"
        ) from None


def to_event(prompts: PromptSet, *, before: PromptSet | None) -> Event | None:
    """The event that records a run's prompts; None if these are recorded already."""
    if before == prompts:
        return None
    message = f"prompts {prompts.hash} ({prompts.preset})"
    if before is not None and before.hash != prompts.hash:
        message = (
            f"[prompt]: the prompts have changed since the last attempt, {before.hash} is now "
            f"{prompts.hash}; rows of SFT and earlier turns keep the old ones"
        )
    return Event(at=time.time(), kind=KIND, message=message, data=prompts.to_json())


def _device(judges: Sequence[Gpu]) -> DeviceFacts | None:
    if not judges:
        return None
    return card_facts(judges[0].name, memory_bytes=judges[0].memory_bytes)


def _card_name(name: str) -> str:
    """The name in `CARDS` of a card; empty for others, and for slower cards of the same name.

    `NVIDIA H100 80GB HBM3` is H100, `NVIDIA GeForce RTX 4090` is RTX4090, `H100 PCIe` is none.
    """
    words = re.split(r"[\s_-]+", re.sub(r"\bRTX (?=\d)", "RTX", name).upper())
    if not SLOWER.isdisjoint(words):
        return ""
    return next((card for card in CARDS if card in words), "")
