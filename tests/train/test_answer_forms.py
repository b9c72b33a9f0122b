"""Rows and answers under templates with traps: an opened tag, a switch, channels, several ends."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from forge.config.schema import DataTable, SftStage
from forge.data.answers import extract
from forge.data.chat import ChatTemplate
from forge.data.server_chat import split_thinking
from forge.errors import ConfigError
from forge.records import Message, Pair, Reason
from forge.runner.stages.sft import require_roles, write_rows
from forge.serve.engine.endpoints import Deltas

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|over|>{% endfor %}"
ASKED = "{% if add_generation_prompt %}[assistant]"
PLAIN = TURNS + ASKED + "{% endif %}"
SPACED = PLAIN.replace("]{{ m.content }}", "] {{ m.content }}")
OPENED = TURNS + ASKED + "<think>\n{% endif %}"
SWITCH = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}"
    "{% if '</think>' in m.content %}{% set parts = m.content.split('</think>') %}"
    "<think>{{ parts[0].split('<think>')[-1] }}</think>{{ parts[1] }}"
    "{% else %}</think>{{ m.content }}{% endif %}{% else %}{{ m.content }}{% endif %}"
    "<|over|>{% endfor %}"
    + ASKED
    + "{% if thinking %}<think>{% else %}</think>{% endif %}{% endif %}"
)
"""As DeepSeek-V3.1 and GLM-4.7: a prompt without thinking ends it at once."""
CHANNELS = (
    "{% for m in messages %}<|turn|>{{ m.role }}{% if m.role == 'assistant' %}"
    "{% if m.thinking and loop.last %}<|at|>analysis<|text|>{{ m.thinking }}<|next|><|turn|>"
    "assistant{% endif %}<|at|>final<|text|>{{ m.content }}"
    "{{ '<|over|>' if loop.last else '<|next|>' }}"
    "{% else %}<|text|>{{ m.content }}<|next|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant{% endif %}"
)
"""As gpt-oss: thinking and answer are messages of their own."""
AT_ONCE = PLAIN.replace(
    "[assistant]{%", "[assistant]{% if not thinking %}<think></think>{% endif %}{%"
)
"""As Hunyuan: the empty thinking of a prompt is no part of the conversation."""
EMPTY = TURNS.replace("]{{", "]{% if m.role == 'assistant' %}<think></think>{% endif %}{{") + ASKED
EMPTY += "{% endif %}"
"""As Kimi K2 Thinking: answers of a conversation begin with thinking that is empty."""
OWN = (
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<own:think>"
    "{{ m.reasoning_content }}</own:think>{% endif %}{{ m.content }}<|over|>{% endfor %}"
    + ASKED
    + "<own:think>{% endif %}"
)
"""A field of thinking, a tag of the model's own, and a prompt that opens it."""
MOVED = (
    "{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}[user] "
    "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}"
    "{{ m.content }}[assistant]{% else %} {{ m.content }}<|over|>{% endif %}{% endfor %}"
)
"""As Mistral 0.3: the system's text stands in the last question, until that has an answer."""
RESPONSE = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}"
    "{% set parts = m.content.split('</think>') %}"
    "{% if parts[1:] %}<think>{{ parts[0].split('<think>')[-1] }}</think>{% endif %}"
    "<response>{{ parts[-1].strip() }}</response>{% else %}{{ m.content }}{% endif %}<|over|>"
    "{% endfor %}" + ASKED + "<think>\n{% endif %}"
)
"""As ERNIE: words around the answer that follows its thinking."""
PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'thinking' %}"
    "{{ '[THINK]' + part.thinking + '[/THINK]' }}{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}<|over|>{% endfor %}" + ASKED + "{% endif %}"
)
"""As Magistral: thinking is a part of the content, in tags of the model's own."""
HEADER = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}><|over|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
"""A header that looks like a tag, white space that the whole conversation does not have, and words
before the end."""
SPECIAL = (
    "<eos>",
    "<|over|>",
    "<|turn|>",
    "<|at|>",
    "<|text|>",
    "<|next|>",
    "[user]",
    "[assistant]",
    "[THINK]",
    "[/THINK]",
)
CODE = "```python\nclass ModelNew: pass\n```"
THINKING = f"<think>\nplan\n</think>\n\n{CODE}"


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., ChatTemplate]:
    def made(
        template: str, *, stops: Any = "<eos>", is_special: bool = False, **options: Any
    ) -> ChatTemplate:
        letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ĊĊ"]  # two line ends are a token
        vocab = {c: i for i, c in enumerate(letters)}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("Ċ", "Ċ")]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
        tags = [AddedToken(name, special=is_special) for name in ("<think>", "</think>")]
        (tokenizer.add_special_tokens if is_special else tokenizer.add_tokens)(tags)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
        ids = [tokenizer.token_to_id(name) for name in stops.split()]
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
        (tmp_path / "chat_template.jinja").write_text(template)
        return ChatTemplate.load(tmp_path, **options)

    return made


