"""Tools inside a turn: what is asked, what the model sees, what is stored and what is trained."""

import itertools
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from forge import records
from forge.data.answer_form import ToolForm
from forge.data.chat import ChatTemplate
from forge.data.server_chat import PlainChat, code_points
from forge.records.problem import ReferenceModule
from forge.rollout.batches import make_samples
from forge.rollout.play import GroupPlace, play_group
from forge.rollout.ports import Ports
from forge.rollout.prompter import TemplatePrompter
from forge.store.reader import open_run
from forge.tools.toolbox import Toolbox
from tests.prompting import PROMPTS
from tests.rollout.fakes import Recorder, batch_plan, problem, rules
from tests.store.storefactory import write_run

ANSWER = "```python\nclass ModelNew: ...\n```"
ASKED = "What does it take?\n\n```docs\ntl.dot\n```"
SOURCE = """N = 8
M = 4
class Model: ...
def get_inputs(): return [N, M]
def get_init_inputs(): return []
"""


@dataclass
class Scripted:
    """Says these messages, one after another, of one token a character."""

    messages: list[str]
    asked: list[records.Prompt] = field(default_factory=list)

    async def __call__(
        self, prompt: records.Prompt, *, n: int, **options: Any
    ) -> list[records.Completion]:
        self.asked.append(prompt)
        ids = code_points(self.messages.pop(0))
        one = records.Completion(
            token_ids=ids,
            logprobs=(-0.5,) * len(ids),
            finish=records.Finish.STOP,
            min_version=len(self.asked),
            max_version=len(self.asked),
        )
        return [one] * n


@dataclass
class Judges:
    """Finds every candidate wrong, and remembers what tools asked."""

    asked: list[tuple[ReferenceModule, str, bool]] = field(default_factory=list)

    async def judge(self, problem: ReferenceModule, code: str, **options: bool) -> records.Verdict:
        if options:
            self.asked.append((problem, code, options["outputs"]))
        return records.Verdict(
            status=records.Status.WRONG, reason=records.Reason.MISMATCH, detail="", is_compiled=True
        )


class ToolChat(PlainChat):
    """A template with a form for tools."""

    told: ClassVar[list[list[str]]] = []

    @property
    def tool_form(self) -> Any:
        return ToolForm(opening="<tool_call>", name_key="name", arguments_key="arguments")

    def prompt(self, messages: Any, *, tools: Any = ()) -> records.Prompt:
        self.told.append([each["function"]["name"] for each in tools])
        return super().prompt(messages)


async def play(
    *messages: str,
    max_calls: int = 2,
    max_turns: int = 1,
    room: int = 9000,
    chat: PlainChat | None = None,
) -> tuple[records.Group, Scripted, Judges]:
    policy, judges = Scripted(list(messages)), Judges()
    names = ("docs", "run", "profile")
    ports = Ports(
        generate=policy,
        judge=judges.judge,
        sink=Recorder(),
        prompter=TemplatePrompter(
            prompts=PROMPTS,
            chat=cast("ChatTemplate", chat or PlainChat("think")),
            context_tokens=room,
            max_completion_tokens=200,
            tools=names,
            max_calls=max_calls,
        ),
        tools=Toolbox(ask=judges.judge, max_calls=max_calls),
        is_apart=True,
    )
    place = GroupPlace(group_id=1, purpose=records.Purpose.TRAIN, stage=0, step=1)
    asked = replace(problem(), source=SOURCE)
    played = rules(group_size=1, max_turns=max_turns)
    group = await play_group(asked, place=place, rules=played, ports=ports)
    assert not policy.messages, "all was said"
    return group, policy, judges


def turn_of(group: records.Group) -> records.Turn:
    return group.trajectories[0].turns[0]


def runs(turn: records.Turn) -> list[tuple[bool, str]]:
    """The completion as texts: True for what was sampled."""
    pairs = zip(turn.completion.logprobs, turn.completion.token_ids, strict=True)
    grouped = itertools.groupby(pairs, key=lambda pair: not math.isnan(pair[0]))
    return [(is_own, "".join(chr(token) for _, token in each)) for is_own, each in grouped]


async def test_a_reply_is_between_two_messages_and_is_not_sampled() -> None:
    group, policy, _ = await play(ASKED, ANSWER)
    turn = turn_of(group)
    (first, asked), (second, reply), (third, answer) = runs(turn)
    assert (first, second, third) == (True, False, True)
    assert (asked, answer) == (ASKED, ANSWER)
    assert "docs> tl.dot(input, other" in reply
    assert "calls left in this turn: 1" in reply
    assert policy.asked[1].ids == policy.asked[0].ids + turn.completion.token_ids[: -len(ANSWER)]
    assert [one.role for one in policy.asked[1].messages][-3:] == ["user", "assistant", "user"]
    assert (turn.completion_text, turn.code) == (ANSWER, "class ModelNew: ...\n")
    assert turn.completion.num_tokens == len(ASKED) + len(ANSWER)
    assert (turn.completion.min_version, turn.completion.max_version) == (1, 2)
    (call,) = turn.calls
    assert (call.message, call.tool, call.arguments) == (ASKED, "docs", {"query": "tl.dot"})
    assert call.result in reply


