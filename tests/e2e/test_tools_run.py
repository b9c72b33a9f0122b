"""GRPO of a model that calls a tool before some of its answers."""

from pathlib import Path

import pytest

from forge.store.codec import decode_logprobs
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.tools.toolbox import fenced_words
from tests.e2e.commands import forge
from tests.e2e.experiments import ANSWERS, GRPO_EXPERIMENT, PROBLEM, SIZES, teach

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

CALL = "```docs\nzq\n```"
"""A call whose reply is short."""
TOOLS = '[rollout]\ntools = ["docs"]\ntool_calls = 2\n'
EXPERIMENT = GRPO_EXPERIMENT.replace("[rollout]\n", TOOLS).replace("steps = 9", "steps = 3")


def test_a_model_is_trained_on_what_it_sampled_around_replies(tmp_path: Path) -> None:
    problems = [tmp_path / "problems" / f"{name}.py" for name in ("exp", "relu", "tanh")]
    problems[0].parent.mkdir()
    for path in problems:
        path.write_text(PROBLEM.format(path.stem))
    words = fenced_words(("docs",), max_calls=2)
    sizes = SIZES.model_copy(update={"vocab_size": 1024})
    answers = (*ANSWERS, CALL)
    teach(tmp_path / "model", problems=problems, answers=answers, sizes=sizes, words=words)
    (tmp_path / "grpo.toml").write_text(EXPERIMENT)
    ran = forge("run", "grpo.toml", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
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
