"""Rows that train every answer of a conversation, token by token, under the templates of Qwen3,
Llama-3 and forge."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.config.schema import DataTable, SftStage
from forge.data.chat import ChatTemplate, TrainingRow
from forge.errors import ConfigError
from forge.records import Message, Pair
from forge.runner.stages.sft import write_rows

LLAMA = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
Runs = list[tuple[int, str]]


def conversation(*answers: str) -> tuple[Message, ...]:
    messages = [Message(role="system", content="S")]
    for number, answer in enumerate(answers):
        messages.append(Message(role="user", content=f"Q{number}"))
        messages.append(Message(role="assistant", content=answer))
    return tuple(messages)


THINKING = conversation(*(f"<think>\nt{n}\n</think>\n\nA{n}" for n in range(3)))
PLAIN = conversation("A0", "A1", "A2")


def template_dir(name: str, tiny_model: Path, at: Path) -> Path:
    import tokenizers
    import trl

    shutil.copytree(tiny_model, at)
    if name == "ours":
        return at
    text = (Path(str(trl.__file__)).parent / "chat_templates" / f"{name}.jinja").read_text()
    (at / "chat_template.jinja").write_text(text)
    if name.startswith("llama3"):
        tokenizer = tokenizers.Tokenizer.from_file(str(at / "tokenizer.json"))
        tokenizer.add_special_tokens(LLAMA)
        tokenizer.save(str(at / "tokenizer.json"))
        config = json.loads((at / "tokenizer_config.json").read_text())
        config |= {"bos_token": LLAMA[0], "eos_token": LLAMA[-1]}
        (at / "tokenizer_config.json").write_text(json.dumps(config))
    return at


@pytest.fixture(scope="module")
def chats(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChatTemplate]:
    at = tmp_path_factory.mktemp("templates")
    names = ("ours", "qwen3", "llama3")
    return {name: ChatTemplate.load(template_dir(name, tiny_model, at / name)) for name in names}


def runs(chat: ChatTemplate, row: TrainingRow) -> Runs:
    """The row as texts: 1 with what is trained, 0 with what is not."""
    marked = zip(row.completion_mask, row.input_ids, strict=True)
    return [
        (trained, chat.decode([token for _, token in tokens], skip_special=False))
        for trained, tokens in itertools.groupby(marked, key=lambda pair: pair[0])
    ]


def chatml(role: str, text: str, newline: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>{newline}"


def chatml_prompt(num: int, newline: str) -> str:
    """The prompt of the turn after `num` answers, with their thinking dropped."""
    text = chatml("system", "S", newline)
    for n in range(num):
        text += chatml("user", f"Q{n}", newline) + chatml("assistant", f"A{n}", newline)
    return text + chatml("user", f"Q{num}", newline) + "<|im_start|>assistant\n"


@pytest.mark.parametrize(("name", "newline"), [("ours", ""), ("qwen3", "\n")])
def test_each_turn_is_a_row_where_the_template_drops_earlier_thinking(
    chats: dict[str, ChatTemplate], name: str, newline: str
) -> None:
    chat = chats[name]
    assert [runs(chat, row) for row in chat.training_rows(THINKING)] == [
        [(0, chatml_prompt(n, newline)), (1, f"<think>\nt{n}\n</think>\n\nA{n}<|im_end|>")]
        for n in range(3)
    ]


def test_an_answer_without_thinking_has_the_empty_thinking_of_its_template(
    chats: dict[str, ChatTemplate],
) -> None:
    chat = chats["qwen3"]
    assert [runs(chat, row) for row in chat.training_rows(PLAIN)] == [
        [(0, chatml_prompt(n, "\n")), (1, f"<think>\n\n</think>\n\nA{n}<|im_end|>")]
        for n in range(3)
    ]


@pytest.mark.parametrize("messages", [THINKING, PLAIN], ids=["thinking", "plain"])
def test_masks_equal_those_of_transformers_where_a_template_marks_what_is_generated(
    chats: dict[str, ChatTemplate], tiny_model: Path, tmp_path: Path, messages: tuple[Message, ...]
) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(
        template_dir("llama3_training", tiny_model, tmp_path / "m")
    ).apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages],
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    (row,) = chats["llama3"].training_rows(messages)
    assert row.input_ids == theirs["input_ids"]
    assert row.completion_mask == theirs["assistant_masks"]


PIECES = ["<think>\n", "\n</think>\n\n", "\n", " ", "a", "1", "<|im_end|>", "<|eot_id|>", "    x"]


@pytest.mark.parametrize("name", ["ours", "qwen3", "llama3"])
@given(texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=5), min_size=1, max_size=4))
def test_every_turn_is_trained_once_after_the_prompt_that_an_engine_gets(
    chats: dict[str, ChatTemplate], name: str, texts: list[list[str]]
) -> None:
    chat = chats[name]
    messages = conversation(*map("".join, texts))
    found = list[tuple[tuple[int, ...], list[int]]]()
    for row in chat.training_rows(messages):
        at = 0
        for trained, group in itertools.groupby(row.completion_mask):
            num = len(list(group))
            if trained:
                found.append((tuple(row.input_ids[:at]), row.input_ids[at : at + num]))
            at += num
    turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
    alone = [chat.training_row(messages[: index + 1]) for index in turns]
    assert found == [
        (prompt := chat.prompt(messages[:index]).ids, row.input_ids[len(prompt) :])
        for index, row in zip(turns, alone, strict=True)
    ]


def test_a_stage_writes_a_row_per_turn_and_counts_each_row_that_is_too_long(
    chats: dict[str, ChatTemplate], tmp_path: Path
) -> None:
    pair = Pair(problem_id="p", messages=THINKING, num_turns=3)
    lengths = [len(row.input_ids) for row in chats["qwen3"].training_rows(THINKING)]

    def written(**keys: object) -> tuple[int, int]:
        stage = SftStage(kind="sft", steps=1, learning_rate=1e-3, **keys)  # type: ignore[arg-type]
        path = tmp_path / "rows.jsonl"
        (rows,) = write_rows([pair], chats["qwen3"], stage=stage, path=path, data=DataTable())
        return rows.num_rows, rows.num_dropped

    assert written() == (1, 0)
    assert written(loss_turns="all") == (3, 0)
    assert lengths == sorted(lengths)
    assert written(loss_turns="all", max_length=max(64, lengths[1])) == (
        sum(n <= max(64, lengths[1]) for n in lengths),
        sum(n > max(64, lengths[1]) for n in lengths),
    )


def test_own_answers_that_are_all_too_long_are_no_file_and_end_no_run(
    chats: dict[str, ChatTemplate], tmp_path: Path
) -> None:
    pair = Pair(problem_id="p", messages=THINKING, num_turns=3)
    keys: dict[str, Any] = {"steps": 1, "learning_rate": 1e-3, "loss_turns": "all"}
    stage = SftStage(kind="sft", source="search", **keys).model_copy(update={"max_length": 1})
    path = tmp_path / "rows.jsonl"
    (rows,) = write_rows([pair], chats["qwen3"], stage=stage, path=path, data=None)
    assert (rows.num_rows, rows.num_dropped, rows.problems) == (0, 3, set())
    assert not path.exists()
    with pytest.raises(ConfigError, match="all 3 rows are longer than max_length = 1"):
        write_rows([pair], chats["qwen3"], stage=stage, path=path, data=DataTable())
