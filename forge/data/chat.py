"""Conversations to token ids and back, with `tokenizers` and jinja2, without torch or transformers.

Called by the runner (SFT rows), and the rollout loop (prompts, decoding). For ordinary
text the ids equal those of transformers' `apply_chat_template`. A row is the prompt that the engine
gets and then what the template itself writes for the answer, up to the token that ends it; the
`form` of a template (`answer_form`) says where thinking goes, and how to read an answer back.

Only the template writes special tokens, whatever a message contains: `<|im_end|>` inside the
judge's feedback or a candidate's code is tokenised as ordinary letters. This does not cover the
tags of thinking in answers, nor added tokens that are not special: these are recognised everywhere.

`template` reads the model directory; `server_chat` has texts in place of tokens.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.data import answer_form
from forge.data.answers import THINKING
from forge.data.template import (
    Template,
    find_template,
    load_tokenizer,
    read_object,
    special_names,
    stop_ids,
    within_trial,
)
from forge.errors import ConfigError
from forge.records import Message, Prompt

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

MAX_CHARACTERS = 8_000_000
"""Characters of the pieces that are remembered: 16 MB with their ids."""
_SAMPLES = ("a b", " a\n", "\n\n a", "A'b ", "1", " ", "▁a")
"""Pieces that a tokenizer would encode otherwise at the start of a text or after whitespace."""


class PieceEncoder:
    """Encodes texts piece by piece and remembers the ids of pieces: the next turn's prompt begins
    with the last one's. Not thread-safe."""

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