def asked(*answers: str) -> list[Message]:
    turns = [("user", "Q"), ("assistant", "")] * len(answers)
    texts = iter(answers)
    return [Message(role=r, content=text or next(texts)) for r, text in turns]


def texts(chat: ChatTemplate, *answers: str) -> tuple[str, str]:
    row = chat.training_row(asked(*answers))
    num = row.completion_mask.index(1)
    assert all(row.completion_mask[num:])
    assert tuple(row.input_ids[:num]) == chat.prompt(asked(*answers)[:-1]).ids
    assert chat.count_tokens(asked(*answers)) == len(row.input_ids)
    ids = row.input_ids
    return chat.decode(ids[:num], skip_special=False), chat.decode(ids[num:], skip_special=False)


@pytest.mark.parametrize("is_special", [False, True])
def test_an_answer_continues_the_tag_that_the_prompt_opens(load: Any, is_special: bool) -> None:
    chat = load(OPENED, is_special=is_special)
    prompt = "[user]Q<|over|>[assistant]<think>\n"
    assert texts(chat, THINKING) == (prompt, f"plan\n</think>\n\n{CODE}<|over|>")
    assert texts(chat, CODE) == (prompt, f"\n</think>\n\n{CODE}<|over|>")
    completion = chat.training_row(asked(THINKING)).input_ids[len(chat.prompt(asked("")[:1]).ids) :]
    assert chat.decode(completion) == THINKING


@pytest.mark.parametrize("tag", ["think", "reason"])
def test_thinking_in_parts_has_the_templates_own_tags(load: Any, tag: str) -> None:
    chat, answer = load(PARTS, thinking=tag), THINKING.replace("think>", f"{tag}>")
    prompt = "[user]Q<|over|>[assistant]"
    assert texts(chat, answer) == (prompt, f"[THINK]plan[/THINK]{CODE}<|over|>")
    assert texts(chat, CODE) == (prompt, f"{CODE}<|over|>")
    row = chat.training_row(asked(answer))
    assert chat.decode(row.input_ids[row.completion_mask.index(1) :]) == answer
    again = texts(chat, answer, CODE)[0]
    assert again == f"{prompt}[THINK]plan[/THINK]{CODE}<|over|>[user]Q<|over|>[assistant]"


def test_thinking_that_does_not_end_is_no_answer(load: Any) -> None:
    chat = load(OPENED)
    read = chat.decode(chat.encode_plain(f"a draft:\n{CODE}\n"))
    assert extract(read).reason is Reason.UNCLOSED_THINKING


def test_the_next_prompt_has_one_tag_for_each_answer(load: Any) -> None:
    chat = load(OPENED)
    row = chat.training_row(asked(THINKING))
    read = chat.decode(row.input_ids[row.completion_mask.index(1) :])
    prompt, _ = texts(chat, read, THINKING)
    assert prompt.count("<think>") == prompt.count("</think>") + 1 == 2
    (whole,) = chat.training_rows(asked(THINKING, THINKING))
    assert sum(whole.completion_mask) == 2 * sum(row.completion_mask)


