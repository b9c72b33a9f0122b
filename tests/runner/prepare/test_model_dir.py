"""`model.chat_template`: read relative to the experiment, checked by the plan, and written with the
model's other files into the directory that a run reads."""

from pathlib import Path

import pytest

from forge.config.load import load_experiment
from forge.config.schema import ModelTable
from forge.data.chat import ChatTemplate
from forge.data.template import text_of
from forge.errors import ConfigError
from forge.records import Message, Pair
from forge.runner.plan.requirements import require_template
from forge.runner.prepare.hub import with_template
from forge.runner.stages.sft import require_roles
from forge.train.checkpoints import link_or_copy
from tests.data.build.samples import write_tokenizer

OWN = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
FIRST = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}"
ANSWER = "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
EXPERIMENT = """
name = "x"
[model]
path = "m"
{key}
[problems]
source = "generated"
[[stage]]
kind = "sft"
steps = 1
learning_rate = 1e-3
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory of Qwen's kind without weights."""
    path = write_tokenizer(tmp_path / "m")
    (path / "config.json").write_text("{}")
    return path


def noted(tmp_path: Path, template: str, *, key: str = 'chat_template = "t.jinja"') -> str:
    """The plan's line about a template, as `model.chat_template`."""
    (tmp_path / "t.jinja").write_text(template)
    (tmp_path / "x.toml").write_text(EXPERIMENT.format(key=key))
    lines = require_template(load_experiment(tmp_path / "x.toml"), None)
    return "".join(lines).replace(f"{tmp_path}/", "")


def test_the_plan_reads_the_template_of_the_experiment(model: Path, tmp_path: Path) -> None:
    assert noted(tmp_path, OWN + ANSWER) == ""
    assert noted(tmp_path, NO_SYSTEM + OWN + ANSWER).startswith("t.jinja: takes no system message")
    assert noted(tmp_path, "", key='chat_template = "chatml"') == ""
    with pytest.raises(ConfigError, match=r"/t\.jinja:2: [^\n]*$"):
        noted(tmp_path, OWN + "\n{{ x }")
    with pytest.raises(
        ConfigError, match=r'x\.toml:5: model\.chat_template: [^\n]*"chatml"[^\n]*$'
    ):
        noted(tmp_path, OWN, key='chat_template = "gone.jinja"')
    (model / "chat_template.jinja").unlink()
    with pytest.raises(
        ConfigError, match=r'm: no chat template; \[model\] chat_template = "chatml"'
    ):
        noted(tmp_path, OWN, key="")


@pytest.mark.parametrize("asked", ["chatml", OWN + ANSWER, "t.jinja"])
def test_a_run_reads_the_template_from_a_directory_of_links(
    model: Path, tmp_path: Path, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.jinja").write_text(OWN + ANSWER)
    table = ModelTable(path=str(model), chat_template=asked)
    own = {path.name: path.read_bytes() for path in model.iterdir()}
    question = [Message(role="user", content="q")]
    want = ChatTemplate.load(model, chat_template=asked).prompt(question)
    made = tmp_path / "run/init"
    for _ in range(2):  # an attempt, and its resume
        assert with_template(table, made).path == str(made)
        assert ChatTemplate.load(made).prompt(question) == want
    assert {path.name for path in made.iterdir()} == own.keys()
    link_or_copy(made / "config.json", tmp_path / "published")
    assert not (tmp_path / "published").is_symlink()
    assert {path.name: path.read_bytes() for path in model.iterdir()} == own
    plain = ModelTable(path=str(model))
    assert with_template(plain, tmp_path / "none") is plain
    text = text_of(asked)
    assert text_of(text) == text
    assert ChatTemplate.load(model, chat_template=text).prompt(question) == want


def test_a_row_of_each_order_of_roles_is_rendered_first(model: Path) -> None:
    chat = ChatTemplate.load(model, chat_template=FIRST + OWN + ANSWER)
    rows = [("user", "assistant")] * 3 + [("assistant", "user", "assistant")]
    pairs = [
        Pair(problem_id=f"r{number}", messages=tuple(messages), num_turns=1)
        for number, roles in enumerate(rows)
        if (messages := [Message(role=role, content="x") for role in roles])
    ]
    require_roles(pairs[:3], chat)
    with pytest.raises(ConfigError, match=r"row r3: [^\n]*user first[^\n]*assistant$"):
        require_roles(pairs, chat)
