"""Conversations to token ids and back, with `tokenizers` and jinja2, without torch or transformers.

Called by the runner (SFT rows), the rollout loop (prompts, decoding) and `forge chat`. For ordinary
text the ids equal those of transformers' `apply_chat_template`. Only the template writes special
tokens, whatever a message contains: `<|im_end|>` inside the judge's feedback or a candidate's code
is tokenised as ordinary letters. This does not cover added tokens that are not special (`<think>`):
these are recognised everywhere.

What prompts share is encoded once (`PieceEncoder`): the next turn's prompt begins with the last
one's. `PlainChat` has texts in place of tokens, for servers that keep tokenizer and template to
themselves.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.data.template import Template, find_template, read_object
from forge.errors import ConfigError
from forge.records import Prompt

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

    from forge.records import Message

# A Unicode noncharacter, which never occurs in interchanged text: it splits the names of special
# tokens inside a message while the template runs, and is removed afterwards.
_GUARD = "\ufdd0"
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """A conversation ready for SFT."""

    input_ids: list[int]
    completion_mask: list[int]
    """1 for trained tokens: answers, each with the token that ends it. [T]"""


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A checkpoint's tokenizer and chat template. Not thread-safe."""

    tokenizer: Tokenizer
    template: Template
    special_tokens: Mapping[str, str]
    """Names that the template may use: `eos_token`, `bos_token`, ..."""
    stop_token_ids: tuple[int, ...]
    """Ids that end an answer: the tokenizer's end of sequence, and generation_config.json's."""
    _special_ids: Mapping[str, int] = field(repr=False)

    @classmethod
    def load(cls, model_dir: Path, *, chat_template: str | None = None) -> ChatTemplate:
        """Read a model directory, with `model.chat_template` in place of its own template if that
        is set. Raises ConfigError if a file is missing or broken."""
        tokenizer = _load_tokenizer(model_dir)
        config = read_object(model_dir / "tokenizer_config.json")
        names = _special_names(model_dir, config)
        stops = _stop_ids(model_dir, tokenizer, names.get("eos_token"))
        template = find_template(
            model_dir, config, asked=chat_template, tokenizer=tokenizer, end=stops[0],
            variables=names,
        )  # fmt: skip
        added = tokenizer.get_added_tokens_decoder()
        return cls(
            tokenizer=tokenizer,
            template=template,
            special_tokens=names,
            stop_token_ids=stops,
            _special_ids={t.content: i for i, t in added.items() if t.special},
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens, with added tokens."""
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """The conversation, ready for the model's next turn."""
        text = self._apply(messages, add_generation_prompt=True)
        return Prompt(
            ids=tuple(self._tokenize(text)),
            messages=tuple(messages),
            text=text.replace(_GUARD, ""),
        )

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of the conversation, by default ready for the model's next turn."""
        return self._tokenize(self._apply(messages, add_generation_prompt))

    def _tokenize(self, text: str) -> list[int]:
        if _GUARD not in text:
            return self._pieces.encode(text)
        ids: list[int] = []
        for piece in self._special_pattern.split(text):
            known = self._special_ids.get(piece)
            ids += self.encode_plain(piece.replace(_GUARD, "")) if known is None else [known]
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens whatever it contains."""
        return self._pieces.encode_plain(text)

    def render_answer(self, content: str) -> list[int]:
        """Token ids of an answer as the model has to write it, with the end of the turn."""
        return [*self.encode_plain(content), self.stop_token_ids[0]]

    def training_row(self, messages: Sequence[Message]) -> TrainingRow:
        """The prompt as the engine sees it, then the last message as the model has to write it."""
        prompt_ids = self.render(messages[:-1], add_generation_prompt=True)
        answer_ids = self.render_answer(messages[-1].content)
        mask = [0] * len(prompt_ids) + [1] * len(answer_ids)
        return TrainingRow(input_ids=prompt_ids + answer_ids, completion_mask=mask)

    def training_rows(self, messages: Sequence[Message]) -> list[TrainingRow]:
        """Rows that train every assistant message once, each after the prompt that the engine sees
        at that turn.

        A turn continues the row of the turn before it if its prompt begins with that row's ids.
        Otherwise it begins a row of its own: a template that drops earlier thinking (Qwen3) renders
        a conversation whose turns all have thinking to one row per turn."""
        rows: list[TrainingRow] = []
        for index, message in enumerate(messages):
            if message.role != "assistant":
                continue
            row = self.training_row(messages[: index + 1])
            last = rows[-1] if rows else None
            if last is not None and _continues(row, last):
                mask = last.completion_mask + row.completion_mask[len(last.completion_mask) :]
                rows[-1] = replace(row, completion_mask=mask)
            else:
                rows.append(row)
        return rows

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Length of `training_row`, in half of its time."""
        text = self._apply(messages[:-1], add_generation_prompt=True)
        answer = messages[-1].content
        if _GUARD in text or any(name in answer for name in self._special_ids):
            return len(self.training_row(messages).input_ids)
        parts = self.tokenizer.encode_batch_fast([text, answer], add_special_tokens=False)
        return sum(map(len, parts)) + 1

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of token ids."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=skip_special)

    @cached_property
    def _pieces(self) -> PieceEncoder:
        return PieceEncoder(self.tokenizer)

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        """Splits a text at special tokens and keeps them. Longest first."""
        names = sorted(self._special_ids, key=len, reverse=True)
        return (
            re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else re.compile("$^")
        )

    def _apply(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        dicts = [{"role": m.role, "content": self._guarded(m.content)} for m in messages]
        return self.template.render(
            messages=dicts,
            add_generation_prompt=add_generation_prompt,
            tools=None,
            documents=None,
            **self.special_tokens,
        )

    def _guarded(self, text: str) -> str:
        """The text with every special token's name split after its first character."""
        text = text.replace(_GUARD, "")
        if not any(name in text for name in self._special_ids):
            return text
        return self._special_pattern.sub(lambda m: m[0][0] + _GUARD + m[0][1:], text)


def _continues(row: TrainingRow, earlier: TrainingRow) -> bool:
    """True if the prompt of a row begins with all tokens of an earlier row."""
    num, num_prompt = len(earlier.input_ids), row.completion_mask.index(1)
    return num <= num_prompt and row.input_ids[:num] == earlier.input_ids


def _load_tokenizer(model_dir: Path) -> Tokenizer:
    """The tokenizer of a model directory. Raises ConfigError."""
    from tokenizers import Tokenizer

    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{path}: not found; {lacks_tokenizer(model_dir)}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # what `tokenizers` raises for a broken file
        raise ConfigError(f"{path}: no tokenizer: {' '.join(str(error).split())}") from None
    if not tokenizer.get_vocab_size(with_added_tokens=False):
        raise ConfigError(f"{path}: its vocabulary is empty")
    return tokenizer


def lacks_tokenizer(model_dir: Path) -> str:
    """What to do about a model directory without tokenizer.json."""
    others = ("tokenizer.model", "vocab.json", "vocab.txt")
    found = next((name for name in others if (model_dir / name).is_file()), None)
    if found is None:
        return "a model directory needs tokenizer.json"
    command = f"t = AutoTokenizer.from_pretrained('{model_dir}'); t.save_pretrained('{model_dir}')"
    return f'found {found} alone; python -c "from transformers import *; {command}" converts it'


def _special_names(model_dir: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by name, each of which may be a text or an object; null means none."""
    found = {**read_object(model_dir / "special_tokens_map.json"), **config}
    named = {key: found.get(key) for key in _SPECIAL_NAMES}
    texts = {k: t.get("content") if isinstance(t, Mapping) else t for k, t in named.items()}
    return {key: text for key, text in texts.items() if text and isinstance(text, str)}


def _stop_ids(model_dir: Path, tokenizer: Tokenizer, eos_token: str | None) -> tuple[int, ...]:
    """Ids of the tokenizer's end of sequence and of generation_config.json's, or config.json's if
    neither is a token. Raises ConfigError for none."""
    eos = None if eos_token is None else tokenizer.token_to_id(eos_token)
    ids = [] if eos is None else [eos]
    for name in ("generation_config.json", "config.json"):
        config = {} if ids and name == "config.json" else read_object(model_dir / name)
        found = config.get("eos_token_id")
        for number in found if isinstance(found, list) else [] if found is None else [found]:
            if not isinstance(number, int):
                text = f"{model_dir / name}: eos_token_id: found {json.dumps(found)}"
                raise ConfigError(f"{text}; a number, or a list of them")
            if number >= 0 and tokenizer.id_to_token(number) is not None:
                ids.append(number)
    if not ids:
        raise ConfigError(
            f"{model_dir}: no eos_token in tokenizer_config.json that tokenizer.json has, "
            "and no eos_token_id in generation_config.json"
        )
    return tuple(dict.fromkeys(ids))


NO_ANSWER = "(no answer)"
"""Sent in place of an answer that was thinking alone: some servers refuse empty messages."""
END = 0
"""Id that stands for the end of an answer; decoded to nothing."""
CHARACTERS_PER_TOKEN = 3
"""Characters that a token of a prompt has at least, on the average: English has 4, code 3."""


@dataclass(frozen=True, slots=True)
class PlainChat:
    """The methods of a ChatTemplate that prompters and servers call."""

    tag: str
    """Tag of thinking; empty for none."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The end of an answer."""
        return (END,)

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """The messages, earlier answers without their thinking, as chat templates render them; an
        id per character of them."""
        sent = tuple(map(self._without_thinking, messages))
        text = "\n\n".join(message.content for message in sent)
        return Prompt(ids=code_points(text), messages=sent, text=text)

    def decode(self, ids: Sequence[int]) -> str:
        """Inverse of `code_points`."""
        return "".join(map(chr, ids)).removesuffix(chr(END))

    def encode_plain(self, text: str) -> list[int]:
        """One id per character."""
        return list(code_points(text))

    def _without_thinking(self, message: Message) -> Message:
        if message.role != "assistant":
            return message
        rest = split_thinking(message.content, tag=self.tag)[1]
        return replace(message, content=rest or NO_ANSWER)


def code_points(text: str) -> tuple[int, ...]:
    """One id per character."""
    return tuple(map(ord, text))


def split_thinking(text: str, *, tag: str) -> tuple[str, str]:
    """Thinking without its tags, and the rest, of an answer."""
    if not tag:
        return "", text.strip()
    thinking, closed, rest = text.rpartition(f"</{tag}>")
    if not closed and f"<{tag}>" in text:
        thinking, rest = text, ""
    return thinking.replace(f"<{tag}>", "", 1).strip(), rest.strip()


MAX_CHARACTERS = 8_000_000
"""Characters of the pieces that are remembered: 16 MB with their ids."""
_SAMPLES = ("a b", " a\n", "\n\n a", "A'b ", "1", " ", "▁a")
"""Pieces that a tokenizer would encode otherwise at the start of a text or after whitespace."""


class PieceEncoder:
    """Encodes texts and remembers the ids of their pieces. Not thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added: dict[str, int] = {}
        """Ids of the tokens that separate pieces."""
        self._pattern: re.Pattern[str] | None = None
        """Splits a text at them and keeps them, the longest first; None without separate pieces."""
        self._known: OrderedDict[str, array[int]] = OrderedDict()
        """Ids of pieces, the least recently used first."""
        self._num_characters = 0
        self._separate_pieces()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        if self._pattern is None:
            return self._encode_whole(text)
        ids: list[int] = []
        for index, piece in enumerate(self._pattern.split(text)):
            if index % 2:
                ids.append(self._added[piece])
            elif piece:
                ids += self._known_ids(piece)
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens whatever it contains."""
        self._tokenizer.encode_special_tokens = True
        try:
            return self._encode_whole(text)
        finally:
            self._tokenizer.encode_special_tokens = False

    def _encode_whole(self, text: str) -> list[int]:
        """Token ids of a text, in four fifths of `Tokenizer.encode`'s time: without the tokens'
        positions."""
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _known_ids(self, piece: str) -> array[int]:
        found = self._known.get(piece)
        if found is not None:
            self._known.move_to_end(piece)
            return found
        found = self._known[piece] = array("I", self._encode_whole(piece))
        self._num_characters += len(piece)
        while self._num_characters > MAX_CHARACTERS:
            dropped, _ = self._known.popitem(last=False)
            self._num_characters -= len(dropped)
        return found

    def _separate_pieces(self) -> None:
        """Find the tokens that separate pieces, unless pieces depend on each other."""
        tokenizer = self._tokenizer
        added = tokenizer.get_added_tokens_decoder()
        ids = {token.content: number for number, token in added.items() if not token.normalized}
        if not ids or tokenizer.truncation or tokenizer.padding:
            return
        if any(map(_takes_neighbours, added.values())):
            return
        names = sorted(ids, key=len, reverse=True)
        self._added = ids
        self._pattern = re.compile("(" + "|".join(map(re.escape, names)) + ")")
        text = names[0].join(_SAMPLES)
        if self.encode(text) != self._encode_whole(text):
            self._pattern = None


def _takes_neighbours(token: AddedToken) -> bool:
    """True if the token's occurrence depends on the characters around it, or includes them."""
    return token.lstrip or token.rstrip or token.single_word
