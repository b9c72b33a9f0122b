"""Table of the honest corpus: problems with candidates as people publish them, written by us.

Each file of a sub-folder is one pair: a problem in KernelBench's layout (`Model`, `get_inputs`,
`get_init_inputs`) and, behind the line `# candidate`, a correct candidate (`ModelNew`). Sizes are
those of a CPU. Read without running them.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
MARK = "\n# candidate\n"

TOLERANCES: dict[str, float] = {
    "matmul/half_inside_float_outside": 1e-2,
    "matmul/split_k_atomics": 2e-3,
}
"""Relative tolerance of a pair, in units of the largest magnitude of an output, where it is not
that of its outputs' type: approximate products and narrow formats inside a kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One problem and one correct candidate."""

    name: str
    """Folder and file: `attention/flash_forward`."""
    subject: str
    """First line of the file's docstring."""
    problem: str
    candidate: str

    @property
    def tolerance(self) -> float | None:
        """See `TOLERANCES`."""
        return TOLERANCES.get(self.name)


def load() -> list[Pair]:
    """All pairs, by name."""
    return [_read(path) for path in sorted(FOLDER.glob("*/*.py"))]


def _read(path: Path) -> Pair:
    text = path.read_text(encoding="utf-8")
    problem, candidate = text.split(MARK)
    subject = ast.get_docstring(ast.parse(problem)) or ""
    return Pair(
        name=f"{path.parent.name}/{path.stem}",
        subject=subject,
        problem=problem,
        candidate=candidate,
    )
