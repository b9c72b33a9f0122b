"""SFT rows from files, and the conversation of a row, in any of the columns that people have, with
its thinking in one tag.

`read_pairs` is called while a run is prepared, in a thread. A row that is no conversation is an
error, which names file and row; a row that must not be trained on (a duplicate) is left out,
counted by its reason, and shown at the run's start. Other formats are read by `forge data build`.

Runs, `forge data build` and `forge data show` read rows through `conversation` and `retag`. A row
is known by its columns:

    messages | conversations        a list of role and content, or of from and value (ShareGPT)
    prompt and completion           two texts, or two lists of messages (TRL)
    prompt and response             two texts
    instruction, input, output      Alpaca's; input may be absent or empty

A column `system` is the first message. Contents are texts, or lists of parts (`text`, `thinking`).
Thinking is in the content, or in one of `THOUGHTS` beside it. What forge does not train on (tools,
images, weights of messages) is refused by name.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from forge.data.answers import fenced_blocks
from forge.data.pairs.rows import (
    KEY,
    BadRow,
    LeftOut,
    Unfit,
    columns_of,
    is_unicode,
    kind_of,
    row_files,
    rows_of,
    short,
    text_of,
)
from forge.data.prompts.prompt_set import PromptSet
from forge.errors import ConfigError
from forge.records import Message, Pair

THOUGHTS = ("reasoning_content", "reasoning", "thinking", "model_reasoning", "reasoning_details")
"""Fields with the thinking of an answer."""
ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant",
    "model": "assistant",
}  # fmt: skip
"""Roles by their names."""
LISTS = (("messages",), ("conversations",))
"""Columns with a whole conversation."""
PAIRS = (("prompt", "completion"), ("prompt", "response"), ("instruction", "output"))
"""Columns of a question and its answer."""
ALLOWED = "a row has messages or conversations, or " + " or ".join(map(" and ".join, PAIRS))
SYSTEM = ("system", "system_prompt")
UNREAD_COLUMNS = (
    "tools", "history", "images", "videos", "audios", "chosen", "rejected", "chat_template_kwargs",
)  # fmt: skip
"""Columns beside a conversation that change what it means."""
UNREAD_FIELDS = (
    "tool_calls", "tool_call_id", "function_call", "name", "images", "audio", "refusal",
)  # fmt: skip
"""Fields of a message that change what it means."""
WEIGHTS = ("weight", "loss", "train")
"""Fields that say how much a message is trained: 1 for an answer, 0 or 1 for another one."""
EMPTY = (None, "", [], {}, "[]", "null")
TEXT_PARTS = ("text", "input_text", "output_text")
THINKING_PARTS = ("thinking", "reasoning", "reasoning.text")
TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
)
"""Tags of thinking in public models and data sets."""
MAX_THOUGHTS = 8
"""Most pairs of tags at the start of an answer: each takes a pass over it."""

logger = logging.getLogger(__name__)
LEFT_OUT = "`forge data build` leaves such rows out, and lists them"
MADE = (
    ({"python_code"}, "`forge data harvest rows:PATH` makes answers and conversations of problems"),
    *(
        (columns, f'`forge data build` with input.format = "{name}" makes conversations of them')
        for name, columns in (
            ("trinity", {"pytorch_code", "triton_code"}), ("traces", {"pytorch_code", "turns"}),
        )
    ),
)  # fmt: skip
"""Columns of rows that are no conversations yet, and the command that makes some of them."""


class BadThinking(Unfit):
    """An answer without thinking that is required, or with thinking that has no clear end."""


def conversation(row: Mapping[str, Any], *, tag: str) -> tuple[Message, ...]:
    """The messages of a row, the last one an answer; thinking stands before each answer in the
    run's tag, empty for none. Raises BadRow for columns of no known form, or what forge does not
    train on; Unfit if the last message is no answer, one is empty, or thinking is unclear."""
    names = _form(row)
    listed = _list(row, *names) if names in LISTS else _exchange(row, *names)
    messages = [_message(each, tag=tag) for each in [*_system(row, listed[0]), *listed]]
    last = messages[-1]
    if last.role != "assistant":
        raise Unfit("last message is no answer")
    if names in PAIRS:
        content = with_thinking(last.content, thinking_of(row), tag=tag)
        messages[-1] = replace(last, content=content)
    for one in messages:
        if one.role != "system" and not one.content.strip():
            raise Unfit(f"an empty message of role {one.role}")
    return tuple(messages)


def thinking_of(fields: Mapping[str, Any]) -> list[str]:
    """The texts of thinking in the fields of an answer or attempt. Raises BadRow."""
    found = (_thinking(fields[name], name) for name in THOUGHTS if fields.get(name) is not None)
    return [text for text in found if text.strip()]


def with_thinking(content: str, thoughts: Sequence[str], *, tag: str) -> str:
    """An answer with its thinking, from fields and from its own start, in one pair of tags. Raises
    BadThinking for two different texts of thinking, or one that does not end."""
    inside, answer = _split(content, tag)
    texts = [*(_bare(text, _tags(tag)) for text in thoughts), *inside]
    distinct = {" ".join(text.split()): text for text in reversed(texts) if text}
    if len(distinct) > 1:
        raise BadThinking("two different texts of thinking in one answer")
    if not distinct:
        return content if answer is None else answer
    (thinking,) = distinct.values()
    rest = content.lstrip("\n") if answer is None else answer
    if not rest.strip():
        raise BadThinking("thinking without an answer")
    tag = tag or "think"
    return f"<{tag}>\n{thinking}\n</{tag}>\n\n{rest}"


def retag(messages: Sequence[Message], *, tag: str, mode: str = "keep") -> tuple[Message, ...]:
    """The messages with the thinking of each answer in the tag of the run (`prompt.thinking`, empty
    for none), by the `thinking.mode` of a build. Raises BadThinking as `with_thinking`, or if the
    last answer has none and the mode requires it."""
    done = tuple(
        replace(one, content=_retagged(one.content, tag, is_kept=bool(tag) and mode != "drop"))
        if one.role == "assistant"
        else one
        for one in messages
    )
    if mode == "require" and not (tag and done[-1].content.startswith(f"<{tag}>")):
        raise BadThinking("without thinking")
    return done


def _retagged(content: str, tag: str, *, is_kept: bool) -> str:
    if is_kept:
        return with_thinking(content, (), tag=tag)
    answer = _split(content, tag)[1]
    return content if answer is None else answer


def _tags(tag: str) -> tuple[tuple[str, str], ...]:
    return (*TAGS, (f"<{tag}>", f"</{tag}>")) if tag else TAGS


def _split(content: str, tag: str) -> tuple[list[str], str | None]:
    """The texts of thinking at the start of an answer, and the answer; None if there is none."""
    tags = _tags(tag)
    texts: list[str] = []
    answer = None
    while (found := _first(content if answer is None else answer, tags)) is not None:
        if len(texts) == MAX_THOUGHTS:
            raise BadThinking(f"thinking in more than {MAX_THOUGHTS} places of one answer")
        thinking, rest = found
        texts.append(_bare(thinking, tags))
        answer = rest.lstrip("\n")
    return texts, answer


def _first(content: str, tags: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """The first thinking and what follows; None without thinking."""
    stripped = content.lstrip()
    for opened, closed in tags:
        if stripped.startswith(opened):
            thinking, end, rest = stripped[len(opened) :].partition(closed)
            if not end:
                raise BadThinking("thinking without an end")
            return thinking, rest
    for opened, closed in tags:  # the template opened it
        thinking, end, rest = content.partition(closed)
        if end and not _is_quoted(content, len(thinking)):
            if opened in thinking:
                raise BadThinking("thinking after the start of an answer")
            return thinking, rest
    return None


def _is_quoted(content: str, at: int) -> bool:
    """True for a tag in a block of code or in quotes: words about it."""
    if content[max(at - 1, 0) : at] in ("`", "'", '"'):
        return True
    blocks = fenced_blocks(content)  # words may stand before an opening fence
    return any(content.find("\n", block.start) < at < block.end for block in blocks)


def _bare(thinking: str, tags: Sequence[tuple[str, str]]) -> str:
    """Thinking without tags around it: some data sets have them inside of the field, too."""
    text = thinking.strip()
    for opened, closed in tags:
        text = text.removeprefix(opened).removesuffix(closed).strip()
    return text


def _form(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns that hold the conversation."""
    forms = [names for names in (*LISTS, *PAIRS) if all(row.get(one) is not None for one in names)]
    if len(forms) != 1:
        found = " as well as ".join(map(" and ".join, forms)) or f"columns {columns_of(row)}"
        raise BadRow(f"found {found}; {ALLOWED}")
    for name in UNREAD_COLUMNS:
        if row.get(name) not in EMPTY:
            raise BadRow(f"found column {name}, which is not trained on; {ALLOWED}, without it")
    return forms[0]


