"""Prompts: the facts that every preset states, for one problem and each kind of verdict. The
quickstart learns from those of `tiny`, which do not change."""

import hashlib
from dataclasses import replace
from typing import get_args

import pytest

from forge.config.schema import PresetName, PromptTable
from forge.data.prompts.prompt_set import (
    DeviceFacts,
    PromptFacts,
    PromptSet,
    make_prompts,
)
from forge.records import Message
from tests.data.prompt_cases import PROBLEM, VERDICTS

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


def show(messages: tuple[Message, ...]) -> str:
    return "".join(f"--- {each.role}\n{each.content}\n" for each in messages)


def prompts_of(preset: str, facts: PromptFacts = CPU, **keys: object) -> PromptSet:
    return make_prompts(PromptTable.model_validate({"preset": preset, **keys}), facts)


def test_the_prompts_of_the_quickstart_are_those_of_earlier_versions() -> None:
    """Figures of runs that are recorded stay comparable: a change of the digest is a decision."""
    prompts = prompts_of("tiny")
    text = show(prompts.first_messages(PROBLEM))
    for name, verdict in VERDICTS.items():
        text += f"{name}\n" + show((prompts.feedback_message(verdict),))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "591d75c9815caf3e"


@pytest.mark.parametrize("preset", NAMES)
def test_first_messages_have_the_problem_and_the_name_of_the_answer(preset: str) -> None:
    problem = replace(PROBLEM, precision="fp16", entry_point="Net")
    for facts in (CPU, H100, BARE):
        text = show(prompts_of(preset, facts).first_messages(problem))
        assert PROBLEM.source.strip() in text
        assert "NetNew" in text
        assert "ModelNew" not in text or "class ModelNew" in text, "the example's own name"


@pytest.mark.parametrize("preset", NAMES)
def test_a_preset_states_the_policy_and_the_card_that_it_names(preset: str) -> None:
    own, hybrid = (
        show(prompts_of(preset, replace(H100, policy=policy)).first_messages(PROBLEM))
        for policy in ("own", "hybrid")
    )
    assert ("rejected" in own, own != hybrid) == (preset != "tiny", preset != "tiny")
    stated = {"80 GB", "3352 GB/s", "132", "495", "989", "torch.compile", "atol = rtol = 0.0001"}
    unknown = show(prompts_of("standard", BARE).first_messages(PROBLEM))
    if preset == "standard":
        assert all(fact in own for fact in stated)
        assert "Device: a card" in unknown
        assert "TFLOP" not in unknown


@pytest.mark.parametrize("preset", NAMES)
def test_feedback_has_the_report_of_the_verdict(preset: str) -> None:
    said = {
        name: prompts_of(preset).feedback_message(verdict).content
        for name, verdict in VERDICTS.items()
    }
    for name, verdict in VERDICTS.items():
        assert f"judge> {verdict.status}: {verdict.reason}" in said[name]
        lines = verdict.detail.splitlines()
        assert all(f"judge> {line}" in said[name] for line in lines[:1] + lines[-1:])
    assert "judge> ..." in said["long compile error"]
    assert len(said["long compile error"]) < len(VERDICTS["long compile error"].detail)
    assert "4.0 us, baseline 10.0 us: 2.50x (at least 2.40x), 120 GB/s" in said["fast"]
    assert "slowest at N=64" in said["several shapes"]
