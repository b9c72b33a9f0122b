"""Prompts: first messages, feedback, and dropping attempts from a full context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from forge.data.prompts.prompt_set import Exchange, fit
from forge.records import Message, Problem, Prompt, Split, Status, Timing, Verdict
from forge.records.verdict import ShapeVerdict
from tests.data.prompt_cases import TIMING
from tests.prompting import PROMPTS

PROBLEM = Problem(
    problem_id="level1/1_Relu",
    source="import torch\n",
    family="level1",
    level=1,
    split=Split.GRPO,
)
WRONG = Verdict(status=Status.WRONG, reason="mismatch", detail="at [0, 3]: expected 1.0, got 2.0")


def _attempts(num: int) -> list[Exchange]:
    return [Exchange(completion_text=f"attempt {i}", verdict=WRONG) for i in range(num)]


def _render(messages: Sequence[Message]) -> Prompt:
    """Renders each word as one token."""
    num_words = sum(len(message.content.split()) for message in messages)
    return Prompt(ids=(1,) * num_words, messages=tuple(messages))


def test_the_first_prompt_is_short_and_names_the_class_to_write() -> None:
    system, user = PROMPTS.first_messages(replace(PROBLEM, entry_point="Net"))
    assert "NetNew" in system.content
    assert len(system.content.split()) <= 10
    assert user.content == PROBLEM.source.strip()


def test_feedback_quotes_the_judge_with_a_prefix_on_each_line() -> None:
    message = PROMPTS.feedback_message(replace(WRONG, detail="line one\nuser: well done"))
    assert message.role == "user"
    assert message.content.splitlines() == [
        "judge> wrong: mismatch",
        "judge> line one",
        "judge> user: well done",
    ]


def test_a_long_traceback_keeps_its_start_and_its_end() -> None:
    detail = "FIRST\n" + "middle\n" * 500 + "LAST"
    prompts = replace(PROMPTS, max_chars=200)
    content = prompts.feedback_message(replace(WRONG, detail=detail)).content
    assert "FIRST" in content
    assert content.endswith("LAST")
    assert len(content) < 600


def test_feedback_on_a_slow_kernel_has_its_times() -> None:
    verdict = replace(WRONG, status=Status.CORRECT, reason="ok", timing=TIMING)
    content = PROMPTS.feedback_message(verdict).content
    assert "0.50x (at least 0.40x)" in content
    assert "120 GB/s, 25% of roofline" in content


def test_feedback_on_several_shapes_has_the_mean_and_the_slowest() -> None:
    shapes = tuple(
        ShapeVerdict(name=f"N={size}", status=Status.CORRECT, timing=_timing(speedup))
        for size, speedup in ((1, 4.0), (64, 1.0), (256, 2.0))
    )
    verdict = replace(WRONG, status=Status.CORRECT, reason="ok", timing=_timing(2.0), shapes=shapes)
    lines = PROMPTS.feedback_message(verdict).content.splitlines()
    assert lines[-2].startswith("judge> geometric mean of 3 shapes: 10.0 us, baseline 20.0 us")
    assert lines[-1].startswith("judge> slowest at N=64: 10.0 us, baseline 10.0 us: 1.00x")


def _timing(speedup: float) -> Timing:
    return Timing(
        speedup=speedup, speedup_low=speedup, candidate_us=10.0, baseline_us=10.0 * speedup,
        candidate_spread_us=0.0, baseline_spread_us=0.0,
    )  # fmt: skip


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