def _system(row: Mapping[str, Any], first: Any) -> list[dict[str, Any]]:
    """The message of the column `system`, if it holds any."""
    found = [row[name] for name in SYSTEM if row.get(name) not in EMPTY]
    if len(found) > 1 or (found and _role(first) == "system"):
        raise BadRow(f"found two system texts; one of a message or of {', '.join(SYSTEM)}")
    return [{"role": "system", "content": text} for text in found]


def _list(row: Mapping[str, Any], name: str) -> list[Any]:
    found = row[name]
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError) as err:
            raise BadRow(f"{name} is text that is no JSON: {err}") from None
    if not isinstance(found, list) or not found:
        raise BadRow(f"{name}: found {kind_of(found)}; a list of messages that is not empty")
    apart = [each for each in THOUGHTS if row.get(each) and isinstance(row[each], str)]
    if apart:
        raise BadRow(f"found column {apart[0]}; thinking is read from the messages in {name}")
    return found


def _exchange(row: Mapping[str, Any], asked: str, answered: str) -> list[Any]:
    """Question and answer, each a text, a list of parts, or a list of messages."""
    listed = [*_side(row, asked, "user"), *_side(row, answered, "assistant")]
    if asked == "instruction" and row.get("input") not in EMPTY:
        question = f"{text_of(row, asked)}\n\n{text_of(row, 'input')}".rstrip()
        listed[0] = {"role": "user", "content": question}
    return listed


