"""The chat template of a model: its file, compiled in a sandbox, and which messages it takes; and
its tokenizer, special tokens by name, and the ids that end an answer.

Called by `ChatTemplate`. A template is third-party code: it is tried once, within a deadline, when
it is loaded. Where it refuses or drops the system's text, or two questions in a row, `render`
joins them to one question; what it raises is a ConfigError with the file, the line and the message.
Not covered: a loop without end for certain messages only.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forge.config.schema import CHATML, names_file
from forge.errors import ConfigError

if TYPE_CHECKING:
    import jinja2
    from tokenizers import Tokenizer

T = TypeVar("T")
_SPECIAL_NAMES = tuple(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
CHATML_LINES = (
    "{%- for message in messages -%}\n",
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + OVER + '\\n' -}}\n",
    "{%- endfor -%}\n",
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}\n",
)
"""ChatML, with OVER for the text of the token that ends a message."""
KEY = "chat_template"
FILE = "chat_template.jinja"
SOURCES = (FILE, "chat_template.json", "additional_chat_templates")
"""Files and the folder of a model directory that hold nothing but templates."""
TRIAL_S = 10.0
"""Maximum time for the trial of a template, which takes a millisecond."""
MAX_REPEATED = 1_000_000
"""Maximum length of what a template makes with `*`."""
_SYSTEM, _QUESTION, _ANSWER, _NEXT = (
    {"role": role, "content": text}
    for role, text in [
        ("system", "Forges are hot."), ("user", "What is 7?"), ("assistant", "A prime."),
        ("user", "And 9?"),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    name: str
    """Its file, or the key that has it."""
    source: str
    compiled: jinja2.Template
    takes_system: bool = True
    """False: a first system message joins the question after it."""
    takes_later_system: bool = True
    """The same for a system message after others."""
    takes_two_questions: bool = True
    """False: two user messages in a row are one."""
    takes_text: bool = True
    """False: content is a list of parts."""

    @property
    def note(self) -> str:
        """A line about messages that are joined for this template; empty if none are."""
        joined = {
            "takes no system message, so its text joins the question": self.takes_system,
            "takes no two questions in a row, so they are joined": self.takes_two_questions,
        }
        lines = [line for line, takes in joined.items() if not takes]
        return f"{self.name}: {'; '.join(lines)}" if lines else ""

    def render(self, *, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The text of a conversation. Raises ConfigError for what the template raises."""
        messages = self._joined(messages)
        try:
            return self._write(messages, variables)
        except Exception as error:  # whatever the code of a template raises
            refused = self._refused(messages, variables)
            raise ConfigError(f"{self.name}{_line(error)}: {_named(error)}, {refused}") from error

    def _write(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        if not self.takes_text:
            messages = [
                m
                if isinstance(m["content"], list)
                else {**m, "content": [{"type": "text", "text": m["content"]}]}
                for m in messages
            ]
        return self.compiled.render(messages=messages, **variables)

    def _refused(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """The first message at which the template raises."""
        for number, message in enumerate(messages, 1):
            try:
                self._write(messages[:number], variables)
            except Exception:  # as in `render`
                return f"for message {number} of {len(messages)}, whose role is {message['role']}"
        return "for the whole conversation"

    def _joined(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages that the template gets."""
        if self.takes_system and self.takes_later_system and self.takes_two_questions:
            return messages
        found = list[dict[str, Any]]()
        is_open = False
        for index, message in enumerate(messages):
            takes = self.takes_later_system if index else self.takes_system
            is_system = message["role"] == "system" and not takes
            new = {**message, "role": "user"} if is_system else dict(message)
            follows = bool(found) and new["role"] == found[-1]["role"] == "user"
            if follows and (is_open or not self.takes_two_questions):
                new["content"] = found.pop()["content"] + "\n\n" + new["content"]
            found.append(new)
            is_open = is_system
        return found

    def tried(self, variables: Mapping[str, Any]) -> Template:
        """The template with what it takes. Raises ConfigError if it writes no question."""
        kinds = (self, replace(self, takes_text=False))
        found = next((each for each in kinds if each._arrive(variables, _QUESTION)), None)
        if found is None:
            self.render(messages=[_QUESTION], add_generation_prompt=True, **variables)
            raise ConfigError(f"{self.name}: drops the text of a user's message")
        return replace(
            found,
            takes_system=found._arrive(variables, _SYSTEM, _QUESTION),
            takes_later_system=found._arrive(variables, _QUESTION, _ANSWER, _SYSTEM, _NEXT),
            takes_two_questions=found._arrive(variables, _QUESTION, _NEXT),
        )

    def _arrive(self, variables: Mapping[str, Any], *messages: Mapping[str, str]) -> bool:
        """True if the text of every message is in the prompt."""
        try:
            text = self._write(messages, {**variables, "add_generation_prompt": True})
        except Exception:  # as in `render`
            return False
        return all(message["content"] in text for message in messages)


def find_template(
    model_dir: Path,
    config: Mapping[str, Any],
    *,
    asked: str | None,
    tokenizer: Tokenizer,
    end: int,
    variables: Mapping[str, Any],
) -> Template:
    """The template of a model directory with this tokenizer_config.json, or the one that
    `model.chat_template` asks for: "chatml", which ends messages with the id `end`, a file, or a
    text. Raises ConfigError for none that can be used."""
    if asked is None:
        name, source = _own(model_dir, config)
    elif asked == CHATML:
        name, source = f'{KEY} = "{CHATML}"', _chatml(tokenizer, end)
    else:
        name, source = asked if names_file(asked) else KEY, text_of(asked) or ""
    return try_template(name, source, variables)


def try_template(name: str, source: str, variables: Mapping[str, Any]) -> Template:
    """The template with this text, tried. Raises ConfigError if it cannot be used."""
    given = {"tools": None, "documents": None, **variables}
    return within_trial(lambda: compiled(name, source).tried(given), name=name)


def text_of(asked: str | None) -> str | None:
    """`model.chat_template` as a run records it: the text in place of a file."""
    return _read(Path(asked)) if asked is not None and names_file(asked) else asked


def _chatml(tokenizer: Tokenizer, end: int) -> str:
    """ChatML. Each message ends with the end of sequence, a token that every model knows; a text
    begins with the token that the tokenizer itself puts there."""
    first = tokenizer.encode("").ids[:1]
    over, *begin = (json.dumps(tokenizer.id_to_token(n), ensure_ascii=False) for n in (end, *first))
    start = [f"{{{{- {begin[0]} -}}}}\n"] if begin and begin[0] != over else []
    return "".join([*start, *(line.replace("OVER", over) for line in CHATML_LINES)])


def _own(model_dir: Path, config: Mapping[str, Any]) -> tuple[str, str]:
    """Name and text of a model directory's template, in transformers' order."""
    path = model_dir / FILE
    if path.is_file():
        return str(path), _read(path)
    further, processor = model_dir / SOURCES[2], model_dir / SOURCES[1]
    places: list[tuple[str, Any]] = [
        (str(further), {each.stem: _read(each) for each in sorted(further.glob("*.jinja"))}),
        (f"{model_dir}/tokenizer_config.json: {KEY}", config.get(KEY)),
        (f"{processor}: {KEY}", read_object(processor).get(KEY)),
    ]
    for name, found in places:
        if isinstance(found, list):
            found = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
        if isinstance(found, dict) and found:
            only = next(iter(found.values())) if len(found) == 1 else None
            if not isinstance(found := found.get("default", only), str):
                raise ConfigError(f'{name}: has several templates, and none is named "default"')
        if isinstance(found, str):
            return name, found
    raise absent_template(model_dir)


def absent_template(path: Path) -> ConfigError:
    return ConfigError(f'{path}: no chat template; [model] chat_template = "{CHATML}" or a file')


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty without the file. Raises ConfigError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: not a JSON object")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def within_trial(work: Callable[[], T], *, name: str) -> T:
    """The result of `work`, which runs in a thread that ends with the process. Raises ConfigError
    after `TRIAL_S`."""
    found = list[T | BaseException]()

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # raised again below
            found.append(error)

    thread = threading.Thread(target=run, name="template", daemon=True)
    thread.start()
    thread.join(TRIAL_S)
    if not found:
        raise ConfigError(f"{name}: wrote no end of a short conversation in {TRIAL_S:.0f} s")
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _named(error: Exception) -> str:
    """The kind of an error, and the beginning of its message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _line(error: Exception) -> str:
    """The line of the template at which it was raised; empty if that is unknown."""
    trace, number = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            number = trace.tb_lineno
        trace = trace.tb_next
    return f":{number}" if number else ""


def compiled(name: str, source: str) -> Template:
    """Compile as transformers does: in a sandbox."""
    import jinja2
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks trained text; here only its body is rendered."""

        tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Sandbox(ImmutableSandboxedEnvironment):
        """Also refuses powers and long repetitions, which no deadline interrupts."""

        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            sizes = [len(each) if hasattr(each, "__len__") else each for each in (left, right)]
            if (sizes != [left, right] or operator == "**") and sizes[0] * sizes[1] > MAX_REPEATED:
                raise SecurityError(f"{operator} with too large a result")
            return super().call_binop(context, operator, left, right)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, indent: int | None = None, **kwargs: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent, **kwargs)

    env = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    try:
        return Template(name=name, source=source, compiled=env.from_string(source))
    except jinja2.TemplateSyntaxError as err:
        raise ConfigError(f"{name}:{err.lineno}: {err.message}") from err
    except Exception as err:  # the compiler runs constant expressions
        raise ConfigError(f"{name}: {_named(err)}") from err


def load_tokenizer(model_dir: Path) -> Tokenizer:
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
    """A line about a model directory without tokenizer.json, with what converts another file."""
    others = ("tokenizer.model", "vocab.json", "vocab.txt")
    found = next((name for name in others if (model_dir / name).is_file()), None)
    if found is None:
        return "a model directory needs tokenizer.json"
    command = f"AutoTokenizer.from_pretrained('{model_dir}').save_pretrained('{model_dir}')"
    code = f"from transformers import AutoTokenizer; {command}"
    return f'found {found} alone; python -c "{code}" converts it'


def special_names(model_dir: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by name, each of which may be a text or an object; null means none."""
    found = {**read_object(model_dir / "special_tokens_map.json"), **config}
    named = {key: found.get(key) for key in _SPECIAL_NAMES}
    texts = {k: t.get("content") if isinstance(t, Mapping) else t for k, t in named.items()}
    return {key: text for key, text in texts.items() if text and isinstance(text, str)}


def stop_ids(model_dir: Path, tokenizer: Tokenizer, eos_token: str | None) -> tuple[int, ...]:
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
