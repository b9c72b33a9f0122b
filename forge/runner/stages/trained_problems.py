"""Problems that the run has trained on before an evaluation: by rows of SFT, or by rollouts.

An evaluation on them says how well answers were remembered, so it is labelled everywhere. Problems
are compared by their text, since rows of a file have other names: by the run's own prompt, and by
the bare source, which is all that rows made elsewhere may have. What trained the model before
this run is unknown.
"""

# pyright: strict
from __future__ import annotations

from typing import TYPE_CHECKING

from forge.config.schema import SftStage
from forge.runner.prepare.prepare import load_pairs
from forge.store.reader import open_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.records import Problem
    from forge.runner.stages.run_context import RunContext

_PLAYED = """
SELECT DISTINCT p.source_id FROM sample_uses u JOIN groups g USING (group_id)
JOIN problems p ON p.problem_id = g.problem_id
"""
_SAME = f"SELECT problem_id FROM problems WHERE source_id IN ({_PLAYED})"


def count_trained(run: RunContext, problems: Sequence[Problem], *, stage: int) -> int:
    """Number of these problems that stages up to `stage` trained on. Reads files and the store:
    call it in a thread."""
    with open_run(run.paths) as reader:
        played = {name for (name,) in reader.query(_SAME).rows}
    asked = set[str]()
    if any(isinstance(each, SftStage) for each in run.experiment.stage[:stage]):
        pairs = load_pairs(run.paths)
        asked = {each.content for pair in pairs for each in pair.messages if each.role == "user"}
    return sum(
        problem.problem_id in played
        or run.prompts.first_messages(problem)[-1].content in asked
        or problem.source.strip() in asked
        for problem in problems
    )