def _side(row: Mapping[str, Any], name: str, role: str) -> list[Any]:
    found = row[name]
    if isinstance(found, list) and found and any(map(_role, found)):
        return found
    return [{"role": role, "content": found if isinstance(found, list) else text_of(row, name)}]


def _message(found: Any, *, tag: str) -> Message:
    role = ROLES.get(_role(found))
    if role is None:
        said = short(_role(found)) or f"nothing in {kind_of(found)}"
        raise BadRow(f"role: found {said}; a message has a role of {', '.join(ROLES)}")
    for name in UNREAD_FIELDS:
        if found.get(name) not in EMPTY:
            raise BadRow(f"a message with {name}, which is not trained on; role and content alone")
    for name in WEIGHTS:
        if found.get(name) not in ((None, 1) if role == "assistant" else (None, 0, 1)):
            raise BadRow(f"{name}: found {short(found[name])}; 1: forge trains whole answers")
    content, inside = _content(found)
    thoughts = [*thinking_of(found), *inside]
    if role == "assistant":
        return Message(role=role, content=with_thinking(content, thoughts, tag=tag))
    if thoughts:
        raise BadRow(f"thinking in a message of role {role}; in answers alone")
    return Message(role=role, content=content)


def _role(message: Any) -> str:
    found = message.get("role") or message.get("from") if isinstance(message, Mapping) else None
    return found if isinstance(found, str) else ""


