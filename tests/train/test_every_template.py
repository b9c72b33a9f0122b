"""Prompts, rows and masks of every chat template that transformers and trl ship are those of
transformers' `apply_chat_template`, and an answer is read back as it was written."""

import ast
import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

import forge.data
from forge.data.chat import ChatTemplate
from forge.data.server_chat import split_thinking
from forge.records import Message
from forge.tools.toolbox import TOOLS, Call, find_call
from tests.architectures import byte_tokenizer


def package(name: str) -> Path:
    spec = find_spec(name)
    return Path(str(spec.origin)).parent


TRL = package("trl") / "chat_templates"
MODELS = package("transformers") / "models"
QUICK = (
    "ours", "qwen3_5_think", "gptoss_training", "nemotron_3_nano", "idefics3",
    "deepseek_r1_distill", "glm4moe", "llama3_training", "cohere2",
)  # fmt: skip
FIELDS = ("gptoss", "muse_glimmer", "qwen3_8", "gemma4_v5", "diffusion_gemma")
"""Templates to which an answer's thinking is a field: tags would be part of its text."""
PARTS = ("idefics3", "smolvlm", "llava_next", "qwen2_audio")
CLOSES = {
    "deepseek_r1_distill": "\n</think>\n\n",
    "deepseekv3": "\n</think>\n\n",
    "nemotron_3": "</think>",
}
"""How a prompt's thinking is closed where the whole conversation does not show it."""
ENDS = ("glm4moe",)
"""Templates that write no end: the next question's token ends an answer."""
LAST = ("<|return|>", "<EOS>")
"""Tokens that some templates write after the last answer alone."""
CODE = "```python\nimport triton\n\n\nclass ModelNew:\n    pass\n```"
THINKING = f"<think>\none pass\n</think>\n\n{CODE}"
NAMES = re.compile(r"<[|｜][\w▁]+[|｜]?>|<\w+\|>|</s>|<(?:start|end)_of_\w+>|\[/?INST\]")


def python_template(name: str) -> str:
    tree = ast.parse((MODELS / name / f"processing_{name}.py").read_text())
    found = (getattr(node, "value", None) for node in ast.walk(tree))
    (text,) = (value for value in found if isinstance(value, str) and "{%" in value)
    return text


SOURCES = {path.stem: path for path in sorted(TRL.glob("*.jinja"))}
SOURCES["ours"] = Path(forge.data.__file__).with_name("chat_template.jinja")
ALL = [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.long)
    for name in (*SOURCES, "llama4", "qwen2_audio")
]


