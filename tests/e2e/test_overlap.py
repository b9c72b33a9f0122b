"""GRPO with every kind of overlap: weights change during turns, groups are trained twice, problems
come by priority; killed and resumed in between. And of a model that calls a tool before some of its
answers.
"""

from pathlib import Path

import pytest

from forge.store.codec import decode_logprobs
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.tools.toolbox import fenced_words
from tests.e2e.commands import forge, kill, last_trained, opened, start, until
from tests.e2e.experiments import ANSWERS, GRPO_EXPERIMENT, PROBLEM, SIZES, teach

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

OVERLAPPED = GRPO_EXPERIMENT.replace(
    "max_staleness = 1\n",
    'max_staleness = 2\nreplay = 2\nin_flight = "keep"\nsampler = "priority"\n'
    "groups_in_flight = 5\n",
)


def test_overlap_keeps_its_bounds_through_a_kill(grpo_project: Path) -> None:
    (grpo_project / "grpo.toml").write_text(OVERLAPPED)
    root = grpo_project / "runs" / "grpo-1"

    killed = start(grpo_project, "run", "grpo.toml")
    until(killed, lambda: last_trained(root) >= 4, what="step 4 to be trained")
    kill(killed, root)
    forge("resume", "grpo-1", cwd=grpo_project)

    with opened(root) as db:
        steps, youngest, oldest = db.execute(
            "SELECT count(DISTINCT step), min(staleness), max(staleness) FROM v_samples"
        ).fetchone()
        trained = db.execute(
            "SELECT step, attempt, group_concat(sample_id) FROM "
            "(SELECT * FROM sample_uses ORDER BY sample_id) GROUP BY step, attempt ORDER BY 1, 2"
        ).fetchall()
        uses = db.execute(
            "SELECT max(uses) FROM (SELECT count(*) AS uses FROM v_samples GROUP BY sample_id)"
        ).fetchone()
        trained_late = db.execute(
            "SELECT count(*) FROM v_samples WHERE admitted_for_step - step > 2"
        ).fetchone()
        idle = db.execute(
            "SELECT role, min(idle_share), max(idle_share) FROM v_idle GROUP BY role"
        ).fetchall()
        counted = db.execute(
            "SELECT count(*) FROM v_metrics WHERE key = 'rollout/in_flight_groups/count'"
        ).fetchone()
    assert steps == 9
    first = {step: samples for step, attempt, samples in trained if attempt == 1}
    again = {step: samples for step, attempt, samples in trained if attempt == 2}
    assert all(again[step] == first[step] for step in again.keys() & first.keys())
    assert again.keys() | first.keys() == set(range(1, 10))
    assert 0 <= youngest <= oldest <= 2
    assert uses[0] <= 2
    assert trained_late == (0,)
    assert {role for role, _, _ in idle} == {"trainer", "serve", "judge"}
    assert all(0 <= low <= high <= 1 for _, low, high in idle)
    assert counted == (9,)


CALL = "```docs\nzq\n```"
"""A call whose reply is short."""
TOOLS = '[rollout]\ntools = ["docs"]\ntool_calls = 2\n'
TOOLED = GRPO_EXPERIMENT.replace("[rollout]\n", TOOLS).replace("steps = 9", "steps = 3")


def test_a_model_is_trained_on_what_it_sampled_around_replies(tmp_path: Path) -> None:
    problems = [tmp_path / "problems" / f"{name}.py" for name in ("exp", "relu", "tanh")]
    problems[0].parent.mkdir()
    for path in problems:
        path.write_text(PROBLEM.format(path.stem))
    words = fenced_words(("docs",), max_calls=2)
    sizes = SIZES.model_copy(update={"vocab_size": 1024})
    answers = (*ANSWERS, CALL)
    teach(tmp_path / "model", problems=problems, answers=answers, sizes=sizes, words=words)
    (tmp_path / "grpo.toml").write_text(TOOLED)
    forge("run", "grpo.toml", cwd=tmp_path)
    with open_run(RunPaths(tmp_path / "runs" / "grpo-1")) as reader:
        calls = reader.rows("SELECT * FROM v_calls JOIN samples USING (group_id, rollout, turn)")
        stored = reader.rows(
            "SELECT t.num_completion_tokens AS num, k.logprobs FROM tokens.tokens k "
            "JOIN turns t USING (group_id, rollout, turn)"
        )
        losses = reader.rows("SELECT value FROM v_metrics WHERE key = 'train/loss/mean'")
    # After a reply, which it was not taught, the model may ask anything.
    assert any("nothing about 'zq'" in each["result"] for each in calls)
    kept = [(each["num"], decode_logprobs(each["logprobs"])) for each in stored]
    assert all(num == sum(one == one for one in logprobs) for num, logprobs in kept)
    assert any(num < len(logprobs) for num, logprobs in kept)
    assert len(losses) == 3
    assert all(each["value"] is not None for each in losses)
