"""Samples of torch's tests as problems: literals and draws in place of their values."""

from pathlib import Path

import pytest
import torch

from forge.data.harvest.records import Found
from forge.data.harvest.sources.samples import source
from forge.data.harvest.sources.samples.child import layer_problem, operation_problem
from forge.data.harvest.sources.samples.source import open_samples
from forge.data.problem_files import parse_source


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
    monkeypatch.setattr(source, "CHILD", "torch.version")
    assert list(open_samples("").read("0")) == []
