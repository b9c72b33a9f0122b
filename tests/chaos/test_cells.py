"""Whatever is struck, in whatever phase: the run goes on or ends with one true line, no
acknowledged row is lost, no sample is trained twice, nothing is left behind, and `forge resume`
finishes it.

`pytest -n 16 tests/chaos -m chaos` plays the whole matrix, `make test` a few cells of it.
"""

from collections.abc import Callable

import pytest

from tests.chaos.cells import Cell
from tests.chaos.driver import conclude, play
from tests.chaos.matrix import CELLS, LONG, SMALL
from tests.e2e.experiments import Taught

LEAST = 120
"""Cells of the whole matrix."""


def tier_of(cell: Cell) -> tuple[pytest.MarkDecorator, ...]:
    """The marker that a cell runs by, next to its name."""
    if cell.name in SMALL:
        return ()
    return (pytest.mark.long if cell.name in LONG else pytest.mark.chaos,)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "cell", [pytest.param(cell, id=cell.name, marks=tier_of(cell)) for cell in CELLS]
)
def test_a_fault_is_survived_or_named_and_the_run_is_finished(
    cell: Cell, taught: Taught, record_property: Callable[[str, object], None]
) -> None:
    conclude(play(cell, taught), record_property)


def test_the_matrix_has_no_cell_twice_and_is_large_enough() -> None:
    names = [cell.name for cell in CELLS]
    assert len(names) == len(set(names)) >= LEAST
    assert set(names) >= SMALL | LONG
