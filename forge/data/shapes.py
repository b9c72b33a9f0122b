# pyright: strict
"""Shapes of problem files: values of module constants, several for one problem.

    shapes = [{ N = 1024 }, { N = 4096, M = 100, "3_matmul" = { N = 512 } }]

Each is a table as in `overrides.py`, applied after the overrides. Called by `directory.py` for
`[problems] shapes`, and by `forge judge` for `--shape`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.records.problem import has_input_sets

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from forge.config.schema.problems import Constant
    from forge.data.overrides import Overrides

NOTE = "A kernel has to be correct at each; its speed-up is their geometric mean."
"""Sentence of a prompt."""


def values_by_shape(
    shapes: Sequence[Overrides], path: str, *, constants: Collection[str], among: Sequence[str]
) -> list[dict[str, Constant]]:
    """The values of each shape that counts for one file: it has one of the file's constants, and
    differs from the ones before it. Empty if none counts.

    Args:
        path: path of the file, one of those in `among`.
        constants: names of the file's module constants.
    """
    found: list[dict[str, Constant]] = []
    for shape in shapes:
        values = shape.of(path, among=among)
        own = {name: value for name, value in values.items() if name in constants}
        if own and own not in found:
            found.append(own)
    return found


def name_shape(values: Mapping[str, Constant]) -> str:
    """`N=4096, M=100`."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def note_shapes(source: str, names: Sequence[str]) -> str:
    """The source of a problem with a comment at its end that lists the shapes; unchanged for a
    problem with one shape. The source is the text of the prompt, and is stored with the run.

    Args:
        names: names of the shapes that constants select.
    """
    lines: list[str] = []
    if len(names) > 1:
        lines = [f"# Judged on {len(names)} shapes. {NOTE}", *(f"#   {name}" for name in names)]
    if has_input_sets(source):
        also = "# At each, every set of get_input_sets() is judged."
        lines.append(also if lines else f"# Judged on each set of get_input_sets(). {NOTE}")
    return "\n".join([source.rstrip(), "", *lines, ""]) if lines else source
