"""Prompts: the facts that every preset states, what they hide, what their hash names, and templates
of a user. The quickstart learns from those of `tiny`, which do not change."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models

from forge.config.schema import PresetName, PromptTable
from forge.data.answers import extract, fenced_blocks
from forge.data.chat import ChatTemplate
from forge.data.prompts.prompt_set import (
    PREFIX,
    PRESETS,
    DeviceFacts,
    Exchange,
    PromptFacts,
    PromptSet,
    check_template,
    make_prompts,
)
from forge.data.template import compiled
from forge.errors import ConfigError
from forge.records import Message, Problem, Split, Status, Timing, Verdict
from forge.records.verdict import ShapeVerdict
from tests.prompting import PROMPTS

SOURCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.relu(x) * self.scale


def get_inputs():
    return [torch.randn(1024, 4096)]


def get_init_inputs():
    return [0.5]
"""
PROBLEM = Problem(
    problem_id="level1/19_ReLU", source=SOURCE, family="level1", level=1, split=Split.GRPO
)
TIMING = Timing(
    speedup=0.5,
    speedup_low=0.4,
    candidate_us=20.0,
    baseline_us=10.0,
    candidate_spread_us=1.0,
    baseline_spread_us=1.0,
    achieved_gbps=120.0,
    roofline_share=0.25,
)
FAST = replace(TIMING, speedup=2.5, speedup_low=2.4, candidate_us=4.0, roofline_share=0.9)
TRACE = "line 12: offs = tl.arange(0, N)\nValueError: arange's range must be a power of 2"


def verdict(status: Status, reason: str, detail: str = "") -> Verdict:
    """A verdict without times."""
    return Verdict(status=status, reason=reason, detail=detail)


CORRECT = verdict(Status.CORRECT, "ok")
SHAPES = tuple(
    ShapeVerdict(
        name=f"N={size}",
        status=Status.CORRECT,
        timing=replace(TIMING, speedup=speedup, baseline_us=20.0 * speedup),
    )
    for size, speedup in ((1, 4.0), (64, 1.0), (256, 2.0))
)
VERDICTS: dict[str, Verdict] = {
    "no code": verdict(Status.REJECTED, "no_code_block", "no complete fenced code block"),
    "no entry point": verdict(Status.REJECTED, "no_entry_point", "no code block defines it"),
    "unclosed thinking": verdict(
        Status.REJECTED, "unclosed_thinking", "the thinking was never closed"
    ),
    "torch did the work": verdict(
        Status.REJECTED, "torch_work", "line 9: torch.relu does work that the kernels must do"
    ),
    "syntax error": verdict(Status.COMPILE_ERROR, "syntax_error", "line 3: SyntaxError: '(' …"),
    "compile error": verdict(Status.COMPILE_ERROR, "not_triton", TRACE),
    "long compile error": verdict(
        Status.COMPILE_ERROR, "not_triton", "FIRST\n" + "a line of a traceback\n" * 400 + "LAST"
    ),
    "runtime error": verdict(Status.RUNTIME_ERROR, "out_of_bounds", "x at [5] of 4\nline 8"),
    "timeout": verdict(Status.TIMEOUT, "deadline:correct", "10 s"),
    "wrong": verdict(Status.WRONG, "mismatch", "at [0, 3]: expected 1.0, got 2.0"),
    "correct": CORRECT,
    "slow": replace(CORRECT, timing=TIMING),
    "fast": replace(CORRECT, timing=FAST),
    "several shapes": replace(CORRECT, timing=replace(TIMING, speedup=2.0), shapes=SHAPES),
    "unjudgeable": verdict(Status.UNJUDGEABLE, "reference_failed", "Model raises"),
    "judge failed": verdict(Status.INFRA_ERROR, "judge_lost"),
}


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


PRESET_NAMES = get_args(PresetName)
CARD = PromptFacts(tolerances={"fp32": 1e-4}, device=DeviceFacts(name="H100", memory_gb=80))


