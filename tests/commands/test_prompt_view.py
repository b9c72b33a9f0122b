"""`forge data prompt`: what is printed is what a rollout would send."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from forge.cli import run_command
from forge.commands import data_prompt as asked_problem
from forge.config.load import dump_experiment, load_experiment
from forge.config.schema import PromptTable
from forge.data import chat
from forge.data.chat import ChatTemplate
from forge.data.problems import from_source, load_problems
from forge.data.prompts.prompt_set import Exchange, make_prompts
from forge.records import Reason, Status, Verdict
from forge.rollout.play import verdict_without_code
from forge.runner.prepare.prompt_facts import prompts_for, to_event
from tests.data.build.samples import write_tokenizer
from tests.store.storefactory import attempt, problem, write_run
from tests.views.terminals import told

CHAT_TEMPLATE = Path(chat.__file__).with_name("chat_template.jinja")
SOURCE = (Path(__file__).parents[1] / "zoo" / "problems" / "relu.py").read_text()
EXPERIMENT = """
name = "x"
[model]
path = "{model}"
[problems]
source = "dir"
path = "problems"
[prompt]
preset = "standard"
first = "first.jinja"
[serve]
context_tokens = 9000
[rollout]
max_completion_tokens = 100
[[stage]]
kind = "eval"
"""
WRONG = Verdict(status=Status.WRONG, reason="mismatch", detail="at [0]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An experiment of a model whose tokenizer is here, with a template of its own."""
    (tmp_path / "problems" / "level1").mkdir(parents=True)
    for name in ("1_relu", "2_relu"):
        (tmp_path / "problems" / "level1" / f"{name}.py").write_text(SOURCE)
    (tmp_path / "first.jinja").write_text("Mine: {{ source }}")
    model = write_tokenizer(tmp_path / "model")
    (model / "config.json").write_text("{}")
    (tmp_path / "x.toml").write_text(EXPERIMENT.format(model=model))
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    return told(capsys, "data", "prompt", *argv, code=code)


def test_a_file_alone_is_shown_with_the_default_prompts(folder, capsys):
    file = folder / "problems" / "level1" / "1_relu.py"
    text = shown(capsys, str(file))
    assert text.startswith("[system]\nYou write GPU kernels in Triton")
    assert SOURCE.strip() in text
    assert "no tokenizer is known" in shown(capsys, str(file), "--ids", code=2)


def test_text_and_ids_are_those_that_a_rollout_sends(folder, capsys):
    experiment = load_experiment(folder / "x.toml")
    by_id = {each.problem_id: each for each in load_problems(experiment.problems, seed=0)}
    prompts = prompts_for(experiment.prompt, experiment.judge, ())
    expected = ChatTemplate.load(folder / "model").prompt(
        prompts.first_messages(by_id["level1/2_relu"])
    )
    argv = ("level1/2_relu", "--experiment", str(folder / "x.toml"))
    assert shown(capsys, *argv) == expected.text + "\n"
    assert "Mine: " in expected.text
    assert [int(each) for each in shown(capsys, *argv, "--ids").split()] == list(expected.ids)
    found = json.loads(shown(capsys, *argv, "--json"))
    assert (found["prompt_hash"], found["ids"]) == (prompts.hash, list(expected.ids))
    assert [each["role"] for each in found["messages"]] == ["system", "user"]


def test_a_problem_is_found_by_name_or_number_alone(folder, capsys):
    argv = ("--experiment", str(folder / "x.toml"))
    assert shown(capsys, "2", *argv) == shown(capsys, "level1/2_relu", *argv)
    said = shown(capsys, "3", *argv, code=2)
    assert said.count("\n") == 1
    assert "3: no such problem; problems are level1/1_relu, level1/2_relu" in said


