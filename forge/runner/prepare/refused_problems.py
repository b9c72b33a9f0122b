"""Problems that GRPO must not train on: they reward a trivial answer or cannot be judged.

Called by `prepare_run.py`, which examines problems from a directory before the first stage.
Generated problems are correct by construction. The result is kept in the run's `data/`, so that a
resumed run trains on the same problems. Evaluations use all their problems: nothing is trained on
them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from forge.config.schema import Experiment, GrpoStage
from forge.data.generator import is_generated
from forge.data.problems import in_split
from forge.errors import ConfigError
from forge.evalpool.pool import examine_all
from forge.records import Split
from forge.records.examination import UNUSABLE
from forge.runner.prepare.prepare import data_dir, write_kept

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.evalpool.pool import Pool
    from forge.records import Problem
    from forge.runner.live.progress import Progress
    from forge.store.layout import RunPaths

MAX_NAMES = 8
"""Maximum number of problems named in the message."""
ALLOW = "problems.allow_flagged = true"


def is_examined(experiment: Experiment) -> bool:
    """True if a run examines its problems before training."""
    table = experiment.problems
    trains = any(isinstance(stage, GrpoStage) for stage in experiment.stage)
    return trains and table.has_others and not table.allow_flagged


async def find_refused(
    problems: Sequence[Problem],
    *,
    paths: RunPaths,
    pool: Pool,
    progress: Progress,
) -> dict[str, str]:
    """Flags of the problems that GRPO must not train on, by problem id. Raises ConfigError if none
    is left to train on."""
    wanted = [each for each in in_split(problems, Split.GRPO) if not is_generated(each.problem_id)]
    file = data_dir(paths) / "refused.json"
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        progress.prepare(f"problems {done} of {len(wanted)}")

    found = await examine_all(pool, wanted, done=count)
    refused = {
        each.problem_id: ", ".join(f for f in each.flags if f.is_trivial or f.is_unusable)
        for each in found
        if not each.is_trainable
    }
    if len(refused) == len(in_split(problems, Split.GRPO)):
        raise ConfigError(f"{refusal(refused, num_problems=len(wanted))}; none is left")
    write_kept(file, json.dumps(refused))
    return refused


def refusal(refused: Mapping[str, str], *, num_problems: int) -> str:
    """A message that names the refused problems and the setting that allows them."""
    names = [f"{name} ({flags})" for name, flags in list(refused.items())[:MAX_NAMES]]
    more = len(refused) - MAX_NAMES
    listed = ", ".join(names) + (f" and {more} more" if more > 0 else "")
    return (
        f"problems.path: {len(refused)} of {num_problems} problems are not trained on"
        f"{_kinds(refused)}: {listed}; "
        f'"forge problems check" says why, {ALLOW} trains on them'
    )


def _kinds(refused: Mapping[str, str]) -> str:
    """` (5 unjudgeable, 2 trivial)`."""
    num = sum(not UNUSABLE.isdisjoint(flags.split(", ")) for flags in refused.values())
    kinds = {"unjudgeable": num, "trivial": len(refused) - num}
    return f" ({', '.join(f'{count} {kind}' for kind, count in kinds.items() if count)})"