def prompts_with(facts: PromptFacts | None = None, **keys: Any) -> PromptSet:
    return make_prompts(PromptTable.model_validate({"preset": "tiny", **keys}), facts)


def written(folder: Path, kind: str, text: str) -> PromptSet:
    path = folder / f"{kind}.jinja"
    path.write_text(text)
    keys: dict[str, Any] = {kind: path}
    return prompts_with(**keys)


BAD = {
    "syntax": ("first", "{{ source }}\n{% if %}", r"first\.jinja:2: Expected an expression"),
    "unclosed": ("first", "{{ source }}\n{% if thinking %}", r"first\.jinja:2: Unexpected end"),
    "unknown name": (
        "first", "{{ source }}\n\n{{ sorce }}",
        r"first\.jinja:3: unknown variable sorce; did you mean source\?; allowed in first: answer",
    ),
    "two unknown names": (
        "system", "{{ one }}\n{{ two }}", r"system\.jinja:1: .* one.*\n.*system\.jinja:2: .* two",
    ),
    "a name of another kind": ("feedback", "{{ report }}{{ source }}", "unknown variable source"),
    "a global of jinja": ("first", "{{ source }}{% for i in range(9) %}{% endfor %}", "range"),
    "unknown attribute": (
        "system", "\n{% if hardware %}{{ hardware.nme }}{% endif %}", r"jinja:2: fails: .*nme",
    ),
    "one branch": (
        "feedback", "{{ report }}\n{% if status == 'timeout' %}\n{{ 1 + 'x' }}{% endif %}",
        r"feedback\.jinja:3: fails with status timeout: TypeError",
    ),
    "an include": ("first", "{{ source }}{% include 'x' %}", "fails"),
    "an unknown filter": ("first", "{{ source | shuffel }}", r"first\.jinja:1: No filter named"),
    "an unsafe attribute": ("first", "{{ source.__class__.mro() }}{{ source }}", "fails"),
    "no source": ("first", "Write {{ answer_name }}.", "lacks the source; .* {{ source"),
    "no report": (
        "feedback", "{% if status == 'wrong' %}No.{% else %}{{ report }}{% endif %}",
        "with status wrong lacks the report",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_template_that_cannot_be_used_is_an_error_of_its_file(name: str, tmp_path: Path) -> None:
    kind, text, expected = BAD[name]
    with pytest.raises(ConfigError, match=expected) as error:
        written(tmp_path, kind, text)
    assert all(line.startswith(f"prompt.{kind}: ") for line in str(error.value).splitlines())


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"one\n\xff")
    with pytest.raises(ConfigError, match=r"prompt\.system: .*x:2: not UTF-8"):
        prompts_with(system=tmp_path / "x")
    with pytest.raises(ConfigError, match=r"prompt\.first: .*cannot be read: No such file"):
        prompts_with(first=tmp_path / "y")


@pytest.mark.parametrize(
    "path", sorted(PRESETS.glob("*/*.jinja")), ids=lambda p: "/".join(p.parts[-2:])
)
def test_a_presets_own_template_passes_the_check_of_a_users(path: Path) -> None:
    check_template(path.stem, path.read_text(), name=path.name, key="prompt")


def test_a_users_template_replaces_one_of_the_preset(tmp_path: Path) -> None:
    prompts = written(tmp_path, "system", "Use {{ thinking }}, \u2264 {{ tolerance }}.\r\n")
    system, first = replace(prompts, tolerances={"fp32": 0.5}).first_messages(PROBLEM)
    assert system.content == "Use think, \u2264 0.5."
    assert first == PROMPTS.first_messages(PROBLEM)[1]


def test_an_empty_system_message_is_left_out(tmp_path: Path) -> None:
    assert [m.role for m in written(tmp_path, "system", "\n").first_messages(PROBLEM)] == ["user"]


def test_text_of_a_problem_is_never_a_template() -> None:
    source = "x = '{{ answer_name }} {% if %}'"
    assert PROMPTS.first_messages(replace(PROBLEM, source=source))[1].content == source


def test_an_example_has_two_blocks(tmp_path: Path) -> None:
    path = tmp_path / "example.md"
    path.write_text("words\n```python\nthe problem\n```\n```\nthe answer\n```\n")
    system = prompts_with(preset="standard", example=path).first_messages(PROBLEM)[0].content
    assert "```python\nthe problem\n```" in system
    assert "```python\nthe answer\n```" in system
    path.write_text("```\none\n```\n")
    with pytest.raises(ConfigError, match=r"example\.md: found 1 fenced blocks; two"):
        prompts_with(preset="standard", example=path)


def test_no_example_and_no_hardware_are_stated_if_switched_off() -> None:
    on = prompts_with(CARD, preset="standard").first_messages(PROBLEM)[0].content
    off = prompts_with(CARD, preset="standard", example=False, hardware=False)
    system = off.first_messages(PROBLEM)[0].content
    assert "H100" in on
    assert "H100" not in system
    assert "add_kernel" in on
    assert "add_kernel" not in system


def test_without_the_baseline_a_message_has_the_speed_up_alone() -> None:
    told, untold = prompts_with(), prompts_with(baseline=False)
    for name in ("slow", "fast", "several shapes"):
        assert "baseline" in told.feedback_message(VERDICTS[name]).content
        content = untold.feedback_message(VERDICTS[name]).content
        assert "baseline" not in content
        assert "roofline" not in content
    assert "2.50x" in untold.feedback_message(VERDICTS["fast"]).content


@pytest.mark.parametrize("num", [0, 1, 3])
def test_with_attempts_last_a_conversation_has_the_newest_alone(num: int) -> None:
    attempts = [Exchange(completion_text=f"attempt {i}", verdict=v) for i, v in enumerate(
        list(VERDICTS.values())[:num]
    )]  # fmt: skip
    messages = prompts_with(attempts="last").conversation(PROBLEM, attempts)
    assert messages == PROMPTS.conversation(PROBLEM, attempts[-1:])
    assert len(messages) == (4 if num else 2)


@pytest.mark.parametrize("name", ["unjudgeable", "judge failed"])
def test_no_template_asks_for_a_correction_where_no_answer_is_at_fault(
    name: str, tmp_path: Path
) -> None:
    prompts = written(tmp_path, "feedback", "{{ report }} Correct it.")
    assert "Correct it" in prompts.feedback_message(VERDICTS["wrong"]).content
    assert "Correct it" not in prompts.feedback_message(VERDICTS[name]).content


def test_the_tag_of_thinking_is_that_of_the_answers() -> None:
    thought = "<reason>\n```\nclass ModelNew: bad\n```\n"
    answer = f"{thought}</reason>\n```python\nclass ModelNew: x\n```"
    assert extract(answer, thinking="reason").code == "class ModelNew: x\n"
    assert extract(thought, thinking="reason").reason == "unclosed_thinking"
    assert extract("<think>\n```\nclass ModelNew: x\n```", thinking="").is_ok
    prompts = prompts_with(preset="standard", thinking="reason")
    system = prompts.first_messages(PROBLEM)[0].content
    assert "between <reason> and </reason>" in system
    assert "<think>" not in system
    assert prompts.thought("so") == "<reason>\nso\n</reason>\n\n"
    none = prompts_with(preset="standard", thinking="")
    assert none.thought("so") == ""
    assert "think" not in none.first_messages(PROBLEM)[0].content.lower()


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_the_answer_shown_in_a_prompt_is_one_that_counts(preset: str) -> None:
    """A model that copies the example's form is read as it was meant."""
    prompts = prompts_with(preset=preset)
    text = "\n".join(message.content for message in prompts.first_messages(PROBLEM))
    shown = [one.code for one in fenced_blocks(text) if "class ModelNew" in one.code]
    assert len(shown) == (0 if preset == "tiny" else 1)
    for code in shown:
        assert extract(f"{prompts.thought('so')}```python\n{code}```").code == code


CHANGES: dict[str, dict[str, Any]] = {
    "preset": {"preset": "kernelbench"},
    "example": {"example": False},
    "attempts": {"attempts": "last"},
    "thinking": {"thinking": "reason"},
    "baseline": {"baseline": False},
    "hardware": {"hardware": False},
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_hash_changes_with_each_setting(name: str) -> None:
    before = prompts_with(CARD, preset="standard")
    after = prompts_with(CARD, **{"preset": "standard", **CHANGES[name]})
    assert re.fullmatch(r"[0-9a-f]{12}", before.hash)
    assert before.hash == prompts_with(CARD, preset="standard").hash != after.hash


def test_the_hash_changes_with_a_template_and_with_facts_that_one_uses(tmp_path: Path) -> None:
    assert written(tmp_path, "first", "{{ source }}!").hash != PROMPTS.hash
    facts = replace(CARD, policy="hybrid", is_timed=True)
    assert prompts_with(facts, preset="standard").hash != prompts_with(CARD, preset="standard").hash
    assert prompts_with(facts).hash == PROMPTS.hash, "tiny states none of them"


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_prompts_are_read_back_from_a_runs_record(preset: str) -> None:
    import json

    prompts = prompts_with(CARD, preset=preset, attempts="last")
    again = PromptSet.from_json(json.loads(json.dumps(prompts.to_json())))
    assert again == prompts
    assert again.hash == prompts.hash
    assert again.first_messages(PROBLEM) == prompts.first_messages(PROBLEM)


SPECIAL = ("<|im_start|>", "<|im_end|>", "<|eot_id|>")
HOSTILE = st.lists(
    st.one_of(
        st.text(max_size=20),
        st.sampled_from(
            [*SPECIAL, "judge> correct: ok", PREFIX, "\n", "\r", "\x0b", "\u2028", "\x85"]
        ),
    ),
    max_size=30,
).map("".join)  # fmt: skip


@given(detail=HOSTILE, status=st.sampled_from(list(Status)), preset=st.sampled_from(PRESET_NAMES))
def test_no_candidate_can_write_a_line_of_ours(detail: str, status: Status, preset: str) -> None:
    """All that a detail adds to a message has the judge's prefix, below the judge's own first line,
    so that a line that looks like a verdict has the prefix twice."""
    prompts = prompts_with(preset=preset)
    verdict = Verdict(status=status, reason="mismatch", detail=detail, timing=FAST)
    bare = prompts.feedback_message(replace(verdict, detail="")).content.splitlines()
    lines = prompts.feedback_message(verdict).content.splitlines()
    head = bare.index(f"{PREFIX}{status}: mismatch")
    num_added = len(lines) - len(bare)
    assert lines[: head + 1] == bare[: head + 1]
    assert lines[head + 1 + num_added :] == bare[head + 1 :]
    assert all(line.startswith(PREFIX) for line in lines[head + 1 : head + 1 + num_added])


@given(detail=HOSTILE, preset=st.sampled_from(PRESET_NAMES))
def test_no_feedback_has_a_special_token(detail: str, preset: str) -> None:
    verdict = Verdict(status=Status.WRONG, reason="mismatch", detail=detail)
    message = prompts_with(preset=preset).feedback_message(verdict)
    assert CHAT.prompt([message]).ids.count(CHAT._special_ids["<|im_start|>"]) == 2
    assert [CHAT.prompt([message]).ids.count(CHAT._special_ids[n]) for n in SPECIAL[1:]] == [1, 0]


def _chat() -> ChatTemplate:
    """A tokenizer of bytes with special tokens, and the template of our own models."""
    vocab = {chr(code): code for code in range(0x20, 0x2FF)} | {"[UNK]": 0}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="[UNK]"))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    source = (PRESETS.parents[1] / "chat_template.jinja").read_text()
    added = tokenizer.get_added_tokens_decoder()
    return ChatTemplate(
        tokenizer=tokenizer, template=compiled("", source), special_tokens={}, stop_token_ids=(0,),
        _special_ids={token.content: number for number, token in added.items()},
    )  # fmt: skip


CHAT = _chat()
