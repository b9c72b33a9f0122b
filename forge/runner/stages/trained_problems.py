"""Problems that the run has trained on before an evaluation: by rows of SFT, or by rollouts.

An evaluation on them says how well answers were remembered, so it is labelled everywhere. Problems
are compared by their text and by the normal form of their code, since rows of a file have other
names, sizes and prompts. What trained the model before this run is unknown.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from forge.config.schema import SftStage
from forge.data.sources.normal_form import digests_in, normal_digest
from forge.runner.prepare.prepare import load_pairs
from forge.store.reader import open_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.records import Problem
    from forge.runner.stages.run_context import RunContext
    from forge.store.layout import RunPaths

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
    asked, digests = frozenset[str](), frozenset[str]()
    if any(isinstance(each, SftStage) for each in run.experiment.stage[:stage]):
        asked, digests = _read_asked(run.paths)
    digests |= {_digest(each) for each in run.problems if each.problem_id in played}
    return sum(
        problem.problem_id in played
        or run.prompts.first_messages(problem)[-1].content in asked
        or problem.source.strip() in asked
        or _digest(problem) in digests
        for problem in problems
    )


def _digest(problem: Problem) -> str:
    """Digest of a problem's normal form; its id if it has none."""
    return normal_digest(problem.source, entry_point=problem.entry_point) or problem.problem_id


@lru_cache(maxsize=1)  # the rows of a run do not change, and thousands take seconds
def _read_asked(paths: RunPaths) -> tuple[frozenset[str], frozenset[str]]:
    """Texts of the users' messages in the SFT rows of a run, and the digests of models in them."""
    pairs = load_pairs(paths)
    asked = {each.content for pair in pairs for each in pair.messages if each.role == "user"}
    return frozenset(asked), frozenset(found for text in asked for found in digests_in(text))
