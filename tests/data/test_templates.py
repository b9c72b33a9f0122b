"""Templates and tokenizers of other people: what is adapted, what is refused, with which line."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

import forge.data.template as module
from forge.data.chat import ChatTemplate
from forge.errors import ConfigError
from forge.records import Message
from tests.architectures import byte_tokenizer

ANSWER = "{% if add_generation_prompt %}[assistant:{% endif %}"
BODY = "{% for m in messages %}[{{ m.role }}:{{ m.content }}</s>{% endfor %}" + ANSWER
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no\\nsystem') }}{% endif %}"
ALTERNATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
)
DROPS = BODY.replace("[", "{% if m.role != 'system' %}[", 1).replace("</s>", "</s>{% endif %}")
LATER = "{% for m in messages[1:] if m.role == 'system' %}{{ raise_exception('no') }}{% endfor %}"
PARTS = BODY.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text }}{% endfor %}")
CHAT = ("system s", "user q", "user r", "assistant a", "system t", "user u")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory without a template."""
    path = tmp_path / "m"
    path.mkdir()
    byte_tokenizer("<s>", "</s>").save(str(path / "tokenizer.json"))
    write(path, eos_token={"content": "</s>", "special": True}, bos_token=None)
    return path


def write(model: Path, name: str = "tokenizer_config.json", **content: Any) -> None:
    (model / name).write_text(json.dumps(content))


def messages(*texts: str) -> list[Message]:
    return [Message(role=text.split()[0], content=text.split()[1]) for text in texts]


def shown(chat: ChatTemplate, *texts: str) -> str:
    """The prompt, with a bracket for the end of a message and without the answer's beginning."""
    text = chat.prompt(messages(*texts)).text
    return text.replace("</s>", "]").removesuffix("[assistant:")


def refusal(model: Path, *texts: str) -> str:
    """The one line, without the directory."""
    with pytest.raises(ConfigError) as caught:
        ChatTemplate.load(model).prompt(messages(*texts or CHAT))
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{model}", "m")


@pytest.mark.parametrize(
    ("source", "want", "adapted"),
    [
        (BODY, "[system:s][user:q][user:r][assistant:a][system:t][user:u]", ""),
        (PARTS, "[system:s][user:q][user:r][assistant:a][system:t][user:u]", ""),
        (NO_SYSTEM + BODY, "[user:s\n\nq][user:r][assistant:a][system:t][user:u]", "system"),
        (DROPS, "[user:s\n\nq][user:r][assistant:a][user:t\n\nu]", "system"),
        (LATER + BODY, "[system:s][user:q][user:r][assistant:a][user:t\n\nu]", ""),
        (ALTERNATE + BODY, "[user:s\n\nq\n\nr][assistant:a][user:t\n\nu]", "system two questions"),
    ],
)
def test_text_that_a_template_refuses_or_drops_joins_the_next_question(
    model: Path, source: str, want: str, adapted: str
) -> None:
    (model / "chat_template.jinja").write_text(source)
    chat = ChatTemplate.load(model)
    assert shown(chat, *CHAT) == want
    assert all(word in chat.template.note for word in adapted.split())
    assert bool(chat.template.note) == bool(adapted)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (BODY + "\n{{ m.content }", "m/chat_template.jinja:2: unexpected '}'"),
        (BODY + "\n{{ gone.x }}", "m/chat_template.jinja:2: UndefinedError: 'gone' is undefined"),
        (BODY + "{{ 3 + 'a' }}", "m/chat_template.jinja"),
        ("{{ raise_exception('never') }}", "m/chat_template.jinja:1: TemplateError: never, for "),
        ("{{ ''.__class__.__mro__ }}", "m/chat_template.jinja:1: SecurityError: "),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "m/chat_template.jinja:1: OverflowError: "),
        ("{{ 'a' * 9999999999 }}", "m/chat_template.jinja:1: SecurityError: "),
        ("{{ 9 ** 9 ** 9 }}", "m/chat_template.jinja"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "m/chat_template.jinja:1: Recursion"),
        ("hello", "m/chat_template.jinja: drops the text of a user's message"),
        ("{% if messages[0].role != 'user' %}{{ nil.x }}{% endif %}" + BODY, "assistant"),
    ],
)
def test_what_a_template_raises_is_one_line_with_its_file(
    model: Path, source: str, line: str
) -> None:
    (model / "chat_template.jinja").write_text(source)
    assert line in refusal(model, "assistant a", "user q")


