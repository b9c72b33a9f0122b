"""Conversations of rows: columns that people have, thinking in fields, parts and tags, refusals."""

import json
import math
from typing import Any

import pytest

from forge.data.pairs.conversations import MAX_THOUGHTS, conversation, retag
from forge.data.pairs.rows import BadRow, Unfit
from forge.records import Message

CODE = "```python\nclass ModelNew: ...\n```"
THOUGHT = f"<think>\nwhy\n</think>\n\n{CODE}"


def asked(answer: Any = CODE, **fields: Any) -> dict[str, Any]:
    """A row with one question, and fields of its answer."""
    answered = {"role": "assistant", "content": answer, **fields}
    return {"messages": [{"role": "user", "content": "ask"}, answered]}


def read(row: dict[str, Any], tag: str = "think") -> tuple[Message, ...]:
    """The row as a run reads it."""
    return retag(conversation(row, tag=tag), tag=tag)


def said(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in read(row)]


def answer_of(row: dict[str, Any], tag: str = "think") -> str:
    return read(row, tag)[-1].content


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "human", "content": "ask"}, {"role": "model", "content": CODE}]},
        {"conversations": [{"from": "human", "value": "ask", "weight": 0.0},
                           {"from": "gpt", "value": CODE}]},
        {"conversations": [{"role": "user", "content": "ask"}, {"from": "bing", "value": CODE}]},
        {"conversations": json.dumps([{"from": "user", "value": "ask"},
                                      {"from": "chatgpt", "value": CODE}])},
        {"prompt": "ask", "completion": CODE, "messages": None},
        {"prompt": "ask", "response": CODE},
        {"prompt": [{"role": "user", "content": "ask"}], "completion": CODE},
        {"prompt": "ask", "completion": [{"role": "assistant", "content": CODE}]},
        {"instruction": "ask", "input": "", "output": CODE},
        {"instruction": "ask", "input": None, "output": CODE, "system": "", "tools": []},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "ask", "image": None}]},
                      {"role": "assistant", "content": [CODE], "tool_calls": None, "weight": 1}]},
    ],
)  # fmt: skip
def test_a_row_is_read_by_its_columns(row: dict[str, Any]) -> None:
    assert said(row) == [("user", "ask"), ("assistant", CODE)]


def test_a_system_text_and_alpacas_input_are_read() -> None:
    row = {"instruction": "Do it.", "input": "x", "output": CODE, "system": "Be brief."}
    assert said(row)[:2] == [("system", "Be brief."), ("user", "Do it.\n\nx")]
    developer = {"role": "developer", "content": "Be brief."}
    assert said({"messages": [developer, *asked()["messages"]]})[0] == ("system", "Be brief.")


@pytest.mark.parametrize(
    "row",
    [
        asked(reasoning="why"),
        asked(reasoning_content="why", reasoning=None),
        asked(thinking="why\n", reasoning=" why"),
        asked(reasoning_details=[{"type": "reasoning.text", "text": "why"}]),
        asked("<think>why</think>" + CODE, reasoning="why"),
        asked(reasoning="<think>\nwhy\n</think>"),
        asked(reasoning="why</think>"),
        asked("<thinking>why</thinking>" + CODE),
        asked("why</think>\n\n" + CODE),
        asked("<think><think>why</think></think>" + CODE),
        asked("<think>\n</think><think>why</think>" + CODE),
        asked([{"type": "thinking", "thinking": "why"}, {"type": "text", "text": CODE}]),
        asked([{"type": "reasoning", "text": "why"}, CODE], thinking="why"),
        asked([{"type": "thinking", "thinking": [{"type": "text", "text": "why"}]}, CODE]),
        {"prompt": "ask", "completion": CODE, "reasoning": "why"},
    ],
)  # fmt: skip
def test_thinking_is_read_wherever_it_stands(row: dict[str, Any]) -> None:
    assert answer_of(row) == THOUGHT
    assert answer_of(row, tag="t") == THOUGHT.replace("think>", "t>")
    assert answer_of(row, tag="") == CODE


