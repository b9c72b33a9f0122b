"""The normal form of a reference: equal for near-duplicates, different for other computations."""

import subprocess
import sys

import pytest

from forge.data.sources.normal_form import digests_in, normal_digest

SOURCE = '''import torch
import torch.nn as nn
import torch.nn.functional as F

size = 16


def shift(t, by=1):
    return t + by


class Model(nn.Module):
    """A model."""

    def __init__(self, width):
        super(Model, self).__init__()
        self.linear = nn.Linear(width, 4)
        self.scale: float = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = shift(self.linear(x))  # a comment
        return F.relu(hidden) * self.scale


def get_inputs():
    return [torch.randn(size, 8)]


def get_init_inputs():
    return [8]
'''

SAME = {
    "locals": ("hidden", "h"),
    "docstring": ('    """A model."""\n\n', ""),
    "comment": ("  # a comment", ""),
    "annotations": (": torch.Tensor) -> torch.Tensor:", "):"),
    "an annotated attribute": ("self.scale: float = 3", "self.scale = 3"),
    "own attributes": ("self.linear", "self.projection"),
    "import aliases": ("import torch.nn as nn", "from torch import nn"),
    "a full name": ("F.relu(", "torch.nn.functional.relu("),
    "super without arguments": ("super(Model, self)", "super()"),
    "a helper's name": ("shift", "move"),
    "sizes": ("size = 16", "size = 64"),
    "other inputs": ("torch.randn(size, 8)", "torch.rand(size, 8)"),
    "constructor arguments": ("return [8]", "return [[9], {}]"),
    "unused code": ("size = 16\n", "size = 16\n\ndef unused(a):\n    return a\n"),
    "Windows line ends": ("\n", "\r\n"),
    "tabs": ("    ", "\t"),
}
OTHER = {
    "another operation": ("F.relu", "F.gelu"),
    "a number in the model": ("width, 4", "width, 5"),
    "a number in a helper": ("by=1", "by=2"),
    "another order": ("shift(self.linear(x))", "self.linear(shift(x))"),
    "another attribute": ("* self.scale", "* self.linear"),
    "a method of the base class": ("* self.scale", "* self.training"),
}


@pytest.mark.parametrize("name", SAME)
def test_what_computes_the_same_has_the_same_digest(name: str) -> None:
    old, new = SAME[name]
    assert old in SOURCE
    changed = SOURCE.replace(old, new)
    assert normal_digest(changed) == normal_digest(SOURCE) is not None


@pytest.mark.parametrize("name", OTHER)
def test_another_computation_has_another_digest(name: str) -> None:
    old, new = OTHER[name]
    assert old in SOURCE
    assert normal_digest(SOURCE.replace(old, new)) not in (None, normal_digest(SOURCE))


def test_the_name_of_the_model_does_not_count() -> None:
    renamed = SOURCE.replace("Model", "Net")
    assert normal_digest(renamed, entry_point="Net") == normal_digest(SOURCE)


@pytest.mark.parametrize("source", ["def f(:", "x = 1", "\0", "(" * 5000, "class Other: pass"])
def test_a_text_without_the_model_has_no_digest(source: str) -> None:
    assert normal_digest(source) is None


def test_a_very_deep_expression_has_a_digest() -> None:
    deep = SOURCE.replace("F.relu(hidden)", "F.relu(hidden)" + " + x" * 700)
    assert normal_digest(deep) not in (None, normal_digest(SOURCE))


@pytest.mark.parametrize(
    "text", [SOURCE, f"Optimise this module:\n```python\n{SOURCE}\n```\nName it ModelNew."]
)
def test_models_are_found_in_messages(text: str) -> None:
    assert digests_in(text) == {normal_digest(SOURCE)}


def test_a_message_without_code_has_no_model() -> None:
    assert digests_in("judge> wrong: differs at [0, 3]\n```\nno python here(\n```") == set()


def test_the_digest_does_not_depend_on_the_process() -> None:
    code = f"from forge.data.sources.normal_form import normal_digest as d\nprint(d({SOURCE!r}))"
    seeds = ({"PYTHONHASHSEED": seed} for seed in ("1", "2"))
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={"PYTHONPATH": ":".join(sys.path), **env},
        ).stdout
        for env in seeds
    }  # fmt: skip
    assert found == {f"{normal_digest(SOURCE)}\n"}
