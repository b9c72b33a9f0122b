"""Conversations of rows: columns that people have, thinking in fields, parts and tags, refusals;
and files of such rows as a run reads them."""

import json
import logging
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from forge.config.schema import PresetName, PromptTable
from forge.data.answers import extract
from forge.data.pairs.conversations import MAX_THOUGHTS, conversation, read_pairs, retag
from forge.data.pairs.rows import BadRow, Unfit
from forge.data.prompts.prompt_set import DeviceFacts, Exchange, PromptFacts, make_prompts
from forge.errors import ConfigError
from forge.records import Message, Pair, Problem, Reason, Split, Status, Verdict
from forge.records.problem import ReferenceModule
from tests.data.build.samples import example, trinity_row, write_rows
from tests.prompting import PROMPTS

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


DEEP = "[" * 100_000
"""Deeper than Python's JSON parser can go."""


def answered(text: str, **changes: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": text}], **changes}


def pairs_in(path: Path, rows: Any) -> list[Pair]:
    return read_pairs(write_rows(path, rows), prompts=PROMPTS)


def test_a_row_that_is_left_out_is_counted_with_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = {"messages": [{"role": "user", "content": "?"}]}
    with caplog.at_level(logging.INFO, logger="forge.data.pairs.conversations"):
        pairs = pairs_in(tmp_path / "rows.json", [answered("a"), asked, answered("a")])
    assert len(pairs) == 1
    assert "1 last message is no answer (first: rows.json, row 2)" in caplog.text
    assert "1 the same again (first: rows.json, row 3)" in caplog.text


def test_a_trace_becomes_thinking_and_a_kernel_in_the_block_that_prompts_ask_for() -> None:
    pair = example(trinity_row(model_reasoning="one program a row"), "trinity")
    answer = pair.messages[-1].content
    assert answer.startswith("<think>\none program a row\n</think>\n\n```python\nimport torch")
    assert extract(answer).is_ok
    assert "ModelNew" in pair.messages[0].content


def test_the_prompt_of_a_trace_names_its_entry_point() -> None:
    row = trinity_row(triton_code="def triton_kernel_wrapper(x):\n    return x")
    pair = example(row, "trinity")
    assert pair.messages[0].content == "Write triton_kernel_wrapper with Triton."


@pytest.mark.parametrize("as_text", [False, True])
def test_messages_are_not_changed(as_text: bool, tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "a module"},
        {"role": "assistant", "content": "a broken kernel"},
        {"role": "user", "content": "it is wrong"},
        {"role": "assistant", "content": "a kernel"},
    ]
    row = {"id": "one", "messages": json.dumps(messages) if as_text else messages}
    (pair,) = pairs_in(tmp_path / "rows.parquet", [row])
    assert [(m.role, m.content) for m in pair.messages] == [
        (m["role"], m["content"]) for m in messages
    ]
    assert (pair.problem_id, pair.num_turns) == ("one", 2)


@pytest.mark.parametrize("name", ["Model", "SumAggregator"])
def test_a_question_in_the_runs_templates_states_the_runs_facts(tmp_path: Path, name: str) -> None:
    source = f"class Helper:\n    ...\n\n\nclass {name}:\n    ..."
    problem = Problem(
        problem_id="", source=source, entry_point=name, family="", level=1, split=Split.SFT
    )
    table = PromptTable(thinking="")
    cpu = make_prompts(table, PromptFacts())
    card = make_prompts(table, PromptFacts(is_timed=True, device=DeviceFacts(name="H200")))
    refused = Verdict(status=Status.WRONG, reason=Reason.MISMATCH, detail="look at line 3")
    tried = [Exchange(completion_text="a", verdict=refused)]
    answer = Message(role="assistant", content="b")
    rows = [(*prompts.conversation(problem, tried), answer) for prompts in (cpu, card)]
    assert "H200" in rows[1][0].content
    other = [{"role": "system", "content": "of mine"}, {"role": "user", "content": source}]
    other.append({"role": "assistant", "content": "b"})
    made = [{"messages": [asdict(one) for one in rows[0]]}, {"messages": other}]
    answered: list[str] = []
    path = write_rows(tmp_path / "rows.jsonl", made)
    pairs = read_pairs(path, prompts=card, say=answered.append)
    assert pairs[0].messages == rows[1]
    assert [asdict(one) for one in pairs[1].messages] == other
    assert "1 with this run's prompts" in answered[0]
    read_pairs(write_rows(tmp_path / "same.jsonl", made), prompts=cpu, say=answered.append)
    assert "prompts" not in answered[1]


