"""The prompts of a run: made from its settings and its judges' card, recorded, and read again.

The room of prompts imports no judge, so what prompts state about judges is collected here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from forge.config.schema import Experiment, JudgeTable, PromptTable
from forge.data.prompts.prompt_set import DeviceFacts, PromptFacts, PromptSet, make_prompts
from forge.errors import ConfigError
from forge.evalpool.cards import FLOPS_PER_CLOCK, find_card
from forge.evalpool.judge.numbers.protocols import PROTOCOLS, TOLERANCE
from forge.process.devices import Gpu
from forge.records import Event
from forge.store.layout import RunPaths
from forge.store.reader import RunReader, open_run
from forge.store.resume import events

KIND = "prompts"
PRECISIONS = ("fp32", "fp16", "bf16")
UNITS = {"fp32": ("fp32",), "tf32": ("tf32",), "half": ("fp16", "bf16")}


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
        device=card_facts(judges[0].name, memory_bytes=judges[0].memory_bytes) if judges else None,
    )
    return make_prompts(prompt, facts)


def card_facts(name: str, *, memory_bytes: int = 0) -> DeviceFacts:
    """Facts about a card by the name that its driver gives it, with peaks where they are known."""
    memory_gb = round(memory_bytes / (1 << 30)) or None
    card = find_card(name)
    if card is None:
        return DeviceFacts(name=name, memory_gb=memory_gb)
    clocks = card.num_sms * card.ghz / 1e3
    tflops = {
        dtype: round(FLOPS_PER_CLOCK[card.arch][unit] * clocks)
        for unit, dtypes in UNITS.items()
        for dtype in dtypes
    }
    return DeviceFacts(
        name=name, memory_gb=memory_gb, bandwidth_gbps=round(card.gbps),
        num_multiprocessors=card.num_sms, tflops=tflops,
    )  # fmt: skip


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
    return recorded or prompts_for(experiment.prompt, experiment.judge, ())


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