def test_the_templates_own_switch_turns_thinking_on_and_off(load: Any, tmp_path: Path) -> None:
    on, off = load(SWITCH, thinking="think"), load(SWITCH, thinking="")
    assert texts(on, THINKING)[0].endswith("[assistant]<think>")
    assert texts(on, THINKING)[1] == f"\nplan\n</think>\n\n{CODE}<|over|>"
    assert texts(on, CODE)[1] == f"</think>{CODE}<|over|>"
    assert texts(off, CODE) == ("[user]Q<|over|>[assistant]</think>", f"{CODE}<|over|>")
    stage = SftStage(kind="sft", steps=1, learning_rate=1e-3)
    rows = {"plain": CODE, "my-row": THINKING}
    pairs = [Pair(problem_id=k, messages=tuple(asked(v)), num_turns=1) for k, v in rows.items()]
    require_roles(pairs, on)
    with pytest.raises(ConfigError, match=r"my-row.*prompt\.thinking"):
        require_roles(pairs, off)
    with pytest.raises(ConfigError, match=r"my-row.*prompt\.thinking"):
        write_rows(pairs, off, stage=stage, path=tmp_path / "rows", data=DataTable())


def test_a_prompt_that_closes_thinking_takes_answers_without_it(load: Any) -> None:
    chat = load(AT_ONCE, thinking="")
    assert texts(chat, CODE) == ("[user]Q<|over|>[assistant]<think></think>", f"{CODE}<|over|>")
    with pytest.raises(ConfigError, match=r"no place for the thinking of.*prompt\.thinking"):
        chat.training_row(asked(THINKING))


def test_an_answer_may_move_what_stood_in_its_prompt(load: Any) -> None:
    chat, system = load(MOVED), Message(role="system", content="S")
    for answer in (CODE, THINKING):
        row = chat.training_row([system, *asked(answer)])
        text = chat.decode(row.input_ids, skip_special=False)
        assert text == f"[user] S Q[assistant] {answer}<|over|>"
        assert len(chat.training_rows([system, *asked(answer, answer)])) == 2


def test_thinking_is_neither_left_open_nor_written_twice(load: Any) -> None:
    assert texts(load(EMPTY), CODE)[1] == f"<think></think>{CODE}<|over|>"
    assert texts(load(EMPTY), THINKING)[1] == f"{THINKING}<|over|>"
    assert texts(load(OWN), CODE)[1] == f"</own:think>{CODE}<|over|>"
    assert texts(load(OWN), THINKING)[1] == f"plan</own:think>{CODE}<|over|>"


def test_words_around_an_answer_follow_its_thinking(load: Any) -> None:
    chat = load(RESPONSE)
    assert texts(chat, CODE)[1] == f"\n</think><response>{CODE}</response><|over|>"
    assert texts(chat, THINKING)[1] == f"plan\n</think><response>{CODE}</response><|over|>"


def test_channels_hold_thinking_and_answer(load: Any) -> None:
    chat = load(CHANNELS, stops="<eos> <|next|> <|over|>")
    final = f"<|at|>final<|text|>{CODE}"
    assert texts(chat, CODE)[1] == final + "<|over|>"
    assert texts(chat, THINKING)[1] == (
        f"<|at|>analysis<|text|>plan<|next|><|turn|>assistant{final}<|over|>"
    )
    assert texts(chat, THINKING, CODE)[0].count("plan") == 0
    names = [chat.tokenizer.id_to_token(number) for number in chat.stop_token_ids]
    assert names == ["<|over|>", "<eos>"], "not the token between the two"
    row = chat.training_row(asked(THINKING))
    ids = row.input_ids[row.completion_mask.index(1) :]
    assert chat.decode(ids) == THINKING
    assert extract(chat.decode(ids[:20])).reason is Reason.UNCLOSED_THINKING
    forged = [*chat.encode_plain("<|next|>"), chat.tokenizer.token_to_id("<|over|>")]
    assert chat.decode(forged) == "<|next|>", "letters are no token"