def _content(message: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The text of a message, and the thinking among its parts as one text, if there is any."""
    name = "value" if message.get("content") is None and "value" in message else "content"
    if not isinstance(message.get(name), list):
        return text_of(message, name), []
    texts: list[str] = []
    thoughts: list[str] = []
    for part in message[name]:
        kind = _part_kind(part)
        if kind in THINKING_PARTS:
            if any(map(str.strip, texts)):
                raise BadRow(f"{name}: found thinking after text; thinking first")
            thoughts.append(_thought(part, name))
        elif kind in TEXT_PARTS:
            texts.append(part if isinstance(part, str) else text_of(part, "text"))
        else:
            raise BadRow(f"{name}: found a part of type {short(kind)}; text or thinking")
    thinking = "\n\n".join(text for text in thoughts if text.strip())
    return "\n".join(texts), [thinking] if thinking else []


def _part_kind(part: Any) -> Any:
    if isinstance(part, str):
        return "text"
    return part.get("type") or "text" if isinstance(part, Mapping) else kind_of(part)


def _thought(part: Mapping[str, Any], name: str) -> str:
    """The text of a part with thinking, which is under one of several names."""
    keys = ("thinking", "reasoning", "text", "content")
    return _thinking(next((part[key] for key in keys if part.get(key) is not None), None), name)


def _thinking(found: Any, name: str) -> str:
    """Thinking as a text, or as a list of parts."""
    if isinstance(found, str):
        return found
    if not isinstance(found, list):
        raise BadRow(f"{name}: found {kind_of(found)}; a text")
    texts: list[str] = []
    for part in found:
        kind = _part_kind(part)
        if kind not in (*TEXT_PARTS, *THINKING_PARTS):
            raise BadRow(f"{name}: found a part of type {short(kind)}; text")
        key = "text" if isinstance(part, str) or part.get("text") is not None else "thinking"
        texts.append(part if isinstance(part, str) else text_of(part, key))
    return "\n".join(texts)


def _maker(row: Mapping[str, Any]) -> str | None:
    """The command that makes conversations of rows with these columns."""
    if "messages" in row:
        return None
    return next((command for columns, command in MADE if columns <= row.keys()), None)


def id_of(row: Mapping[str, Any], name: str, number: int) -> str:
    """The value of a column, or else the row's number."""
    found = row.get(name)
    return str(number if found is None else found)


def messages_pair(row: Mapping[str, Any], *, number: int, prompts: PromptSet) -> Pair:
    """A row with a conversation. Its id is `id`, or the row's number."""
    if maker := _maker(row):
        raise BadRow(f"found columns {columns_of(row)}, which are no conversation; {maker}")
    messages = conversation(row, tag=prompts.thinking)
    num_turns = sum(message.role == "assistant" for message in messages)
    return Pair(problem_id=id_of(row, "id", number), messages=messages, num_turns=num_turns)


def read_pairs(
    path: Path, *, prompts: PromptSet, key: str = KEY, say: Callable[[str], None] = logger.info
) -> list[Pair]:
    """The conversations of a file or directory in the order of the files, without duplicates, with
    the run's tag of thinking. Questions in the run's own templates state the facts of the run;
    others keep their messages. `say` gets the number of rows, and what was left out and why. Raises
    ConfigError, which names `key`; MachineError without pyarrow."""
    pairs: dict[tuple[Message, ...], Pair] = {}
    left_out, bare = LeftOut(), LeftOut()
    num_restated = 0
    for file in row_files(path, key=key):
        for number, row in enumerate(rows_of(file, key=key), start=1):
            place = f"{file.name}, row {number}"
            try:
                pair = messages_pair(row, number=number, prompts=prompts)
                retagged = retag(pair.messages, tag=prompts.thinking)
                messages = prompts.restated(retagged)
                num_restated += messages != retagged
                if not all(is_unicode(one.content) for one in messages):
                    raise Unfit("text that is no Unicode")
            except Unfit as reason:
                left_out.add(str(reason), place)
                continue
            except BadRow as err:
                advice = "" if _maker(row) else f"; {LEFT_OUT}"
                raise ConfigError(f"{key}: {file}, row {number}: {err}{advice}") from None
            if not prompts.thinking and retagged != pair.messages:
                bare.add("trained without their thinking, as prompt.thinking is empty", place)
            if messages in pairs:
                left_out.add("the same again", place)
            pairs.setdefault(messages, replace(pair, messages=messages))
    if not pairs:
        raise ConfigError(f"{key}: {path}: no row to train on; left out: {left_out}")
    said = f"; {bare}" if bare.counts else ""
    said += f"; {num_restated} with this run's prompts" if num_restated else ""
    say(f"{len(pairs)} rows from {path}; left out: {left_out}{said}")
    return list(pairs.values())
