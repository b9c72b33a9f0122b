"""Table of the honest corpus: problems with candidates as people publish them, written by us.

Each file of a sub-folder is one pair: a problem in KernelBench's layout (`Model`, `get_inputs`,
`get_init_inputs` unless it returns an empty list) and, behind the line `# candidate`, a correct
candidate (`ModelNew`). The usual imports are left out of both: `load` adds them. Sizes are those
of a CPU. Read without running them.
"""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
MARK = "\n\n\n# candidate\n"
IMPORTS = "import torch\nimport torch.nn as nn\n"
TRITON = "import triton\nimport triton.language as tl\n"
NO_INIT_INPUTS = "\n\ndef get_init_inputs():\n    return []\n"


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


def with_init_inputs(problem: str) -> str:
    """Adds the function that most problems would write alike: one that returns nothing."""
    return problem if "def get_init_inputs" in problem else problem + NO_INIT_INPUTS


def _read(path: Path) -> Pair:
    head, text = path.read_text(encoding="utf-8").split('"""\n', 1)
    problem, candidate = (part.strip("\n") + "\n" for part in text.split(MARK))
    return Pair(
        name=f"{path.parent.name}/{path.stem}",
        problem=with_init_inputs(f'{head}"""\n\n{_after(IMPORTS, problem)}'),
        candidate=_after(IMPORTS + TRITON, candidate),
    )


def _after(imports: str, code: str) -> str:
    return imports + ("" if code.startswith(("import ", "from ")) else "\n\n") + code
