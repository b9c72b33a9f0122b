"""SFT rows from files: pairs, rows that are left out, and errors of the file."""

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from forge.config.schema import PromptTable
from forge.data.answers import extract
from forge.data.pairs.conversations import read_pairs
from forge.data.pairs.rows import BadRow
from forge.data.prompts.prompt_set import DeviceFacts, Exchange, PromptFacts, make_prompts
from forge.errors import ConfigError
from forge.records import Message, Pair, Problem, Reason, Split, Status, Verdict
from tests.data.build.samples import example, trinity_row, write_rows
from tests.prompting import PROMPTS

DEEP = "[" * 100_000
"""Deeper than Python's JSON parser can go."""


def said(text: str, **changes: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": text}], **changes}


def read(path: Path, rows: Any) -> list[Pair]:
    return read_pairs(write_rows(path, rows), prompts=PROMPTS)


def test_a_row_that_is_left_out_is_counted_with_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = {"messages": [{"role": "user", "content": "?"}]}
    with caplog.at_level(logging.INFO, logger="forge.data.pairs.conversations"):
        pairs = read(tmp_path / "rows.json", [said("a"), asked, said("a")])
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
    (pair,) = read(tmp_path / "rows.parquet", [row])
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
    said: list[str] = []
    path = write_rows(tmp_path / "rows.jsonl", made)
    pairs = read_pairs(path, prompts=card, say=said.append)
    assert pairs[0].messages == rows[1]
    assert [asdict(one) for one in pairs[1].messages] == other
    assert "1 with this run's prompts" in said[0]
    read_pairs(write_rows(tmp_path / "same.jsonl", made), prompts=cpu, say=said.append)
    assert "prompts" not in said[1]


def test_a_directory_is_searched_for_all_kinds_of_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "README.md").write_text("no rows")
    write_rows(tmp_path / "deep" / "b.parquet", [said("b")])
    write_rows(tmp_path / "a.jsonl", [said("a")])
    pairs = read_pairs(tmp_path, prompts=PROMPTS)
    assert [pair.messages[0].content for pair in pairs] == ["a", "b"]
    write_rows(tmp_path / "train.jsonl", [said("c")])
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
        ([said("a"), trinity_row()], 'row 2: .* input.format = "trinity" makes'),
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
        read(tmp_path / "rows.json", rows)
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
