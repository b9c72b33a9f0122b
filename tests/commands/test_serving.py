"""`forge serve` uses exactly the GPUs that `[devices]` gives its engines."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.commands import serve as serving
from forge.commands.judge.judge import JudgingRequest, read_jobs
from forge.commands.serve import ServeRequest
from forge.config.load import load_experiment
from forge.data.problem_files import Overrides
from forge.errors import ConfigError, MachineError
from forge.runner.prepare.prompt_facts import to_event
from forge.serve.weights import Weights
from tests.gpus import make_machine
from tests.prompting import PROMPTS
from tests.store.storefactory import attempt, write_run

EXPERIMENT = """
name = "x"
[model]
path = "{path}"
[devices]
gpus = "auto"
serve = 2
judge = 2
train = 4
[serve]
replicas = 2
engine = "vllm"
[[stage]]
kind = "eval"
"""


@pytest.fixture
def found(tmp_path: Path) -> serving._ServedModel:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    file = tmp_path / "x.toml"
    file.write_text(EXPERIMENT.format(path=tmp_path))
    return serving._ServedModel(
        experiment=load_experiment(file), weights=Weights(full=tmp_path), model="x", thinking=None
    )


def test_engines_get_their_gpus_and_trainer_and_judges_get_none(found):
    placement = serving._place(found, make_machine(num_gpus=8, engines=frozenset({"vllm"})))
    assert placement.engine == "vllm"
    assert [len(uuids) for uuids in placement.serve_uuids] == [1, 1]
    assert len(placement.gpus) == 2
    assert placement.train == placement.judge == ()


def test_too_few_gpus_for_the_engines_are_a_machine_error(found):
    with pytest.raises(MachineError, match="needs 2 GPUs"):
        serving._place(found, make_machine(num_gpus=1, engines=frozenset({"vllm"})))


def test_a_served_run_thinks_as_it_was_trained_to(tmp_path, monkeypatch):
    events = [to_event(replace(PROMPTS, thinking=""), before=None)]
    anyio.run(write_run, tmp_path / "toy-1", [attempt(), *events])
    (tmp_path / "toy-1" / "experiment.toml").write_text(EXPERIMENT.format(path=tmp_path))
    monkeypatch.setattr(serving, "find_weights", lambda paths, step: Weights(full=tmp_path))
    request = ServeRequest(source="toy-1", socket=tmp_path / "s")
    assert serving._find(request, store_dir=tmp_path, say=pytest.fail).thinking == ""


def test_a_run_takes_no_overrides(tmp_path):
    request = ServeRequest(source="run-1", overrides=("serve.slots=4",), socket=tmp_path / "s")
    with pytest.raises(ConfigError, match="--set is for an experiment file"):
        serving.serve(request, store_dir=tmp_path, say=lambda _text: None)


CANDIDATE = "class {}New: ...\n"


def source(name: str, *, model: str = "Model") -> str:
    return (
        f"# {name}\nsize = 8\nclass {model}: ...\n"
        "def get_inputs(): ...\ndef get_init_inputs(): ...\n"
    )


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    for level, number, name in ((1, 19, "ReLU"), (2, 19, "Conv"), (1, 1, "Matmul")):
        path = tmp_path / "bench" / f"level{level}" / f"{number}_{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source(name))
    (tmp_path / "answer.py").write_text(CANDIDATE.format("Model"))
    return tmp_path / "bench"


def judged(problem: Path, chosen: str | None, **keys: Any) -> Any:
    candidate = str(problem.parent / "answer.py")
    (job,), _ = read_jobs(
        JudgingRequest(problem=problem, candidate=candidate, chosen=chosen, **keys)
    )
    return job.problem


def test_a_problem_of_a_file_of_rows_is_chosen_too(bench):
    rows = [
        {"code": source("ReLU"), "level": 1, "name": "19_ReLU", "problem_id": 19},
        {"code": source("Conv"), "level": 2, "name": "19_Conv", "problem_id": 19},
    ]
    path = bench.parent / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = judged(path, "level=2 problem_id=19", overrides=Overrides(everywhere={"size": 3}))
    assert (found.problem_id, found.level, found.family) == ("level2/19_Conv", 2, "level2")
    assert "size = 3" in found.source


def test_a_row_of_kernelbook_has_its_own_entry_point(bench):
    path = bench.parent / "book.json"
    row = {"python_code": source("x", model="Net"), "entry_point": "Net", "uuid": 4}
    path.write_text(json.dumps([row]))
    (bench.parent / "answer.py").write_text(CANDIDATE.format("Net"))
    assert judged(path, "kernelbook/4", format="kernelbook").entry_point == "Net"
