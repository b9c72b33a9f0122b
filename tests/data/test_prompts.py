"""Prompts: every preset as text, for one problem and each kind of verdict; dropping attempts from a
full context.

`FORGE_SNAPSHOTS=write pytest tests/data/test_prompts.py` writes the files after a change;
never that of `tiny`, which the quickstart learns from.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.config.schema import PromptTable
from forge.config.schema.rollout import PresetName
from forge.data.prompts.prompt_set import (
    PRESETS,
    DeviceFacts,
    Exchange,
    PromptFacts,
    fit,
    make_prompts,
)
from forge.records import Message, Prompt
from tests.data.prompt_cases import PROBLEM, VERDICTS, show
from tests.prompting import PROMPTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.data.prompts.prompt_set import PromptSet

SNAPSHOTS = Path(__file__).with_name("snapshots")
TOLERANCES = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 1e-2}
CPU = PromptFacts(tolerances=TOLERANCES)
H100 = PromptFacts(
    policy="hybrid",
    protocol="kernelbench",
    tolerances=TOLERANCES,
    is_timed=True,
    reference_mode="compile",
    device=DeviceFacts(
        name="NVIDIA H100 80GB HBM3",
        memory_gb=80,
        bandwidth_gbps=3352,
        num_multiprocessors=132,
        tflops={"fp32": 62, "tf32": 495, "fp16": 989, "bf16": 989},
    ),
)
BARE = replace(H100, device=DeviceFacts(name="a card"))
NAMES = get_args(PresetName)


def prompts_of(preset: str, facts: PromptFacts = CPU, **keys: object) -> PromptSet:
    return make_prompts(PromptTable.model_validate({"preset": preset, **keys}), facts)


def compare(text: str, name: str) -> None:
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("FORGE_SNAPSHOTS") == "write" and name != "tiny":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("preset", NAMES)
def test_the_messages_of_a_preset_are_those_of_its_snapshot(preset: str) -> None:
    prompts = prompts_of(preset)
    text = "=== first messages\n" + show(prompts.first_messages(PROBLEM))
    for name, verdict in VERDICTS.items():
        text += f"=== feedback: {name}\n" + show((prompts.feedback_message(verdict),))
    compare(text, preset)


@pytest.mark.parametrize("preset", NAMES)
def test_the_first_messages_on_a_card_are_those_of_their_snapshot(preset: str) -> None:
    cases = {
        "on a card": prompts_of(preset, H100),
        "on an unknown card, no example, no thinking": prompts_of(
            preset, BARE, example=False, thinking=""
        ),
    }
    half = replace(PROBLEM, precision="fp16", entry_point="Net")
    text = "".join(f"=== {name}\n{show(each.first_messages(half))}" for name, each in cases.items())
    compare(text, f"{preset}-card")


def test_every_preset_has_a_folder_and_a_snapshot() -> None:
    assert {path.name for path in PRESETS.iterdir() if path.is_dir()} == set(NAMES)
    shown = {f"{name}{end}.txt" for name in NAMES for end in ("", "-card")}
    assert {path.name for path in SNAPSHOTS.iterdir()} == shown


def _attempts(num: int) -> list[Exchange]:
    return [Exchange(completion_text=f"attempt {i}", verdict=VERDICTS["wrong"]) for i in range(num)]


def _render(messages: Sequence[Message]) -> Prompt:
    """Renders each word as one token."""
    num_words = sum(len(message.content.split()) for message in messages)
    return Prompt(ids=(1,) * num_words, messages=tuple(messages))


def test_a_conversation_alternates_attempts_and_feedback() -> None:
    roles = [message.role for message in PROMPTS.conversation(PROBLEM, _attempts(2))]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]


def test_the_oldest_attempt_is_dropped_first() -> None:
    attempts = _attempts(3)
    full = len(_render(PROMPTS.conversation(PROBLEM, attempts)).ids)
    prompt = fit(PROMPTS, PROBLEM, attempts, budget_tokens=full - 1, render=_render)
    assert prompt is not None
    assert prompt.messages == PROMPTS.conversation(PROBLEM, attempts[1:])


def test_a_conversation_that_cannot_fit_gives_no_prompt() -> None:
    assert fit(PROMPTS, PROBLEM, _attempts(2), budget_tokens=1, render=_render) is None
    assert fit(PROMPTS, PROBLEM, [], budget_tokens=1, render=_render) is None


@given(num=st.integers(0, 4), budget=st.integers(1, 80))
def test_a_prompt_is_within_the_budget_and_keeps_the_newest_attempt(num: int, budget: int) -> None:
    attempts = _attempts(num)
    prompt = fit(PROMPTS, PROBLEM, attempts, budget_tokens=budget, render=_render)
    if prompt is None:
        return
    assert len(prompt.ids) <= budget
    assert prompt.messages[:2] == PROMPTS.first_messages(PROBLEM)
    if attempts:
        assert prompt.messages[-2].content == attempts[-1].completion_text
