"""`forge solve` as an experiment: problems as users name them, and bad input in one line each."""

import sys
import tomllib
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from forge.commands.solve import SolveRequest, new_directory, solve_experiment
from forge.commands.suite import EvalRequest
from forge.data.problem_files import find_files
from forge.errors import ConfigError

FUNCTION = "import torch\n\ndef scaled(x, y):\n    return x * torch.tanh(y)\n"
RMS_NORM = "transformers.models.llama.modeling_llama:LlamaRMSNorm"
INPUTS = """
def get_inputs():
    return [torch.randn(8, 96)]

def get_init_inputs():
    return [96]
"""


def experiment(
    folder: Path, *problems: str, budget: str = "8", model: Any = None, **options: Any
) -> dict[str, Any]:
    source = folder / "model"
    source.mkdir(exist_ok=True)
    (source / "config.json").write_text('{"max_position_embeddings": 4096}')
    settings = {"source": str(source), "device": "cpu", "store": folder / "runs", **(model or {})}
    asked = EvalRequest(**settings)
    request = SolveRequest(problems=problems, model=asked, budget=budget, **options)
    return tomllib.loads(solve_experiment(request))


def texts(made: dict[str, Any]) -> dict[str, str]:
    root = Path(made["problems"]["path"])
    found = find_files(root, include=[])
    assert made["problems"]["num_heldout"] == len(found)
    return {path.relative_to(root).as_posix(): path.read_text() for path in found}


def test_a_function_becomes_a_problem_below_the_store(tmp_path):
    file = tmp_path / "scaled.py"
    file.write_text(FUNCTION)
    made = experiment(tmp_path, str(file), strategy="evolve")
    file.unlink()
    (text,) = texts(made).values()
    assert "class Model" in text
    assert made["problems"]["path"].startswith(str(tmp_path / "runs"))
    assert made["stage"] == [{"kind": "search", "budget": "8", "strategy": "evolve"}]


def test_a_problem_comes_from_stdin(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(FUNCTION.encode())))
    assert list(texts(experiment(tmp_path, "-"))) == ["stdin.py"]


def test_a_second_search_leaves_the_problems_of_the_first_as_they_are(tmp_path):
    file = tmp_path / "scaled.py"
    file.write_text(FUNCTION)
    states = []
    for _ in range(2):
        root = Path(experiment(tmp_path, str(file))["problems"]["path"])
        (kept,) = (each.stat() for each in root.iterdir())
        states.append((kept.st_ino, kept.st_mtime_ns, kept.st_size > 0))
    assert states[0] == states[1]


def test_a_directory_gives_all_its_problems(tmp_path):
    for name in ("level1/1_a.py", "level2/2_b.py"):
        path = tmp_path / "problems" / name
        path.parent.mkdir(parents=True)
        path.write_text(FUNCTION)
    assert set(texts(experiment(tmp_path, str(tmp_path / "problems")))) == {
        "level1/1_a.py", "level2/2_b.py",
    }  # fmt: skip


def test_a_class_of_a_package_has_guessed_arguments_or_those_of_a_file(tmp_path):
    (guessed,) = texts(experiment(tmp_path, RMS_NORM)).values()
    assert "rsqrt" in guessed
    assert "def get_init_inputs" in guessed
    inputs = tmp_path / "inputs.py"
    inputs.write_text(INPUTS)
    (given,) = texts(experiment(tmp_path, RMS_NORM, inputs=inputs)).values()
    assert "torch.randn(8, 96)" in given
    assert "return [96]" in given


def test_inputs_are_those_of_a_file_or_a_function_too(tmp_path):
    inputs = tmp_path / "inputs.py"
    inputs.write_text(INPUTS.replace("[torch.randn(8, 96)]", "[torch.randn(8, 96)] * 2"))
    (tmp_path / "scaled.py").write_text(FUNCTION)
    (text,) = texts(experiment(tmp_path, str(tmp_path / "scaled.py"), inputs=inputs)).values()
    (tmp_path / "whole.py").write_text(text.replace("96", "7"))
    (whole,) = texts(experiment(tmp_path, str(tmp_path / "whole.py"), inputs=inputs)).values()
    for each in (text, whole):
        made: dict[str, Any] = {}
        exec(each, made)
        assert [tuple(one.shape) for one in made["get_inputs"]()] == [(8, 96)] * 2
        assert made["get_init_inputs"]() == [96]