def test_a_file_of_the_experiments_directory_is_its_problem(folder, capsys):
    file = folder / "problems" / "level1" / "2_relu.py"
    argv = ("--experiment", str(folder / "x.toml"))
    assert shown(capsys, str(file), *argv) == shown(capsys, "level1/2_relu", *argv)
    (folder / "mine.py").write_text(SOURCE.replace("* 2", "* 3"))
    assert "* 3" in shown(capsys, str(folder / "mine.py"), *argv)
    assert "no such problem" in shown(capsys, SOURCE * 20, *argv, code=2)


def test_an_attempt_is_judged_and_the_next_turn_is_shown(folder, capsys, monkeypatch):
    judged: list[str] = []
    answers = [WRONG]

    class Judges:
        async def judge(self, problem: object, code: str) -> Verdict:
            judged.append(code)
            return answers[-1]

    @asynccontextmanager
    async def open_pool(*given: object, **keys: object) -> AsyncIterator[Judges]:
        yield Judges()

    monkeypatch.setattr(asked_problem, "open_private_pool", open_pool)
    none, some = folder / "none.md", folder / "some.md"
    none.write_text("no code")
    some.write_text("<think>\nso\n</think>\n```python\nclass ModelNew: ...\n```")
    file = str(folder / "problems" / "level1" / "1_relu.py")
    found = json.loads(
        shown(capsys, file, "--attempt", str(none), "--attempt", str(some), "--json")
    )
    attempts = [
        Exchange(
            completion_text="no code",
            verdict=verdict_without_code(from_source(SOURCE), Reason.NO_CODE_BLOCK),
        ),
        Exchange(completion_text=some.read_text(), verdict=WRONG),
    ]
    contents = [each["content"] for each in found["messages"]]
    asked = make_prompts(PromptTable()).conversation(from_source(SOURCE), attempts)
    assert contents == [each.content for each in asked]
    assert judged == ["class ModelNew: ...\n"]
    answers.append(Verdict(status=Status.INFRA_ERROR, reason="judge_lost", detail=""))
    assert "judge_lost" in shown(capsys, file, "--attempt", str(some), code=3)


def test_prompts_of_a_run_are_those_that_it_recorded(folder, capsys):
    experiment = load_experiment(folder / "x.toml")
    prompts = prompts_for(experiment.prompt, experiment.judge, ())
    root = folder / "runs" / "x-1"
    anyio.run(write_run, root, [attempt(), problem(0), to_event(prompts, before=None)])
    (root / "experiment.toml").write_text(dump_experiment(experiment))
    (folder / "first.jinja").unlink()
    text = shown(capsys, "softmax-0000", "--run", "x-1", "--store", str(folder / "runs"))
    assert "[user]\nMine: " in text
    assert text.startswith("[system]\nYou write GPU kernels in Triton")


def test_what_does_not_fit_is_one_line_and_a_missing_card_is_named(folder, capsys):
    argv = ("1", "--experiment", str(folder / "x.toml"))
    said = shown(capsys, *argv, "--set", "serve.context_tokens=200", code=2)
    assert "level1/1_relu: does not fit serve.context_tokens = 200" in said
    gpus = ("--set", "devices.gpus=auto", "--set", "devices.judge=1")
    assert run_command(["data", "prompt", *argv, *gpus, "--set", "serve.engine=vllm"]) == 0
    found = capsys.readouterr()
    assert "Device:" not in found.out
    assert "get_init_inputs" in found.out
    assert "--assume names a machine" in found.err
    text = shown(capsys, *argv, *gpus, "--assume", "1xH100-80GB")
    assert "Device: H100, 80 GB of memory, 3352 GB/s" in text


def test_a_time_that_a_first_message_cannot_state_is_named(folder, capsys):
    argv = ["data", "prompt", "1", "--experiment", str(folder / "x.toml")]
    on_card = ["--set", "devices.gpus=auto", "--set", "devices.judge=1", "--assume", "1xH100-80GB"]
    said = []
    for more in (on_card, [*on_card, "--set", "prompt.baseline=false"], []):
        assert run_command([*argv, *more]) == 0
        said.append("not in a first message: the reference's time" in capsys.readouterr().err)
    assert said == [True, False, False]
