"""Texts have the ids that the tokenizer gives for the whole text, and known pieces cost nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from forge.data import chat
from forge.data.chat import PieceEncoder

END, START, THINK = "<|end|>", "<|start|>", "<think>"
WORDS = [
    END, START, THINK, "<", "<|end", "|>", "a", "b c", " ", "\n", "\n\n", "12", "it's", "é", "▁",
]  # fmt: skip
TEXT = "it's a b c b c\n\n12 é <think>a</think> a"


def make_tokenizer(change: Callable[[Tokenizer], Any] | None = None) -> Tokenizer:
    """A small byte-level tokenizer with three added tokens, changed before it learns."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if change is not None:
        change(tokenizer)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=330, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    tokenizer.add_special_tokens([END, START])
    tokenizer.add_tokens([AddedToken(THINK, normalized=False)])
    return tokenizer


def changed(part: str, value: Any) -> Callable[[Tokenizer], None]:
    return lambda tokenizer: setattr(tokenizer, part, value)


CHANGES = {
    "plain": None,
    "prefix": changed("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "metaspace": changed("pre_tokenizer", pre_tokenizers.Metaspace(prepend_scheme="first")),
    "normalizer": changed(
        "normalizer", normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    ),
}


@pytest.fixture(scope="module", params=CHANGES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return make_tokenizer(CHANGES[request.param])


@given(words=st.lists(st.sampled_from(WORDS), max_size=12))
def test_ids_are_those_of_the_whole_text(tokenizer: Tokenizer, words: list[str]) -> None:
    encoder, text = PieceEncoder(tokenizer), "".join(words)
    want = tokenizer.encode(text, add_special_tokens=False).ids
    assert encoder.encode(text) == want == encoder.encode(text)


@pytest.mark.parametrize("options", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}])
def test_a_token_that_takes_its_neighbours_is_no_border(options: dict[str, bool]) -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens([AddedToken("<|mask|>", **options)])
    text = f"a <|mask|> b{END}a<|mask|>b"
    want = tokenizer.encode(text, add_special_tokens=False).ids
    assert PieceEncoder(tokenizer).encode(text) == want


class Counting:
    """A tokenizer that records what it encodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.encoded: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.encoded += texts
        return self.tokenizer.encode_batch_fast(texts, **options)


def test_what_two_prompts_share_is_encoded_once() -> None:
    counting: Any = Counting(make_tokenizer())
    encoder = PieceEncoder(counting)
    first = f"{START}a problem{END}"
    encoder.encode(first)
    counting.encoded.clear()
    encoder.encode(f"{first}{START}an answer{END}")
    assert counting.encoded == ["an answer"]


def test_the_pieces_that_were_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_CHARACTERS", 250)
    counting: Any = Counting(make_tokenizer())
    encoder = PieceEncoder(counting)
    used, unused, large = "a" * 100, "b" * 100, "c" * 300
    for text in (used, unused, used, "1" * 100):
        encoder.encode(text)
    counting.encoded.clear()
    for text in (used, unused, large, large):
        encoder.encode(text)
    assert counting.encoded == [unused, large, large]


def test_special_tokens_in_plain_text_are_letters() -> None:
    tokenizer = make_tokenizer()
    encoder = PieceEncoder(tokenizer)
    assert tokenizer.token_to_id(END) in encoder.encode(f"a{END}")
    assert tokenizer.token_to_id(END) not in encoder.encode_plain(f"a{END}")
    assert tokenizer.token_to_id(END) in encoder.encode(f"a{END}")