@pytest.mark.parametrize("template", [PLAIN, OPENED, SWITCH, CHANNELS, RESPONSE, HEADER, SPACED])
@pytest.mark.parametrize("answer", [CODE, THINKING])
def test_a_stream_only_grows_and_ends_with_the_whole_text(
    load: Any, template: str, answer: str
) -> None:
    chat = load(template, thinking="think")
    row = chat.training_row(asked(answer))
    ids = row.input_ids[row.completion_mask.index(1) :]
    reads = [chat.decode(ids[:end]) for end in range(1, len(ids) + 1)]
    assert all(later.startswith(earlier) for earlier, later in pairwise(reads[:-1]))
    deltas = Deltas(chat)
    shown = "".join(deltas.add(0, [one], is_last=False) for one in ids)
    assert shown.startswith(reads[-1])
    assert not reads[-1].startswith(" ")
    assert split_thinking(reads[-1], tag="think") == split_thinking(answer, tag="think")


def test_an_answer_ends_with_the_token_that_the_template_writes(load: Any) -> None:
    for stops in ("<eos>", "<eos> <|over|>", "<|over|> <eos>", ""):
        chat = load(PLAIN, stops=stops)
        assert texts(chat, CODE)[1] == f"{CODE}<|over|>"
        names = [chat.tokenizer.id_to_token(number) for number in chat.stop_token_ids]
        assert names == ["<|over|>", "<eos>"]


@pytest.mark.parametrize(
    ("template", "options", "found"),
    [
        (PLAIN.replace("<|over|>", "\n"), {}, "no token ends an answer"),
        (OPENED, {"thinking": "reason"}, 'prompt.thinking: found "reason".*"think" or ""'),
    ],
)
def test_a_template_that_cannot_be_trained_with_is_refused_in_a_line(
    load: Any, template: str, options: dict[str, str], found: str
) -> None:
    with pytest.raises(ConfigError, match=found) as raised:
        load(template, **options)
    assert "\n" not in str(raised.value)


def test_another_tag_is_that_of_the_template_in_rows(load: Any) -> None:
    chat = load(CHANNELS, thinking="reason")
    own = THINKING.replace("think>", "reason>")
    row = chat.training_row(asked(own))
    assert row == load(CHANNELS).training_row(asked(THINKING))
    assert chat.decode(row.input_ids[row.completion_mask.index(1) :]) == own


def test_a_row_is_encoded_as_one_text_where_a_text_begins_with_a_space(
    load: Any, tmp_path: Path
) -> None:
    load(PLAIN)
    letters = {c: i for i, c in enumerate("▁Qabin[]/INST")}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    space = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(space)
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% else %} {{ m.content }}<eos>{% endif %}{% endfor %}"
    )
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "chat_template.jinja").write_text(template)
    row = ChatTemplate.load(tmp_path).training_row(asked("ab in"))
    whole = tokenizer.encode("[INST] Q [/INST] ab in<eos>", add_special_tokens=False)
    assert row.input_ids == whole.ids
    assert whole.tokens[row.completion_mask.index(1) :] == [*"▁ab▁in", "<eos>"]


def test_tags_in_code_and_text_before_thinking_are_kept(load: Any) -> None:
    code = CODE.replace("pass", "x = '</think>'")
    for template in (PLAIN, SWITCH):
        chat = load(template, thinking="think")
        for answer in (f"<think>\nplan\n</think>\n\n{code}", f"First.\n{THINKING}"):
            assert texts(chat, answer)[1].endswith(answer.split("plan")[1] + "<|over|>")
