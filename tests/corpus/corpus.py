"""Table of the honest corpus: problems with candidates as people publish them, written by us.

Each file of a sub-folder is one pair: a problem in KernelBench's layout (`Model`, `get_inputs`,
`get_init_inputs`) and, behind the line `# candidate`, a correct candidate (`ModelNew`). Sizes are
those of a CPU. Read without running them.
"""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
MARK = "\n# candidate\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One problem and one correct candidate."""

    name: str
    """Folder and file: `attention/flash_forward`."""
    problem: str
    candidate: str


def load() -> list[Pair]:
    """All pairs, by name."""
    return [_read(path) for path in sorted(FOLDER.glob("*/*.py"))]


def _read(path: Path) -> Pair:
    text = path.read_text(encoding="utf-8")
    problem, candidate = text.split(MARK)
    return Pair(name=f"{path.parent.name}/{path.stem}", problem=problem, candidate=candidate)
