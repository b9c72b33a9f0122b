"""The source `torch-samples` of a harvest: the samples of torch's own tests (OpInfo, module_db) as
problems; `child.py` is the process that imports torch for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

from forge.data.harvest.records import Found, Rejected
from forge.errors import ConfigError, MachineError
from forge.process.environment import child_env

NUM_PARTS = 6
"""Units: each imports torch and its tests, which takes 4 s."""
LICENCE = "BSD-3-Clause"
CHILD = "forge.data.harvest.sources.samples.child"
DEADLINE_S = 600.0


class TorchSamples:
    """The samples of the installed torch. A unit is a share of the operations."""

    name = "torch-samples"

    def facts(self) -> dict[str, Any]:
        return {"source": self.name, "torch": version("torch")}

    def units(self) -> Sequence[str]:
        return [str(part) for part in range(NUM_PARTS)]

    def read(self, unit: str) -> Iterator[Found | Rejected]:
        """The samples of a share of the operations, from a child process. Raises ConfigError for a
        torch without samples, MachineError if the child does not end."""
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", CHILD, unit, str(NUM_PARTS)],
                env=child_env(threads=1), capture_output=True, text=True, check=False,
                timeout=DEADLINE_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise MachineError(
                f"torch-samples: part {unit} of {NUM_PARTS} did not end in {DEADLINE_S:.0f} s"
            ) from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ConfigError(
                f"torch-samples: torch {version('torch')} gives no samples of its tests: {last}"
            )
        for line in done.stdout.splitlines():
            if line.startswith("{"):  # an import may print others
                yield _record(json.loads(line))


def _record(line: dict[str, Any]) -> Found | Rejected:
    origin, kind = line["origin"], f"torch {line['kind']}"
    if "reason" in line:
        return Rejected(origin=origin, kind=kind, reason=line["reason"], detail=line["detail"])
    return Found(
        text=line["text"], alternatives=tuple(line["alternatives"]), origin=origin,
        name=line["name"], kind=kind, level=1, licence=LICENCE,
    )  # fmt: skip


def open_samples(rest: str) -> TorchSamples:
    """The source that `torch-samples` names. Raises ConfigError if something follows."""
    if rest:
        raise ConfigError(f"torch-samples:{rest}: expected torch-samples alone")
    return TorchSamples()