@pytest.mark.parametrize("of", ["m.role", "m.content == 'forge answer'"])
def test_a_template_without_end_is_given_up(
    model: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    loops = "{% for b in range(999) %}" * 2 + "{% endfor %}" * 2
    whose = "{% for m in messages if OF %}".replace("OF", of)
    (model / "chat_template.jinja").write_text(whose + loops + "{% endfor %}" + BODY)
    monkeypatch.setattr(module, "TRIAL_S", 0.02)
    assert refusal(model).startswith("m/chat_template.jinja: ")


def test_a_template_is_found_wherever_models_have_one(model: Path) -> None:
    assert refusal(model) == 'm: no chat template; [model] chat_template = "chatml" or a file'
    several = [{"name": "tool", "template": "T" + BODY}, {"name": "default", "template": BODY}]

    def found() -> str:
        return shown(ChatTemplate.load(model), "user q")

    write(model, "chat_template.json", chat_template="P" + BODY)
    assert found() == "P[user:q]"
    write(model, eos_token="</s>", chat_template=several)
    assert found() == "[user:q]"
    write(model, eos_token="</s>", chat_template=several[:1])
    assert found() == "T[user:q]"
    write(model, eos_token="</s>", chat_template=[several[0], {"name": "x", "template": ""}])
    assert "default" in refusal(model)
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "default.jinja").write_text("A" + BODY)
    assert found() == "A[user:q]"
    (model / "chat_template.jinja").write_text("F" + BODY)
    assert found() == "F[user:q]"


def test_chatml_ends_messages_with_the_end_of_sequence_and_begins_as_the_tokenizer_does(
    model: Path,
) -> None:
    chat = ChatTemplate.load(model, chat_template="chatml")
    prompt = chat.prompt(messages("system s", "user q"))
    text = "<|im_start|>system\ns</s>\n<|im_start|>user\nq</s>\n<|im_start|>assistant\n"
    assert prompt.text == text
    (end,) = chat.stop_token_ids
    assert (list(prompt.ids).count(end), chat.decode([end], skip_special=False)) == (2, "</s>")
    begin = chat.tokenizer.token_to_id("<s>")
    chat.tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", begin)])
    chat.tokenizer.save(str(model / "tokenizer.json"))
    again = ChatTemplate.load(model, chat_template="chatml").prompt(messages("system s", "user q"))
    assert again.ids == (begin, *prompt.ids)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("tokenizer.json", "", "m/tokenizer.json: no tokenizer: "),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "is empty"),
        ("tokenizer.json", None, "m/tokenizer.json: not found; found tokenizer.model alone; "),
        ("tokenizer_config.json", "{", "m/tokenizer_config.json: not JSON: "),
        ("tokenizer_config.json", "[]", "m/tokenizer_config.json: not a JSON object"),
        ("tokenizer_config.json", '{"eos_token": "<gone>"}', "m: no eos_token in "),
        ("generation_config.json", '{"eos_token_id": "2"}', "m/generation_config.json: eos_token_"),
        ("special_tokens_map.json", "3", "m/special_tokens_map.json: not a JSON object"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_one_line(
    model: Path, name: str, content: str | None, line: str
) -> None:
    (model / "chat_template.jinja").write_text(BODY)
    (model / "tokenizer.model").touch()
    (model / name).unlink(missing_ok=True) if content is None else (model / name).write_text(
        content
    )
    assert line in refusal(model)


def test_the_end_of_an_answer_is_found_in_every_file_that_may_name_it(model: Path) -> None:
    (model / "chat_template.jinja").write_text(BODY)
    end = ChatTemplate.load(model).stop_token_ids
    write(model)
    write(model, "config.json", eos_token_id=[*end, 99_999])
    assert ChatTemplate.load(model).stop_token_ids == end
    write(model, "generation_config.json", eos_token_id=-1)
    assert ChatTemplate.load(model).stop_token_ids == end
    write(model, "generation_config.json", eos_token_id=5)
    assert ChatTemplate.load(model).stop_token_ids == (*end, 5)
    (model / "generation_config.json").unlink()
    (model / "config.json").unlink()
    write(model, "special_tokens_map.json", eos_token={"content": "</s>"})
    assert ChatTemplate.load(model).stop_token_ids == end
