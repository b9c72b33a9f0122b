"""The host's ids are transformers' ids, and text never becomes a special token."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.data.chat import ChatTemplate
from forge.errors import ConfigError
from forge.records import Message

CODE = "import triton\n\n@triton.jit\ndef k(x_ptr, n):\n    return tl.load(x_ptr + 12)\n"
CHAT = [
    Message(role="system", content="You write kernels."),
    Message(role="user", content=CODE),
    Message(role="assistant", content=f"<think>try\nthis</think>\n\n```python\n{CODE}```"),
    Message(role="user", content="judge: wrong, first mismatch at [3, 1]: expected 0.5, got 1e-07"),
    Message(role="assistant", content="<think>so</think>done ünïcode 漢字"),
]
SPECIALS = ["<|im_end|>", "<|im_start|>", "<|endoftext|>"]


@pytest.fixture(scope="module")
def chat(tiny_model: Path) -> ChatTemplate:
    return ChatTemplate.load(tiny_model)


@pytest.mark.parametrize("num", range(1, len(CHAT) + 1))
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_ids_equal_those_of_transformers(
    tiny_model: Path, chat: ChatTemplate, num: int, add_generation_prompt: bool
) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tiny_model)
    dicts = [{"role": m.role, "content": m.content} for m in CHAT[:num]]
    want = theirs.apply_chat_template(
        dicts, add_generation_prompt=add_generation_prompt, return_dict=False
    )
    assert chat.render(CHAT[:num], add_generation_prompt=add_generation_prompt) == want
    assert chat.decode(want, skip_special=False) == theirs.decode(want)
    assert chat.decode(want) == theirs.decode(want, skip_special_tokens=True)


@given(parts=st.lists(st.sampled_from([*SPECIALS, "<|im_", "end|>", "<", "a\n", "\ufdd0"])))
def test_text_of_a_message_never_becomes_a_special_token(
    chat: ChatTemplate, parts: list[str]
) -> None:
    text = "".join(parts)
    ids = chat.render([Message(role="user", content=text)])
    ours = chat.render([Message(role="user", content="")])
    special = {chat.tokenizer.token_to_id(name) for name in SPECIALS}
    assert [i for i in ids if i in special] == [i for i in ours if i in special]
    assert chat.prompt([Message(role="user", content=text)]).ids == tuple(ids)
    assert not special & set(chat.encode_plain(text))
    row = chat.training_row([Message(role=role, content=text) for role in ("user", "assistant")])
    assert not special & set(row.input_ids[row.completion_mask.index(1) : -1])
    if "\ufdd0" not in text:
        shown = f"<|im_start|>user\n{text}<|im_end|><|im_start|>assistant\n"
        assert chat.decode(ids, skip_special=False) == shown
        assert chat.prompt([Message(role="user", content=text)]).text == shown


def test_thinking_stays_in_the_last_answer_only(chat: ChatTemplate) -> None:
    text = chat.decode(chat.render(CHAT, add_generation_prompt=False), skip_special=False)
    assert "<think>so</think>" in text
    assert "try" not in text


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        ChatTemplate.load(tmp_path)
