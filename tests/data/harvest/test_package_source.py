"""Problems from installed packages: modules, found without an import, with fields for configuration
objects; and samples of torch's tests, with literals and draws in place of their values."""

import ast
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import torch

from forge.data.harvest.arguments import configuration
from forge.data.harvest.closure import Closure, Library
from forge.data.harvest.records import Found
from forge.data.harvest.sources import modules, open_sources, samples
from forge.data.harvest.sources.modules import ModuleTree, open_package
from forge.data.harvest.sources.samples import open_samples
from forge.data.harvest.sources.samples.child import layer_problem, operation_problem
from forge.data.problem_files import parse_source
from forge.errors import ConfigError

MODULE = """
import torch
from torch import nn


class Part(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x):
        return self.norm(x)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.part = Part(config)

    def forward(self, hidden_states):
        if self.config.use_residual:
            return hidden_states
        return self.part(self.down(torch.relu(self.up(hidden_states))))
"""


def test_imported_definitions_stand_in_one_order(tmp_path: Path) -> None:
    names = [f"part{letter}" for letter in "hcfagbdeij"]
    made = "\n\n".join(f"def {name}(x):\n    return x" for name in sorted(names))
    (tmp_path / "parts.py").write_text(made + "\n")
    used = " + ".join(f"{name}(x)" for name in names)
    (tmp_path / "m.py").write_text(
        f"from torch import nn\nfrom parts import {', '.join(names)}\n\n\n"
        f"class Block(nn.Module):\n    def forward(self, x):\n        return {used}\n"
    )
    found = Closure(Library(tmp_path), "m", "Block").names()
    assert [name for module, name in found if module == "parts"] == sorted(names)


def test_definitions_that_need_each_other_stand_in_the_order_of_their_file(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "from torch import nn\nclass Clip(nn.Module):\n    def forward(self, x):\n"
        "        return chosen(x)\n\nTABLE = {'clip': Clip}\nMADE = dict(TABLE)\n"
        "def choose():\n    return MADE['clip']\n\nchosen = choose()\n"
        "class Block(nn.Module):\n    def forward(self, x):\n        return MADE['clip']()(x)\n"
    )
    found = Closure(Library(tmp_path), "m", "Block").names()
    assert [name for _, name in found][1:] == ["Clip", "TABLE", "MADE", "choose", "chosen"]


def test_a_configuration_has_the_fields_that_the_class_and_its_parts_read(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODULE)
    closure = Closure(Library(tmp_path), "m", "Block")
    made = configuration(closure, "config")
    fields = {one.arg: ast.literal_eval(one.value) for one in made.keywords}
    assert fields == {
        "hidden_size": 16, "intermediate_size": 32, "layer_norm_eps": 1e-5, "use_residual": False,
    }  # fmt: skip
    assert configuration(closure, "width") is None


def test_a_module_that_takes_a_configuration_is_a_problem_that_runs(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODULE)
    found = [one for one in ModuleTree(tmp_path).read("m.py") if isinstance(one, Found)]
    assert [one.name for one in found] == ["Part", "Block"]
    for one in found:
        names: dict[str, Any] = {}
        exec(compile(one.text, "problem.py", "exec"), names)
        names["Model"](*names["get_init_inputs"]())(*names["get_inputs"]())


def test_the_files_of_an_installed_package_are_read_with_its_licence() -> None:
    source = open_package("transformers")
    assert source.name == "transformers"
    found = [one for one in source.read("activations.py") if isinstance(one, Found)]
    assert "NewGELUActivation" in {one.name for one in found}
    assert {one.licence for one in found} == {"Apache-2.0"}


@pytest.mark.parametrize(
    ("stated", "licence"),
    [("Limited use", ""), ("The MIT License", "MIT"), ("Apache 2", "Apache-2.0")],
)
def test_a_licence_is_known_by_a_whole_word(
    stated: str, licence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = Message()
    message["License"] = stated
    monkeypatch.setattr(modules, "metadata", lambda _: message)
    assert open_package("transformers")._licence == licence


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("package:no_such_package", "not installed"),
        ("package:six.moves", "as Python imports it"),
        ("package:", "as Python imports it"),
        ("package:typing_extensions", "one file"),
        ("torch-samples:relu", "torch-samples alone"),
    ],
)
def test_a_word_that_names_nothing_is_one_line(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_sources([word])
    assert "\n" not in str(caught.value)


def test_a_call_of_an_operation_is_written_with_drawn_tensors_and_literals() -> None:
    x, mask = torch.randn(5, 6) * 9, torch.ones(5, 6, dtype=torch.bool)
    text, num_elements = operation_problem("masked_fill", (x, mask, 2.5), {})
    assert "return torch.masked_fill(x, y, 2.5)" in text
    assert "x = torch.randn(5, 6)" in text
    assert "y = torch.rand(5, 6) > 0.5" in text
    assert num_elements == 60


@pytest.mark.parametrize(
    ("value", "drawn"),
    [
        (torch.tensor([0.1, 0.9]), "torch.rand(2)"),
        (torch.tensor([-0.5, 0.9]), "torch.rand(2) * 2 - 1"),
        (torch.tensor([1.5, 3.0]), "torch.rand(2) + 1"),
        (torch.tensor([3, 7]), "torch.randint(3, 8, (2,))"),
    ],
)
def test_a_tensor_is_drawn_in_the_range_of_the_sample(value: torch.Tensor, drawn: str) -> None:
    text, _ = operation_problem("atan", (value,), {})
    assert f"x = {drawn}\n" in text


def test_a_layer_is_constructed_with_the_arguments_of_the_sample() -> None:
    given = ((torch.randn(2, 3, 8),), {})
    text, _ = layer_problem("nn.Conv1d", ((3, 4), {"kernel_size": (2,), "device": "cpu"}), given)
    assert "self.layer = nn.Conv1d(3, 4, kernel_size=(2,))" in text
    assert "return self.layer(x)" in text


@pytest.mark.long
def test_a_share_of_the_operations_gives_hundreds_of_problems() -> None:
    source = open_samples("")
    found = [one for one in source.read(source.units()[1]) if isinstance(one, Found)]
    assert len(found) > 250
    assert len({one.origin for one in found}) == len({one.text for one in found}) == len(found)
    for one in found:
        assert one.licence == "BSD-3-Clause"
        parse_source(one.text, path=Path(one.origin))


def test_files_of_the_working_directory_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(samples, "CHILD", "torch.version")
    assert list(open_samples("").read("0")) == []