def source(name: str) -> str:
    return SOURCES[name].read_text() if name in SOURCES else python_template(name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of bytes and of the special tokens in all templates. Its end of sequence is none
    that a template writes."""
    at = tmp_path_factory.mktemp("model")
    names = {name for path in SOURCES.values() for name in NAMES.findall(path.read_text())}
    names |= {"<BOS>", "<EOS>", "<end_of_utterance>", "<|eot|>"}
    tokenizer = byte_tokenizer(*sorted(names))
    tokenizer.add_tokens([AddedToken(name, special=False) for name in ("<think>", "</think>")])
    tokenizer.save(str(at / "tokenizer.json"))
    config = {"bos_token": "<BOS>", "eos_token": "<EOS>", "pad_token": "<EOS>"}
    (at / "tokenizer_config.json").write_text(json.dumps(config))
    stops = [tokenizer.token_to_id(name) for name in ("<EOS>", "<|user|>")]
    (at / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    return at


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    import transformers

    config = json.loads((folder / "tokenizer_config.json").read_text())
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), **config
    )


def load(name: str, folder: Path, **options: Any) -> ChatTemplate:
    (folder / "chat_template.jinja").write_text(source(name))
    return ChatTemplate.load(folder, **options)


def conversation(*answers: str) -> list[Message]:
    found = list[Message]()
    for number, answer in enumerate(answers):
        found.append(Message(role="user", content=f"Question {number}\n"))
        found.append(Message(role="assistant", content=answer))
    return found


def dicts(name: str, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as that template reads them."""
    found = list[dict[str, Any]]()
    for message in messages:
        fields: dict[str, Any] = {"role": message.role, "content": message.content}
        if name.removesuffix("_training") in FIELDS and message.role == "assistant":
            thinking, fields["content"] = split_thinking(message.content, tag="think")
            fields |= {"reasoning_content": thinking} if thinking else {}
        if name.removesuffix("_training") in PARTS:
            fields["content"] = [{"type": "text", "text": fields["content"]}]
        found.append(fields)
    return found


@pytest.mark.parametrize("name", ALL)
def test_prompts_are_those_of_transformers(name: str, folder: Path, theirs: Any) -> None:
    chat = load(name, folder)
    for messages in (conversation(CODE), conversation(CODE, CODE), conversation(THINKING, CODE)):
        wanted = theirs.apply_chat_template(
            dicts(name, messages[:-1]),
            chat_template=source(name),
            add_generation_prompt=True,
            return_dict=False,
        )
        assert chat.prompt(messages[:-1]).ids == tuple(wanted)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("answer", [CODE, THINKING], ids=["plain", "thinking"])
def test_a_row_is_the_whole_conversation_of_transformers(
    name: str, answer: str, folder: Path, theirs: Any
) -> None:
    chat = load(name, folder, thinking="think")
    for messages in (conversation(answer), conversation(answer, answer)):
        row = chat.training_row(messages)
        prompt = list(chat.prompt(messages[:-1]).ids)
        written = chat.decode(row.input_ids[len(prompt) :], skip_special=False)
        whole = theirs.apply_chat_template(
            dicts(name, messages), chat_template=source(name), tokenize=False, **chat.switches
        )
        before = chat.prompt(messages[:-1]).text
        is_shown = whole.startswith(before)
        if not is_shown:
            (closing,) = (text for key, text in CLOSES.items() if name.startswith(key))
            rest = closing + CODE if answer == CODE else answer.removeprefix("<think>\n")
            whole = before + rest + whole.rpartition(CODE)[2]
        text, whole = before + written, whole + ("<|user|>" if name in ENDS else "")
        assert text == whole[: len(text)]
        assert not whole[len(text) :].strip(), "nothing but whitespace follows"
        assert row.input_ids == prompt + theirs.encode(written, add_special_tokens=False)
        assert row.completion_mask == [0] * len(prompt) + [1] * (len(row.input_ids) - len(prompt))
        assert row.input_ids[-1] == chat.stop_token_ids[0]
        assert chat.count_tokens(messages) == len(row.input_ids)
        if is_shown and "endgeneration" in source(name):
            assert covers(marked(theirs, name, messages, chat), before, written)
        read = chat.decode(row.input_ids[len(prompt) :])
        assert split_thinking(read, tag="think") == split_thinking(answer, tag="think")


@pytest.mark.parametrize("name", ALL)
def test_a_reply_follows_an_answer_as_in_a_whole_conversation(
    name: str, folder: Path, theirs: Any
) -> None:
    chat = load(name, folder, thinking="")
    messages = [*conversation(CODE), Message(role="user", content="A reply")]
    whole = theirs.apply_chat_template(
        dicts(name, messages), chat_template=source(name), add_generation_prompt=True,
        return_dict=False, **chat.switches,
    )  # fmt: skip
    row = chat.training_row(messages[:2])
    played = row.input_ids + chat.following(messages[2], row.input_ids)
    after = [theirs.decode(ids).rpartition(CODE)[2] for ids in (played, whole)]
    for ends in LAST:  # of the last answer of a conversation
        after[0] = after[0].replace(ends, "", 1) if ends not in after[1] else after[0]
    assert after[0] == after[1]
    if whole[: len(row.input_ids)] == row.input_ids:  # it shows earlier answers as they were
        assert played == whole
    cut = chat.following(messages[2], row.input_ids[:-1])
    assert cut[-len(played) + len(row.input_ids) :] == played[len(row.input_ids) :]


CALLED = {
    "llama3_1": '{"name": "docs", "parameters": {"query": "tl.dot"}}',
    "qwen2_5": '<tool_call>\n{"name": "docs", "arguments": {"query": "tl.dot"}}\n</tool_call>',
    "qwen3": '<tool_call>\n{"name": "docs", "arguments": {"query": "tl.dot"}}\n</tool_call>',
    "qwen3_instruct_2507": '<tool_call>\n{"name": "docs", "arguments": {}}\n</tool_call>',
}
"""Calls as these templates write them; the others have another form, or none."""


@pytest.mark.parametrize("name", CALLED)
def test_calls_and_replies_are_those_of_the_template(name: str, folder: Path, theirs: Any) -> None:
    chat, form = load(name, folder, thinking=""), load(name, folder, thinking="").tool_form
    asked = json.loads(CALLED[name][CALLED[name].index("{") : CALLED[name].rindex("}") + 1])
    tool, arguments = asked["name"], asked[form.arguments_key]
    question, reply = {"role": "user", "content": "Q"}, {"role": "tool", "content": "A reply"}
    call = {"type": "function", "function": {"name": tool, "arguments": arguments}}
    options: dict[str, Any] = {
        "chat_template": source(name), "tools": [TOOLS["docs"].schema()], **chat.switches,
    }  # fmt: skip
    whole = theirs.apply_chat_template(
        [question, {"role": "assistant", "content": "", "tool_calls": [call]}, reply],
        add_generation_prompt=True, tokenize=False, **options,
    )  # fmt: skip
    assert CALLED[name] in whole
    text = f"Let me see.\n{CALLED[name]}" if form.opening else CALLED[name]
    assert find_call(text, ["docs"], thinking="", form=form) == Call(tool, arguments)
    prompt = chat.prompt([Message(role="user", content="Q")], tools=options["tools"])
    asking = theirs.apply_chat_template([question], add_generation_prompt=True, **options)
    assert list(prompt.ids) == asking["input_ids"]
    sampled = [*chat.encode_plain(CALLED[name]), chat.stop_token_ids[0]]
    following = chat.following(
        Message(role="tool", content="A reply"), sampled, tools=options["tools"]
    )
    assert whole.rpartition(CALLED[name])[2].endswith(theirs.decode(following))


@pytest.mark.parametrize("name", ["ours", "llama3", "deepseekv3", "qwen3_5_think", "gptoss"])
def test_a_template_without_a_known_form_has_none(name: str, folder: Path) -> None:
    assert load(name, folder).tool_form is None


@pytest.mark.parametrize(
    "text", ["<tool_call>\nno</tool_call>", '<tool_call>{"name": 3}', "<tool_call>{", "<tool_call>"]
)
def test_a_call_that_cannot_be_read_is_a_mistake(text: str, folder: Path) -> None:
    form = load("qwen3", folder).tool_form
    found = find_call(text, ["docs"], thinking="think", form=form)
    assert "JSON object of name and arguments" in found.arguments["error"]
    assert find_call(f"<think>{text}</think>{CODE}", ["docs"], thinking="think", form=form) is None


def marked(theirs: Any, name: str, messages: Sequence[Message], chat: ChatTemplate) -> str:
    found = theirs.apply_chat_template(
        dicts(name, messages), chat_template=source(name), return_dict=True,
        return_assistant_tokens_mask=True, **chat.switches,
    )  # fmt: skip
    ids, mask = found["input_ids"], found["assistant_masks"]
    end = len(mask) - mask[::-1].index(1)
    return theirs.decode(ids[max((i for i in range(end) if not mask[i]), default=-1) + 1 : end])


def covers(mark: str, before: str, written: str) -> bool:
    """True if a mark holds the whole answer, and of what surrounds it the end of the prompt and
    whitespace alone."""
    return mark.rstrip().endswith(written.rstrip()) and (before + written).endswith(mark.rstrip())