@pytest.mark.parametrize(("theirs", "ours"), [("standard", "tiny"), ("tiny", "standard")])
def test_rows_of_a_harvest_with_another_preset_ask_as_the_run_does(
    tmp_path: Path, theirs: PresetName, ours: PresetName
) -> None:
    problem = ReferenceModule(problem_id="", source="class Model:\n    ...", entry_point="Model")
    first = {name: make_prompts(PromptTable(preset=name, thinking="")) for name in (theirs, ours)}
    answer = Message(role="assistant", content="b")
    rows = {name: (*one.first_messages(problem), answer) for name, one in first.items()}
    made = [{"messages": [asdict(one) for one in rows[theirs]]}]
    path = write_rows(tmp_path / "rows.jsonl", made)
    (pair,) = read_pairs(path, prompts=first[ours])
    assert pair.messages == rows[ours]


def test_a_directory_is_searched_for_all_kinds_of_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "README.md").write_text("no rows")
    write_rows(tmp_path / "deep" / "b.parquet", [answered("b")])
    write_rows(tmp_path / "a.jsonl", [answered("a")])
    pairs = read_pairs(tmp_path, prompts=PROMPTS)
    assert [pair.messages[0].content for pair in pairs] == ["a", "b"]
    write_rows(tmp_path / "train.jsonl", [answered("c")])
    for name in ("dropped.jsonl", "heldout.jsonl"):
        (tmp_path / name).write_text('{"origin": "a:1"}')
        (pair,) = read_pairs(tmp_path, prompts=PROMPTS)
        assert pair.messages[0].content == "c", "of a build's output its rows to train on"
        (tmp_path / name).unlink()


@pytest.mark.parametrize(
    ("format", "row", "words"),
    [
        ("trinity", trinity_row(pytorch_code=3), "pytorch_code: found int; a text"),
        ("trinity", trinity_row(result={}), "no correctness"),
        ("trinity", trinity_row(result=DEEP), "no correctness"),
        ("trinity", trinity_row(model_reasoning=3), "model_reasoning: found int; a text"),
        ("trinity", trinity_row(model_reasoning="", thinking=7), "thinking: found int; a text"),
    ],
)
def test_a_row_of_other_columns_names_what_was_found(
    format: str, row: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadRow, match=words):
        example(row, format)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"python_code": "x"}], "row 1: .* `forge data harvest rows:PATH` makes"),
        ([answered("a"), trinity_row()], 'row 2: .* input.format = "trinity" makes'),
        ([{"pytorch_code": "", "turns": []}], 'row 1: .* input.format = "traces" makes'),
        ([{"messages": "no json"}], "text that is no JSON"),
        ([{"messages": DEEP}], "text that is no JSON"),
        (["a text"], "no object: found str; a JSON list of objects"),
        ([], "no row to train on"),
    ],
)
def test_a_file_without_conversations_is_an_error_of_one_line(
    rows: list[Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"data.path: .*rows.json.*{words}") as caught:
        pairs_in(tmp_path / "rows.json", rows)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_lines_of_json_end_only_at_newlines(mark: str, end: str, tmp_path: Path) -> None:
    texts = [f"a{inside}b" for inside in "\u2028\u2029\x85\x7f"]
    rows = [{"messages": [{"role": "assistant", "content": text}]} for text in texts]
    lines = end.join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "rows.jsonl").write_bytes((mark + lines).encode())
    pairs = read_pairs(tmp_path / "rows.jsonl", prompts=PROMPTS)
    assert [pair.messages[0].content for pair in pairs] == texts


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.csv", b"a,b", "found .csv; \\*.json"),
        ("rows.json", b"[{", "row 1: broken JSON: the rest of the list cannot"),
        ("rows.jsonl", DEEP.encode(), "row 1: broken JSON: the rest of the list cannot"),
        ("rows.jsonl", b'{"a": "\xff"}', "rows.jsonl, row 1: no text in UTF-8"),
        ("rows.parquet", b"PAR1", "no Parquet file"),
    ],
)
def test_a_file_that_does_not_match_its_suffix_is_an_error_of_one_line(
    name: str, content: bytes, words: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_pairs(tmp_path / name, prompts=PROMPTS)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_an_unreadable_file_is_an_error_of_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=f"data.path: .*{name}: cannot be read: "):
        read_pairs(tmp_path, prompts=PROMPTS)


def test_a_directory_without_rows_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file"):
        read_pairs(tmp_path, prompts=PROMPTS)
    with pytest.raises(ConfigError, match="no such file"):
        read_pairs(tmp_path / "rows.json", prompts=PROMPTS)
    (tmp_path / "rows.json").write_text("[]")
    (tmp_path / "more.json.gz").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"more.json.gz: found .gz; \*.json"):
        read_pairs(tmp_path, prompts=PROMPTS)