def test_a_class_is_found_where_a_package_exports_it(tmp_path):
    (exported,) = texts(experiment(tmp_path, "transformers:LlamaRMSNorm")).values()
    (own,) = texts(experiment(tmp_path, RMS_NORM)).values()
    assert exported == own
    inputs = tmp_path / "inputs.py"
    inputs.write_text(INPUTS)
    (norm,) = texts(experiment(tmp_path, "torch.nn:LayerNorm", inputs=inputs)).values()
    made: dict[str, Any] = {}
    exec(norm, made)
    module = made["Model"](*made["get_init_inputs"]())
    assert module(*made["get_inputs"]()).shape == (8, 96)
    assert set(module.state_dict()) == {"weight", "bias"}


def test_inputs_may_import_and_take_the_place_of_decorated_ones(tmp_path):
    inputs, problem = tmp_path / "inputs.py", tmp_path / "scaled.py"
    inputs.write_text(
        "from __future__ import annotations\nimport torch\nimport math\nWIDTH = math.ceil(2.5)\n"
        "A, B = 3, 4\nC = D = 5\nD += 1\n"
        "def rows():\n    return 2\n"
        "def get_inputs():\n    return [torch.randn(rows(), WIDTH, A, B, C, D, E)]\n"
    )
    problem.write_text(
        "import torch\nWIDTH = 8\nA, E = 1, 7\n"
        "class Model(torch.nn.Module):\n    def forward(self, x):\n        return 2 * x\n"
        "@torch.no_grad()\ndef get_inputs():\n    return [torch.randn(WIDTH)]\n"
        "def get_init_inputs():\n    return []\n"
    )
    (text,) = texts(experiment(tmp_path, str(problem), inputs=inputs)).values()
    made: dict[str, Any] = {}
    exec(text, made)
    assert [tuple(one.shape) for one in made["get_inputs"]()] == [(2, 3, 3, 4, 5, 6, 7)]
    assert "no_grad" not in text


def two_problems(folder: Path) -> dict[str, Any]:
    for name in ("a", "b"):
        (folder / f"{name}.py").write_text(FUNCTION)
    (folder / "in").write_text(INPUTS)
    return experiment(folder, str(folder / "a.py"), str(folder / "b.py"), inputs=folder / "in")


def no_python(folder: Path) -> dict[str, Any]:
    file = folder / "x.py"
    file.write_text("def f(:\n")
    return experiment(folder, str(file))


def same_names(folder: Path) -> dict[str, Any]:
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "x.py").write_text(FUNCTION + f"# {name}\n")
    return experiment(folder, str(folder / "a" / "x.py"), str(folder / "b" / "x.py"))


def file_as_store(folder: Path) -> dict[str, Any]:
    file = folder / "runs"
    file.write_text("")
    return experiment(folder, RMS_NORM)


def full_out(folder: Path) -> dict[str, Any]:
    (folder / "out").mkdir()
    (folder / "out" / "x").write_text("")
    return experiment(folder, RMS_NORM, out=folder / "out")


def wrong_inputs(folder: Path) -> dict[str, Any]:
    file = folder / "inputs.py"
    file.write_text("def inputs(): ...\n")
    return experiment(folder, RMS_NORM, inputs=file)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda folder: experiment(folder, RMS_NORM, budget="2M"), "--budget: found 2M; 64"),
        (lambda folder: experiment(folder, RMS_NORM, strategy="beam"), "--strategy beam: one of"),
        (lambda folder: experiment(folder, "nothing"), "nothing: no such problem"),
        (lambda folder: experiment(folder, str(folder)), "found no"),
        (lambda folder: experiment(folder, "nosuch.part:Layer"), "nosuch: not installed"),
        (lambda folder: experiment(folder, f"{RMS_NORM}s"), "cannot be made a problem"),
        (no_python, r"/x\.py:1: no Python"),
        (same_names, "x is the name of two problems"),
        (wrong_inputs, "get_inputs is needed"),
        (two_problems, "--inputs .*/in: found 2 problems; one"),
        (lambda folder: experiment(folder, "torch.nn:ReLU"), "arguments of PyTorch's modules are"),
        (lambda folder: experiment(folder, "torch.nn:Relu"), "torch.nn:Relu: cannot be made"),
        (lambda folder: experiment(folder, "torch:Linear"), "torch:Linear: name one of torch"),
        (file_as_store, "--store .*runs: cannot be written"),
        (full_out, "--out .*out: is not empty"),
        (
            lambda folder: experiment(folder, RMS_NORM, model={"baseline": "x"}),
            "--baseline x: one of eager, compile, both",
        ),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path, ask, said):
    with pytest.raises(ConfigError, match=said) as found:
        ask(tmp_path)
    assert "\n" not in str(found.value)


def test_kernels_of_a_run_of_the_same_name_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert new_directory("x-1-kernels") == Path("x-1-kernels")
    for name in ("x-1-kernels", "x-1-kernels-2"):
        Path(name).mkdir()
    assert new_directory("x-1-kernels") == Path("x-1-kernels-3")