async def test_a_conversation_tells_of_the_tools_and_shows_earlier_calls() -> None:
    _, policy, _ = await play(ASKED, ANSWER, ANSWER, max_turns=2)
    first, _, second = policy.asked
    for name in ("```docs", "```run", "```profile", "up to 2 times"):
        assert name in first.text
    shown = [one.content for one in second.messages]
    at = shown.index(ASKED)
    assert shown[at + 1 : at + 3] == [policy.asked[1].messages[-1].content, ANSWER]


async def test_a_template_for_tools_tells_of_them_and_has_their_replies() -> None:
    asked = '<tool_call>{"name": "docs", "arguments": {"query": "tl.dot"}}</tool_call>'
    ToolChat.told.clear()
    group, policy, _ = await play(asked, ANSWER, ANSWER, max_turns=2, chat=ToolChat("think"))
    assert "```docs" not in policy.asked[0].text
    assert ToolChat.told == [["docs", "run", "profile"]] * 2
    assert [one.role for one in policy.asked[1].messages][-2:] == ["assistant", "tool"]
    assert [one.role for one in policy.asked[2].messages][-4:-1] == [
        "assistant",
        "tool",
        "assistant",
    ]
    assert turn_of(group).calls[0].arguments == {"query": "tl.dot"}
    group, _, _ = await play(asked.replace("docs", "ls"), ANSWER, chat=ToolChat("think"))
    assert "no tool 'ls'; there are docs, run, profile" in turn_of(group).calls[0].result


async def test_calls_end_with_the_budget_of_a_turn() -> None:
    group, policy, _ = await play(ASKED, ASKED, ASKED)
    turn = turn_of(group)
    assert len(turn.calls) == 2
    assert "no call is left" in turn.calls[1].result
    assert turn.verdict.reason == records.Reason.NO_ENTRY_POINT
    seen = [prompt.ids for prompt in policy.asked]
    assert all(b[: len(a)] == a for a, b in itertools.pairwise(seen))


@pytest.mark.parametrize(
    ("message", "constants", "code"),
    [
        (f'{ANSWER}\n```run\n{{"N": 16}}\n```', "N = 16\nM = 4", "class ModelNew: ...\n"),
        (f"{ANSWER}\n```run\n```", "N = 8\nM = 4", "class ModelNew: ...\n"),
        (f"{ANSWER}\n```profile\n```", "N = 8\nM = 4", "class ModelNew: ...\n"),
    ],
)
async def test_judges_look_at_the_candidate_of_the_message(
    message: str, constants: str, code: str
) -> None:
    _, _, judges = await play(message, ANSWER)
    ((asked, candidate, looks),) = judges.asked
    assert asked.source.startswith(constants)
    assert (candidate, looks) == (code, True)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("```run\n```", "no candidate yet"),
        (f'{ANSWER}\n```run\n{{"K": 16}}\n```', "no constant 'K'; the problem has M, N"),
        (f'{ANSWER}\n```run\n{{"N": "16"}}\n```', "N: found '16'; a number"),
        (f"{ANSWER}\n```run\nN = 16\n```", "constants as JSON"),
        (f"{ANSWER}\n```run\n[16]\n```", "constants as JSON"),
        ("```docs\nzzqq\n```", "nothing about 'zzqq'"),
    ],
)
async def test_a_mistake_in_a_call_is_a_reply(message: str, said: str) -> None:
    group, _, judges = await play(message, ANSWER)
    assert said in turn_of(group).calls[0].result
    assert not judges.asked


@pytest.mark.parametrize("message", [ANSWER, f"<think>\n{ASKED}\n</think>\n{ANSWER}", "no", ""])
async def test_a_message_without_a_call_is_an_answer(message: str) -> None:
    group, _, _ = await play(message)
    assert turn_of(group).calls == ()


async def test_a_reply_without_room_is_a_shorter_one() -> None:
    _, policy, _ = await play(ASKED, ANSWER)
    least = len(policy.asked[0].ids) + len(ASKED) + 200
    group, _, _ = await play(ASKED, ANSWER, room=least + 100)
    assert "does not fit" in turn_of(group).calls[0].result
    group, _, _ = await play(ASKED, room=least)
    assert turn_of(group).calls == ()


async def test_tokens_of_replies_have_no_log_probability_in_a_sample() -> None:
    group, _, _ = await play(ASKED, ANSWER)
    trajectory = replace(group.trajectories[0], returns=(1.0,))
    other = replace(trajectory, rollout=1, returns=(0.0,))
    group = replace(group, trajectories=(trajectory, other), is_flat=False)
    sample = make_samples([group], batch_plan(), itertools.count())[0]
    own = [not math.isnan(one) for one in sample.logprobs]
    assert sum(own) == len(ASKED) + len(ANSWER) < len(own) == len(sample.completion_ids)


async def test_calls_are_stored_with_their_turn(tmp_path: Path) -> None:
    group, _, _ = await play(ASKED, ANSWER)
    root = await write_run(tmp_path / "toy-1", [replace(problem(), source=SOURCE), group])
    with open_run(root) as reader:
        (row,) = reader.rows("SELECT * FROM v_calls")
        tokens = reader.value("SELECT num_completion_tokens FROM turns")
    (call,) = turn_of(group).calls
    names = ("message", "tool", "result", "seconds")
    assert {name: row[name] for name in names} == {name: getattr(call, name) for name in names}
    assert isinstance(call, records.ToolCall)
    assert (row["turn_id"], row["arguments"]) == ("g1.r0.t0", '{"query":"tl.dot"}')
    assert tokens == len(ASKED) + len(ANSWER)