# A Unicode noncharacter, which never occurs in interchanged text: it splits the names of special
# tokens inside a message while the template runs, and is removed afterwards.
_GUARD = "\ufdd0"
_SWITCHES = ("enable_thinking", "thinking")
"""Variables with which templates turn thinking on or off."""


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
    """Ids that end an answer. Of a loaded template, first the one that it writes after an answer,
    then the tokenizer's end of sequence and generation_config.json's."""
    _special_ids: Mapping[str, int] = field(repr=False)
    tag: str = THINKING
    """Tag of thinking in messages."""
    switches: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """The template's variables that turn thinking on or off; empty for its default."""

    @classmethod
    def load(
        cls, model_dir: Path, *, chat_template: str | None = None, thinking: str | None = None
    ) -> ChatTemplate:
        """Read a model directory. Raises ConfigError for a file that is missing or broken, or a
        template that cannot be trained with.

        Args:
            chat_template: `model.chat_template`, in place of the model's own template.
            thinking: `prompt.thinking`: a tag turns thinking on where the template's default prompt
                leaves no place for it, an empty text turns it off; None for the default.
        """
        tokenizer = load_tokenizer(model_dir)
        config = read_object(model_dir / "tokenizer_config.json")
        names = special_names(model_dir, config)
        stops = stop_ids(model_dir, tokenizer, names.get("eos_token"))
        template = find_template(
            model_dir, config, asked=chat_template, tokenizer=tokenizer, end=stops[0],
            variables=names,
        )  # fmt: skip
        added = tokenizer.get_added_tokens_decoder()
        found = cls(
            tokenizer=tokenizer,
            template=template,
            special_tokens=names,
            stop_token_ids=stops,
            _special_ids={t.content: i for i, t in added.items() if t.special},
            tag=thinking or THINKING,
        )
        return within_trial(lambda: found._fitted(thinking), name=template.name)

    def _fitted(self, thinking: str | None) -> ChatTemplate:
        """The template with its switches and its own end of an answer. Raises ConfigError for a tag
        that the generation prompt contradicts."""
        found = self
        if thinking == "":
            found = replace(self, switches=dict.fromkeys(_SWITCHES, False))
        elif thinking and not self.form.can_think:
            on = replace(self, switches=dict.fromkeys(_SWITCHES, True))
            found = on if on.form.can_think else self
        form = found.form
        if form.tag and not form.in_fields and form.tag != found.tag:
            if thinking:
                raise ConfigError(
                    f'prompt.thinking: found "{thinking}", and the chat template begins answers '
                    f'with <{form.tag}>; "{form.tag}" or ""'
                )
            found = replace(found, tag=form.tag)
        inside = form.before_thought + form.between + form.before
        stops = [number for name, number in self._stop_names.items() if name and name not in inside]
        end = found._tokenize(form.end)[-1]
        return replace(found, stop_token_ids=tuple(dict.fromkeys([end, *stops])))

    @cached_property
    def form(self) -> answer_form.AnswerForm:
        """How the template writes an answer. Raises ConfigError if it writes none, or no end."""
        try:
            return answer_form.find_form(
                self._render, tag=self.tag, special=self._special_ids, stops=self._stop_names
            )
        except ValueError as error:
            raise ConfigError(f"{self.template.name}: {error}") from None

    @property
    def _stop_names(self) -> dict[str, int]:
        names = {number: self.tokenizer.id_to_token(number) for number in self.stop_token_ids}
        return {name: number for number, name in names.items() if name}

    @property
    def vocab_size(self) -> int:
        """Number of tokens, with added tokens."""
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    @cached_property
    def tool_form(self) -> answer_form.ToolForm | None:
        """How the template writes calls of tools; None if it does not, or not in a known form."""
        return answer_form.find_tool_form(self._render, special=self._special_ids)

    def prompt(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Prompt:
        """The conversation, ready for the model's next turn. `tools`: schemas for a template with a
        `tool_form`."""
        text = self._apply(messages, True, tools)
        return Prompt(
            ids=tuple(self._tokenize(text)), messages=tuple(messages), text=text.replace(_GUARD, "")
        )

    def following(
        self, reply: Message, answer_ids: Sequence[int], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Token ids after an answer, from its end on: a reply, and the generation prompt. What was
        sampled stays as it is, whatever the template makes of earlier answers."""
        question = Message(role="user", content=answer_form.QUESTION)
        answer = Message(role="assistant", content=answer_form.ANSWER)
        text = self._apply([question, answer, reply], True, tools)
        ids, end = (
            self._tokenize(text.partition(answer_form.ANSWER)[2]),
            self._tokenize(self.form.end),
        )
        played = list(answer_ids)
        known = 0
        if played[-len(end) :] == end:  # an end of the last answer alone may begin as others do
            pairs = enumerate(zip(ids, end, strict=False))
            known = next((num for num, (one, other) in pairs if one != other), len(end))
        overlaps = (num for num in range(1, len(ids)) if played[-num:] == ids[:num])
        return ids[max(known, next(overlaps, 0)) :]

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

    def training_row(self, messages: Sequence[Message]) -> TrainingRow:
        """The prompt as the engine sees it, then the last message as the model has to write it.
        Raises ConfigError if that does not continue the prompt."""
        prompt, answer = self._texts(messages)
        prompt_ids = self._tokenize(prompt)
        answer_ids = self._following(prompt, prompt_ids, answer)
        mask = [0] * len(prompt_ids) + [1] * len(answer_ids)
        return TrainingRow(input_ids=prompt_ids + answer_ids, completion_mask=mask)

    def _texts(self, messages: Sequence[Message]) -> tuple[str, str]:
        """The prompt and what follows it. The answer is the template's own rendering; where that
        loses some of it, or thinking which the prompt has begun, it is put together by `form`."""
        form = self.form
        prompt = self._apply(messages[:-1], add_generation_prompt=True)
        written = self._apply(messages, add_generation_prompt=False)
        content = self._guarded(messages[-1].content, is_answer=True)
        thinking, answer = self._split(content)
        is_closed = prompt.rstrip().endswith(f"</{self.tag}>")
        rest = None if is_closed and thinking else answer_form.continued(written, prompt)
        if rest is not None and rest.endswith(form.tail):
            body = rest.removesuffix(form.tail)
            opening = f"<{self.tag}>"
            is_once = not thinking or body.count(opening) <= content.count(opening)
            if is_once and thinking.strip() in body and answer.strip() in body:
                return prompt, body + form.end
        has_place = form.can_think if thinking else form.opened or form.continues or is_closed
        if rest is None and (not has_place or (is_closed and thinking)):
            what = "the thinking of this answer" if thinking else "this answer"
            raise self._without_place(what, prompt)
        is_bare = is_closed and form.opened
        text = answer if is_bare else self._put_together(content, thinking, answer)
        return prompt, text + form.end

    def _without_place(self, what: str, prompt: str) -> ConfigError:
        return ConfigError(
            f"{self.template.name}: the prompt has no place for {what}: it ends with "
            f"{prompt[-24:].replace(_GUARD, '')!r}; prompt.thinking turns thinking on and off"
        )

    def _put_together(self, content: str, thinking: str, answer: str) -> str:
        form = self.form
        if form.in_fields and thinking:
            return form.before_thought + thinking + form.between + answer
        if form.in_fields:
            return (form.before if form.continues else form.closing) + answer
        if not form.opened:
            return (form.before if form.is_spaced else "") + content
        if not thinking and f"</{self.tag}>" not in content:
            return form.closing + answer
        begun = form.opened.removeprefix(f"<{self.tag}>")
        return content.lstrip().removeprefix(f"<{self.tag}>").removeprefix(begun)

    def _split(self, content: str) -> tuple[str, str]:
        """Thinking at the start of an answer, without its tags, and the rest. Without the opening
        tag only if the prompt holds it."""
        opening, closing = f"<{self.tag}>", f"</{self.tag}>"
        is_opened = content.lstrip().startswith(opening)
        if not is_opened and not (self.form.opened and opening not in content):
            return "", content
        thinking, closed, rest = content.partition(closing)
        if not closed and not is_opened:
            return "", content
        return thinking.lstrip().removeprefix(opening).strip(), rest.lstrip("\n")

    def _following(self, prompt: str, prompt_ids: list[int], answer: str) -> list[int]:
        """Ids of an answer after those of its prompt: as one text unless a token of it would begin
        in the prompt. Alone, some tokenizers put a space before it."""
        ids, num = self._tokenize(prompt + answer), len(prompt_ids)
        return ids[num:] if ids[:num] == prompt_ids else self._tokenize(answer)

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
        return len(self.training_row(messages).input_ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The content of the message that a completion makes: what `training_row` takes, with the
        thinking in its tag, and the start of it that the prompt held. Without `skip_special` the
        text of all tokens."""
        if not skip_special:
            return self.tokenizer.decode(list(ids), skip_special_tokens=False)
        form, tags = self.form, {f"<{self.tag}>", f"</{self.tag}>"}
        end = self._tokenize(form.end)
        ids = ids[: -len(end)] if list(ids[-len(end) :]) == end else ids
        if form.has_headers:
            return self._read_headers(self._marked(ids))
        if tags.isdisjoint(self._special_ids):
            text = self.tokenizer.decode(list(ids))
        else:
            text = self._unmarked(self._marked(ids), kept=tags)
        return form.opened + (text.lstrip() if form.is_spaced else text)

    def _read_headers(self, text: str) -> str:
        """The content for a completion with the template's own headers around thinking and answer.
        The text ends before a header that is not complete, so that a stream only grows."""
        form, text = self.form, text.lstrip()
        before_thought, before = form.before_thought.strip(), form.before.strip()
        if before and text.startswith(before):
            return self._unmarked(text.removeprefix(before)).lstrip()
        if not form.between:  # a prompt that leaves no place for thinking
            return self._unmarked(text)
        thinking, closed, rest = text.partition(form.between.strip())
        if not closed and any(header.startswith(text) for header in (before_thought, before)):
            return ""
        if not closed and not (text.startswith(before_thought) if before_thought else form.opened):
            return self._unmarked(text)
        thinking = thinking.removeprefix(before_thought)
        shown = thinking if closed else _without_start_of(form.between.strip(), thinking)
        shown, rest = self._unmarked(shown).strip(), self._unmarked(rest).lstrip()
        if not shown:
            return rest
        return f"<{self.tag}>\n{shown}" + (f"\n</{self.tag}>\n\n{rest}" if closed else "")

    def _unmarked(self, text: str, *, kept: Collection[str] = ()) -> str:
        """A marked text without special tokens, other than these."""
        pieces = self._special_pattern.split(text)
        shown = (piece for piece in pieces if piece in kept or piece not in self._special_ids)
        return "".join(shown).replace(_GUARD, "")

    def _marked(self, ids: Sequence[int]) -> str:
        """Text of token ids with special tokens by name, and letters that spell one guarded."""
        names = {number: name for name, number in self._special_ids.items()}
        parts = list[str]()
        for is_special, group in itertools.groupby(ids, key=names.__contains__):
            found = list(group)
            plain = "" if is_special else self._guarded(self.tokenizer.decode(found))
            parts.append("".join(names[number] for number in found) if is_special else plain)
        return "".join(parts)

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

    def _apply(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        return self._render(list(map(self._fields, messages)), add_generation_prompt, tools)

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        return self.template.render(
            messages=messages,
            add_generation_prompt=add_generation_prompt,
            tools=list(tools) or None,
            documents=None,
            **self.special_tokens,
            **self.switches,
        )

    def _fields(self, message: Message) -> dict[str, Any]:
        """A message as the template reads it."""
        is_answer = message.role == "assistant"
        content = self._guarded(message.content, is_answer=is_answer)
        thinking = ""
        if is_answer and self.form.in_fields:
            thinking, content = self._split(content)
        if thinking and self.form.in_parts:
            return {"role": message.role, "content": answer_form.parts_of(thinking, content)}
        fields = dict.fromkeys(answer_form.FIELDS, thinking) if thinking else {}
        return {"role": message.role, "content": content, **fields}

    def _guarded(self, text: str, *, is_answer: bool = False) -> str:
        """The text with every special token's name split after its first character; without tags of
        thinking in an answer."""
        text = text.replace(_GUARD, "")
        if not any(name in text for name in self._special_ids):
            return text
        kept = {f"<{self.tag}>", f"</{self.tag}>"} if is_answer else set[str]()
        return self._special_pattern.sub(
            lambda m: m[0] if m[0] in kept else m[0][0] + _GUARD + m[0][1:], text
        )


def _without_start_of(header: str, text: str) -> str:
    """The text without the beginning of a header at its end."""
    lengths = range(min(len(header), len(text)), 0, -1)
    return text[: len(text) - next((n for n in lengths if text.endswith(header[:n])), 0)]


def _continues(row: TrainingRow, earlier: TrainingRow) -> bool:
    """True if the prompt of a row begins with all tokens of an earlier row."""
    num, num_prompt = len(earlier.input_ids), row.completion_mask.index(1)
    return num <= num_prompt and row.input_ids[:num] == earlier.input_ids