@pytest.mark.parametrize(
    "answer", ["x = '<think>'\n" + CODE, "```python\n# </think>\n```", "It ends `</think>`." + CODE]
)
def test_tags_in_code_or_after_words_are_no_thinking(answer: str) -> None:
    assert answer_of(asked(answer)) == answer


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (asked(reasoning="why", thinking="what"), "two different texts of thinking"),
        (asked("<think>what</think>" + CODE, reasoning="why"), "two different texts of thinking"),
        (asked("<think>a</think><think>b</think>" + CODE), "two different texts of thinking"),
        (asked("a</think>b</think>" + CODE), "two different texts of thinking"),
        (asked("<think>why"), "thinking without an end"),
        (asked("Well.<think>why</think>" + CODE), "thinking after the start of an answer"),
        (asked("<think>why</think>a<think>b</think>"), "thinking after the start of an answer"),
        (asked("", reasoning="why"), "thinking without an answer"),
        (asked(""), "an empty message of role assistant"),
        (asked(None), "content: found nothing; a text"),
        (asked(3), "content: found int; a text"),
        (asked(reasoning={"text": "why"}), "reasoning: found dict; a text"),
        (asked(tool_calls=[{"id": 1}]), "a message with tool_calls"),
        (asked(name="bob"), "a message with name"),
        (asked(weight=0), "weight: found 0; 1"),
        (asked([{"type": "image_url", "image_url": {}}]), "a part of type image_url; text"),
        (asked([{"type": "text", "text": CODE}, {"type": "thinking", "thinking": "x"}]),
         "thinking after text"),
        ({"messages": [{"role": "tool", "content": "3"}]}, "role: found tool; a message has"),
        ({"messages": [{"from": "function", "value": "3"}]}, "role: found function"),
        ({"messages": [{"from": "human", "value": None}]}, "value: found nothing"),
        ({"messages": ["ask"]}, "role: found nothing in str"),
        ({"messages": [{"role": "user", "content": "ask", "thinking": "x"}]}, "of role user"),
        ({"messages": [{"role": "user", "content": "ask"}]}, "last message is no answer"),
        ({"messages": []}, "messages: found list; a list of messages that is not empty"),
        (asked() | {"tools": "[{}]"}, "found column tools"),
        (asked() | {"chat_template_kwargs": {"a": 1}}, "found column chat_template_kwargs"),
        (asked() | {"reasoning": "why"}, "found column reasoning; thinking is read from the mess"),
        (asked() | {"conversations": []}, "found messages as well as conversations; a row has"),
        ({"messages": [{"role": "system", "content": "a"}, *asked()["messages"]], "system": "b"},
         "two system texts"),
        ({"text": "all in one"}, "found columns text; a row has messages or conversations"),
        ({"prompt": "ask", "chosen": "a", "rejected": "b"}, "found columns prompt, chosen, reject"),
        ({"prompt": "ask", "completion": CODE, "rejected": "b"}, "found column rejected"),
        ({"prompt": "ask", "completion": 3}, "completion: found int; a text"),
        ({"instruction": "ask", "input": math.nan, "output": CODE}, "input: found float; a text"),
        ({f"a\n{n}": n for n in range(99)}, r"found columns a 0, a 1.*…; a row has messages"),
    ],
)  # fmt: skip
def test_what_is_not_trained_on_is_refused_by_name(row: dict[str, Any], words: str) -> None:
    with pytest.raises((BadRow, Unfit), match=words) as caught:
        read(row)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("answer", ["<think>a</think>" * 130_000, "</think>" * 260_000])
def test_an_answer_of_2_mb_takes_a_few_passes(answer: str) -> None:
    with pytest.raises(Unfit, match=f"in more than {MAX_THOUGHTS} places"):
        read(asked(answer + CODE))
