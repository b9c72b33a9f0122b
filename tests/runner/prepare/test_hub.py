"""A hub name becomes a directory and a commit, or a one-line error of the right class; and
`model.chat_template`: read relative to the experiment, checked by the plan, and written with the
model's other files into the directory that a run reads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge.config.load import load_experiment
from forge.config.schema import Experiment, ModelTable
from forge.data.chat import ChatTemplate
from forge.data.template import text_of
from forge.errors import ConfigError, MachineError
from forge.records import Message, Pair
from forge.runner.plan.requirements import require_template
from forge.runner.prepare import hub
from forge.runner.prepare import hub as locating
from forge.runner.prepare.hub import locate_model, locate_rows, with_template
from forge.runner.stages.sft import require_roles
from forge.train.checkpoints import link_or_copy
from tests.answering import Handler, answering
from tests.data.build.samples import write_tokenizer

COMMIT = "5" * 40
FILES = {
    "config.json": b'{"model_type": "llama"}', "tokenizer.json": b"[]",
    "model.safetensors": b"weights",
}  # fmt: skip
NOWHERE = "http://127.0.0.1:9"
"""Nothing listens on the discard port."""


class FakeHub(Handler):
    """A hub with one model, `org/tiny`, with one revision, `main`; `org/gated` requires terms."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        commit = {"X-Repo-Commit": COMMIT}
        if path.startswith("/api/models/org/gated"):
            self.answer({}, status=403, headers={"X-Error-Code": "GatedRepo"})
        elif not path.removeprefix("/api/models").startswith("/org/tiny"):
            self.answer({}, status=404, headers={"X-Error-Code": "RepoNotFound"})
        elif path.startswith("/api/models/org/tiny/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": name}
                for name, data in FILES.items()
            ]
            self.answer(tree, headers=commit)
        elif path.startswith("/api/") and path.rpartition("/")[2] not in ("tiny", "main", COMMIT):
            self.answer({}, status=404, headers={"X-Error-Code": "RevisionNotFound"})
        elif path.startswith("/api/"):
            self.answer({"id": "org/tiny", "sha": COMMIT}, headers=commit)
        else:
            name = path.rpartition("/")[2]
            self.send(FILES[name], headers={**commit, "ETag": f'"{name}"'})


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The fake hub replaces the hub, and the cache is empty."""
    from huggingface_hub import constants

    with answering(FakeHub) as url:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", url)
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield


@pytest.fixture
def offline(online: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub cannot be reached; downloaded files are still in the cache."""
    from huggingface_hub import constants

    locate_model(ModelTable(path="org/tiny"))
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)


def test_a_hub_model_is_downloaded_once_and_its_commit_is_known(online: None) -> None:
    said: list[str] = []
    found = locate_model(ModelTable(path="org/tiny"), say=said.append)
    assert found.revision == COMMIT
    assert found.path.endswith(f"snapshots/{COMMIT}")
    assert len(said) == 1
    again = locate_model(ModelTable(path="org/tiny", revision=COMMIT), say=said.append)
    assert again == found
    assert len(said) == 1, "nothing was left to fetch"


@pytest.mark.parametrize("revision", [None, COMMIT])
def test_a_cached_model_needs_no_network(offline: None, revision: str | None) -> None:
    assert locate_model(ModelTable(path="org/tiny", revision=revision)).revision == COMMIT


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (ModelTable(path="org/other"), "neither a directory here nor a model on the hub"),
        (ModelTable(path="my model"), "neither a directory here nor a model on the hub"),
        (ModelTable(path="org/gated"), "gated; accept its terms"),
        (ModelTable(path="org/tiny", revision="v9"), "org/tiny has no such revision"),
    ],
)
def test_a_mistake_of_the_user_is_a_config_error(
    online: None, table: ModelTable, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        locate_model(table)


def test_a_model_that_is_not_cached_is_a_machine_error_without_a_network(offline: None) -> None:
    with pytest.raises(MachineError, match="not whole in the local cache, and the hub cannot be"):
        locate_model(ModelTable(path="org/never-seen"))


def test_a_refusing_proxy_gives_a_one_line_error(
    offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import HfApi

    class ProxyError(Exception):
        """As the HTTP libraries have it: no OSError, and raised as it is."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise ProxyError("407 Proxy Authentication Required")

    monkeypatch.setattr(HfApi, "repo_info", refuse)
    with pytest.raises(MachineError, match="org/tiny: cannot be fetched: 407 Proxy"):
        locate_model(ModelTable(path="org/tiny"))


def test_free_disk_space_is_checked_before_the_download(
    online: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hub, "free_bytes", lambda path: 10)
    with pytest.raises(MachineError, match="set HF_HOME to a larger disk"):
        locate_model(ModelTable(path="org/tiny"))
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_disk_that_fills_up_during_the_download_is_reported_as_full(
    online: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub._snapshot_download.hf_hub_download", fill)
    monkeypatch.setattr(hub, "_ask_disk", lambda *args, **named: 0)
    with pytest.raises(MachineError, match="the disk is full; HF_HOME"):
        locate_model(ModelTable(path="org/tiny"))


def test_a_local_directory_is_used_in_place_and_must_be_complete(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lacks config.json, tokenizer.json, \*.safetensors"):
        locate_model(ModelTable(path=str(tmp_path)))
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    assert locate_model(ModelTable(path=str(tmp_path))).path == str(tmp_path)
    assert locate_model(ModelTable(init="tiny")) == ModelTable(init="tiny")


def experiment(**tables: Any) -> Experiment:
    values = {"name": "x", "model": {"init": "tiny"}, "stage": [{"kind": "eval"}]}
    return Experiment.model_validate({**values, **tables})


def file(path: str | Path) -> dict[str, Any]:
    return {"source": "file", "path": Path(path)}


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """A hub whose `org/json` has JSON only, and `org/none` no rows; asked for name and pattern."""
    asked: list[tuple[str, str]] = []

    def fetch(name: str, *, key: str, kind: str, patterns: tuple[str, ...], say: Any) -> Path:
        asked.append((name, patterns[0]))
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        suffix = {"org/json": "json", "org/none": "txt"}.get(name, "parquet")
        (folder / f"rows.{suffix}").write_text("")
        return folder

    monkeypatch.setattr(locating, "fetch_snapshot", fetch)
    return asked


def test_hub_names_become_directories_and_paths_stay(
    fetched: list[tuple[str, str]], tmp_path: Path
) -> None:
    here = tmp_path / "here.jsonl"
    here.write_text("")
    sources = [file("org/book"), file(here), {"source": "generated"}]
    found = locate_rows(experiment(data=file("org/json"), problems={"sources": sources}))
    assert found.data.path == tmp_path / "org/json"
    assert [part.path for part in found.problems.sources] == [tmp_path / "org/book", here, None]
    assert fetched == [
        ("org/json", "*.parquet"),
        ("org/json", "*.jsonl"),
        ("org/book", "*.parquet"),
    ]
    single = locate_rows(experiment(problems=file("org/book")))
    assert single.problems.path == tmp_path / "org/book"


def test_a_data_set_without_rows_is_an_error(fetched: list[tuple[str, str]]) -> None:
    with pytest.raises(ConfigError, match=r"data\.path: org/none: a data set without Parquet"):
        locate_rows(experiment(data=file("org/none")))


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
