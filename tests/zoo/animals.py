"""The files of the zoo, read without running them. Used by the tests beside it.

Each is a candidate as a model could have written it, with constants on top that say what it is
judged against and what must come of it:

    PROBLEM   a file of problems/, if not relu
    DEVICES   where it is judged, unless on both a CPU and a GPU
    REASON, SAYS   the verdict's reason, which decides its status, and part of what it says: one,
              several where the outcome is a race, or a dict by device
    NUM_NOTES   how many comments follow its code, if any

What many have in common is left out, so that a file shows its trick: the imports of torch and
triton, and kernels and modules that a line `from parts.NAME import …` names.
`load` adds the text of both, since a candidate is one file.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.corpus.corpus import with_init_inputs

FOLDER = Path(__file__).parent
IMPORTS = "import torch\nimport triton\nimport triton.language as tl\n"
NOTE = "# a note on how the block size was found, and what else was tried without gain\n"
PART = re.compile(r"^\n*from parts\.(\w+) import \w+$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Animal:
    """One file."""

    name: str
    code: str
    trick: str
    """Its docstring."""
    fields: dict[str, Any]

    @property
    def devices(self) -> tuple[str, ...]:
        return self.fields.get("DEVICES", ("cpu", "cuda"))

    @property
    def problem(self) -> str:
        return with_init_inputs(_text("problems", self.fields.get("PROBLEM", "relu")))

    def allowed(self, field: str, device: str) -> tuple[str, ...]:
        """Reasons that a verdict on a device may have."""
        found = self.fields.get(field, ())
        found = found.get(device, ()) if isinstance(found, dict) else found
        return (found,) if isinstance(found, str) else found


def load(kind: str) -> list[Animal]:
    """`cheats`, `harmless` or `honest`, in order of name."""
    return [_read(path) for path in sorted((FOLDER / kind).glob("*.py"))]


def _read(path: Path) -> Animal:
    code = PART.sub(lambda found: "\n\n" + _text("parts", found[1]).rstrip(), path.read_text())
    if "\nimport torch\n" not in code:
        code = _with_imports(code)
    tree = ast.parse(code)
    fields = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in FIELDS:
                fields[name] = ast.literal_eval(value)
    code += NOTE * fields.get("NUM_NOTES", 0)
    return Animal(name=path.stem, code=code, trick=ast.get_docstring(tree) or "", fields=fields)


def _with_imports(code: str) -> str:
    """Adds the usual imports behind the docstring and the file's own imports."""
    body = ast.parse(code).body
    imports = (ast.Import, ast.ImportFrom)
    others = (n for n, node in enumerate(body) if n and not isinstance(node, imports))
    lines = code.splitlines(keepends=True)
    lines.insert(body[next(others) - 1].end_lineno or 0, f"\n{IMPORTS}")
    return "".join(lines)


def _text(folder: str, name: str) -> str:
    return (FOLDER / folder / f"{name}.py").read_text()


FIELDS = ("PROBLEM", "DEVICES", "REASON", "SAYS", "NUM_NOTES")
