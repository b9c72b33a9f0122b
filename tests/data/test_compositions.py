"""Compositions: problems that run at each size, the same for a seed, and none of KernelBench's."""

import ast
import re
from collections import Counter
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from forge.data.harvest.kernelbench import marks
from forge.data.harvest.sizes import replaced
from forge.data.harvest.sources.compositions.draw import (
    MAX_ELEMENTS,
    compose,
    convolution,
    open_compositions,
    pool,
    summary,
)
from forge.data.harvest.sources.compositions.writer import Dim, ModuleWriter, SizeDraw, section
from forge.data.problem_files import parse_source
from forge.data.sources.normal_form import normal_digest
from forge.errors import ConfigError
from tests.examples import examples


def run(text: str, *, device: str = "cpu") -> list[torch.Tensor]:
    """The outputs of a problem."""
    names: dict[str, Any] = {}
    with torch.device(device), torch.no_grad():
        exec(compile(text, "problem.py", "exec"), names)
        torch.manual_seed(0)
        outputs = names["Model"](*names["get_init_inputs"]())(*names["get_inputs"]())
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def test_compositions_run_and_repeat_at_two_sizes() -> None:
    failed: list[str] = []
    num = examples(100)
    for number in range(num):
        made = compose(0, number)
        try:
            first, again = run(made.text), run(made.text)
            assert all(map(torch.equal, first, again))
            run(replaced(made.text, made.other))
        except Exception as error:
            failed.append(f"{number}: {error!r}\n{made.text}")
    assert len(failed) <= num // 20, "\n".join(failed)


@pytest.mark.long
def test_compositions_bear_the_sizes_of_a_card() -> None:
    for number in range(200):
        made = compose(0, number)
        if "torch.cov" in made.text:  # asks for values, which meta has none of
            continue
        found = run(replaced(made.text, made.large), device="meta")
        assert found
        assert all(one.is_meta for one in found), made.text


def test_a_seed_and_a_number_give_the_same_composition_and_others_give_others() -> None:
    assert compose(3, 5) == compose(3, 5)
    texts = {compose(seed, number).text for seed in (3, 4) for number in range(20)}
    assert len(texts) == 40


def test_compositions_differ_in_operations_and_in_how_they_are_written(tmp_path: Path) -> None:
    made = [compose(1, number) for number in range(100)]
    for one in made:
        parse_source(one.text, path=tmp_path)
    assert len({normal_digest(one.text) for one in made}) > 97
    assert set(Counter(one.level for one in made)) == {1, 2}
    texts = [one.text for one in made]
    habits = ('"""', "F.", "nn.functional.", "super(Model, self)", ": torch.Tensor", "  # ")
    for habit in (*habits, "# Test code", "_shape)", "groups=", "Norm"):
        assert 5 < sum(habit in text for text in texts) < 95, habit


def test_a_transposed_convolution_of_volumes_fits_a_card() -> None:
    """Its batch alone, of two at least, does not bound what eight times as many places take."""
    drawn = (compose(31337, number) for number in count())
    for made in islice((one for one in drawn if "conv_transpose3d" in str(one.ops)), 40):
        [found] = run(replaced(made.text, made.large), device="meta")
        assert found.numel() <= MAX_ELEMENTS, made.large


def test_a_pool_is_never_larger_than_the_image_that_it_moves_over() -> None:
    for drawn in range(200):
        writer = ModuleWriter(Random(drawn), SizeDraw("0"))
        image = writer.input([Dim(str(size), size, size) for size in (2, 4, 4, 5)])
        found = pool(writer, replace(image, is_channels_first=True))
        assert all(dim.size > 0 for dim in found.dims), writer.finish(found)


@pytest.mark.parametrize("factor", [0.0, 1.0])
def test_a_size_after_a_transposed_convolution_keeps_its_lower_bound(factor: float) -> None:
    num = 0
    for drawn in range(600):
        writer = ModuleWriter(Random(drawn), SizeDraw(str(drawn), factor=factor))
        found = convolution(writer)
        num += writer.ops[0].startswith("conv_transpose3d")
        assert all(dim.size >= dim.least for dim in found.dims), writer.finish(found)
    assert num > 10


def test_half_of_all_convolutions_have_no_bias_in_each_way_to_write_it() -> None:
    texts = [text for one in range(200) if "nn.Conv" in (text := compose(1, one).text)]
    without = [text for text in texts if re.search(r"bias(: bool)? ?= ?False", text)]
    assert 0.35 < len(without) / len(texts) < 0.65
    for way in (r"Conv.*bias=False\)", r"__init__.*bias(: bool)? ?= ?False"):
        assert sum(re.search(way, text) is not None for text in without) > 3, way
    few = r"__init__\(.*kernel_size(: int)?, .*bias(: bool)? ?= ?False.*\[.*kernel_size\]$"
    assert any(re.search(few, text, re.DOTALL | re.MULTILINE) for text in without)


def test_other_sizes_change_no_argument_of_the_constructor() -> None:
    for number in range(30):
        made = compose(0, number)
        other = replaced(made.text, made.other)
        given = [ast.unparse(ast.parse(text).body[-1]) for text in (made.text, other)]
        assert given[0] == given[1]
        changed = {line.split(" = ")[0] for line in made.other.splitlines()}
        assert not changed & set(given[0].replace("[", " ").replace("]", " ").split(", "))


def test_a_composition_that_kernelbench_has_is_drawn_again() -> None:
    for number in range(200):
        made = compose(0, number)
        assert summary(made.ops) not in section("kernelbench")["level_2"].forms
        assert marks().same_operations(ast.parse(made.text)) is None


def test_almost_half_of_the_compositions_are_one_operation() -> None:
    counts = Counter(min(5, len(compose(2, number).ops)) for number in range(400))
    shares = [counts[n] / 400 for n in range(1, 6)]
    assert shares == pytest.approx([0.42, 0.14, 0.19, 0.13, 0.12], abs=0.07)


def test_the_source_reads_its_numbers_by_ranges() -> None:
    source = open_compositions("105@5")
    found = [one for unit in source.units() for one in source.read(unit)]
    assert [one.origin for one in found] == [str(number) for number in range(105)]
    assert found[7].text == compose(5, 7).text


@pytest.mark.parametrize("word", ["", "0", "many", "5@", "-3"])
def test_another_form_of_the_source_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="compositions:NUMBER"):
        open_compositions(word)
