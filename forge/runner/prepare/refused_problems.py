"""Which problems GRPO may train on: those of a directory are examined before the first stage, and
what would pay a trivial answer, or cannot be judged, is left out (design, section 6, row 8).

Called by `run.py` in prepare. Generated problems are exempt: they are checked by construction. What
was found is kept in the run's `data/`, so that a resumed run trains on the same problems.
Evaluations keep all of theirs: nothing is learned from them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from forge.config.schema import Experiment, GrpoStage
from forge.data.splits import in_split
from forge.errors import ConfigError
from forge.evalpool.examine import examine_all
from forge.records import Split
from forge.runner.prepare.prepare import data_dir
from forge.store.layout import write_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.evalpool.pool import Pool
    from forge.records import Problem
    from forge.records.examination import Examination
    from forge.runner.live.progress import Progress
    from forge.store.layout import RunPaths

MAX_NAMES = 8
"""Problems that are named in the line."""
ALLOW = "problems.allow_flagged = true"


def is_examined(experiment: Experiment) -> bool:
    """Whether a run examines its problems first."""
    table = experiment.problems
    trains = any(isinstance(stage, GrpoStage) for stage in experiment.stage)
    return trains and table.source != "generated" and not table.allow_flagged


async def find_refused(
    experiment: Experiment,
    problems: Sequence[Problem],
    *,
    paths: RunPaths,
    pool: Pool,
    progress: Progress,
) -> dict[str, str]:
    """Flags of the problems that GRPO must not train on, by their id.

    Raises ConfigError where none is left to train on.
    """
    wanted = in_split(problems, Split.GRPO)
    file = data_dir(paths) / "refused.json"
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        progress.prepare(f"problems {done} of {len(wanted)}")

    found = await examine_all(pool, wanted, num_at_once=experiment.judge.workers * 2, done=count)
    refused = {each.problem_id: _flags(each) for each in found if not each.is_trainable}
    if len(refused) == len(wanted):
        raise ConfigError(f"{refusal(refused, num_problems=len(wanted))}; none is left")
    write_file(file, json.dumps(refused))
    return refused


def refusal(refused: Mapping[str, str], *, num_problems: int) -> str:
    """The line that names them and says how to let them through."""
    names = [f"{name} ({flags})" for name, flags in list(refused.items())[:MAX_NAMES]]
    more = len(refused) - MAX_NAMES
    told = ", ".join(names) + (f" and {more} more" if more > 0 else "")
    return (
        f"problems.path: {len(refused)} of {num_problems} problems are not trained on: {told}; "
        f'"forge problems check" says why, {ALLOW} trains on them'
    )


def _flags(examination: Examination) -> str:
    return ", ".join(flag for flag in examination.flags if flag.is_trivial or flag.is_unusable)
