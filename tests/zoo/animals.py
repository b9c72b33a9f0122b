"""The files of the zoo, read without running them. Used by the tests beside it.

Each is a candidate as a model could have written it, with constants on top that say what it is
judged against and what must come of it:

    PROBLEM   a file of problems/
    DEVICES   where it is judged
    VERDICT, REASON, SAYS   what the verdict must be and part of what it says: one, several where
              the outcome is a race, or a dict by device
"""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


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
        return self.fields["DEVICES"]

    @property
    def problem(self) -> str:
        return (FOLDER / "problems" / f"{self.fields['PROBLEM']}.py").read_text()

    def allowed(self, field: str, device: str) -> tuple[str, ...]:
        """Reasons that a verdict on a device may have."""
        found = self.fields.get(field, ())
        found = found.get(device, ()) if isinstance(found, dict) else found
        return (found,) if isinstance(found, str) else found


def load(kind: str) -> list[Animal]:
    """`cheats`, `harmless` or `honest`, in order of name."""
    return [_read(path) for path in sorted((FOLDER / kind).glob("*.py"))]


def _read(path: Path) -> Animal:
    code = path.read_text()
    tree = ast.parse(code)
    fields = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in FIELDS:
                fields[name] = ast.literal_eval(value)
    return Animal(name=path.stem, code=code, trick=ast.get_docstring(tree) or "", fields=fields)


FIELDS = ("PROBLEM", "DEVICES", "VERDICT", "REASON", "SAYS")
