"""`python -m forge.commands.doctor.probes.sandbox CONFIG.json`: finds the sandbox of judges.

Each level is tried in a process of one thread, as a judge's launcher does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.commands.doctor.probes.answer import AnswerFile, run_probe
from forge.evalpool.judge.sandbox import levels

if TYPE_CHECKING:
    from collections.abc import Mapping


def find_sandbox(config: Mapping[str, Any], answer: AnswerFile) -> None:
    """Report the strongest level, and what was refused above it; no level is an OSError."""
    del config
    answer.begin("trying the levels of the sandbox")
    try:
        level, refused = levels.find_level("auto")
    except OSError as error:
        answer.say(level=None, refused=[error.strerror])
    else:
        answer.say(level=level, refused=refused, serves_gpus=level in levels.ON_GPU)


if __name__ == "__main__":
    run_probe(find_sandbox)
