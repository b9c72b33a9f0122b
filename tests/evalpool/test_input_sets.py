"""The shapes of a problem: by constants, by `get_input_sets()`, by both; at most 16."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forge.evalpool.shapes import ShapeLister, ShapesUnknown
from forge.records.examination import Examination, Flag
from forge.records.problem import ReferenceModule, Shape, has_input_sets, select_input_set

pytestmark = pytest.mark.anyio

SETS = "def get_input_sets():\n    return []\n"
PLAIN = ReferenceModule(problem_id="p", source="N = 1\n")
LISTED = replace(PLAIN, source=SETS)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Asked:
    """A judge that lists `names`, or finds `flags`."""

    def __init__(self, *names: str, flags: dict[Flag, str] | None = None) -> None:
        self.names, self.flags = names, flags or {}
        self.sources: list[str] = []

    async def __call__(self, problem: ReferenceModule) -> Examination:
        self.sources.append(problem.source)
        return Examination(problem_id=problem.problem_id, flags=self.flags, shapes=self.names)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (SETS, True),
        ("get_input_sets = make\n", True),
        ("from sizes import make as get_input_sets\n", True),
        (select_input_set(SETS, 1), False),
        ("# get_input_sets\nN = 1\n", False),
        ("def f():\n    def get_input_sets(): pass\n", False),
        ("def get_input_sets(:\n", False),
        ("", False),
    ],
)
def test_only_a_module_level_name_without_a_selected_set_counts(
    source: str, expected: bool
) -> None:
    assert has_input_sets(source) is expected


async def test_a_problem_with_one_shape_needs_no_listing() -> None:
    ask = Asked("a")
    assert await ShapeLister(ask).list_shapes(PLAIN) == ()
    sized = replace(PLAIN, shapes=(Shape(name="N=2", source="N = 2\n"),))
    assert await ShapeLister(ask).list_shapes(sized) == sized.shapes
    assert ask.sources == []


async def test_each_set_is_a_source_of_its_own_and_listed_once_per_problem() -> None:
    ask = Asked("n=1", "n=2")
    lister = ShapeLister(ask)
    first = await lister.list_shapes(LISTED)
    assert await lister.list_shapes(LISTED) == first
    assert [shape.name for shape in first] == ["n=1", "n=2"]
    assert [shape.source for shape in first] == [select_input_set(SETS, n) for n in (0, 1)]
    assert ask.sources == [SETS]
    again = [await lister.list_shapes(replace(PLAIN, source=shape.source)) for shape in first]
    assert again == [(), ()]


async def test_constants_and_sets_multiply() -> None:
    shapes = (Shape(name="N=1", source=SETS), Shape(name="N=2", source=f"N = 2\n{SETS}"))
    found = await ShapeLister(Asked("a", "b")).list_shapes(replace(LISTED, shapes=shapes))
    assert [shape.name for shape in found] == ["N=1: a", "N=1: b", "N=2: a", "N=2: b"]


async def test_more_than_16_shapes_are_refused() -> None:
    names = [str(number) for number in range(9)]
    shapes = (Shape(name="N=1", source=SETS), Shape(name="N=2", source=f"N = 2\n{SETS}"))
    with pytest.raises(ShapesUnknown, match="18 shapes; at most 16"):
        await ShapeLister(Asked(*names)).list_shapes(replace(LISTED, shapes=shapes))


@pytest.mark.parametrize(("flag", "num_asked"), [(Flag.UNSUPPORTED, 1), (Flag.CRASH, 2)])
async def test_a_failure_names_the_function_and_only_a_lasting_one_is_remembered(
    flag: Flag, num_asked: int
) -> None:
    ask = Asked(flags={flag: "it says so"})
    lister = ShapeLister(ask)
    for _ in range(2):
        with pytest.raises(ShapesUnknown, match=r"get_input_sets\(\) of p: it says so") as error:
            await lister.list_shapes(LISTED)
        assert error.value.flags == {flag: "it says so"}
    assert len(ask.sources) == num_asked


async def test_a_judge_that_lists_no_set_does_not_make_a_candidate_pass() -> None:
    with pytest.raises(ShapesUnknown, match="no set was listed"):
        await ShapeLister(Asked()).list_shapes(LISTED)
