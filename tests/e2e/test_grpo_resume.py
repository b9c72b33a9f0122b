"""GRPO killed and resumed, with all its processes: what was offered is trained again, once."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forge.config.schema import TinyModel
from forge.data.chat import ChatTemplate
from forge.data.problems import load_problem
from forge.data.prompts import first_messages
from forge.records import Message
from forge.train.durable import find_last_checkpoint
from tests.e2e.test_small_run import PROBLEM, children_of_run, forge, start, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(200)]

EXPERIMENT = """\
name = "grpo"
[model]
path = "model"
[problems]
source = "dir"
path = "problems"
num_heldout = 1
overrides = { batch_size = 4, dim = 64 }
[judge]
workers = 1
[reward]
compile_error = -1.0
[rollout]
group_size = 4
groups_per_step = 2
max_turns = 1
max_completion_tokens = 16
max_replacements = 4.0
max_staleness = 1
[store]
texts = "plain"
[[stage]]
kind = "grpo"
steps = 9
learning_rate = 1e-6
save_every = 3
"""
SIZES = TinyModel(
    hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=64, vocab_size=320
)
ANSWERS = ("no", "```\nclass ModelNew(\n```")
"""Nothing to judge, and what does not compile: rewards 0 and -1, so groups have a signal."""


def test_grpo_killed_between_checkpoints_trains_no_other_samples_when_resumed(
    tmp_path: Path,
) -> None:
    (tmp_path / "problems" / "level1").mkdir(parents=True)
    for name in ("tanh", "exp", "abs"):
        (tmp_path / "problems" / "level1" / f"{name}.py").write_text(PROBLEM.format(name))
    (tmp_path / "grpo.toml").write_text(EXPERIMENT)
    teach(tmp_path / "model", problems=sorted((tmp_path / "problems" / "level1").iterdir()))
    root = tmp_path / "runs" / "grpo-1"

    killed = start(tmp_path, "run", "grpo.toml")
    wait_for(
        lambda: last_trained(root) >= 4 or killed.poll() is not None,
        timeout_s=100,
        what="step 4 to be trained",
    )
    assert killed.poll() is None, killed.communicate()[1]
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    wait_for(lambda: not children_of_run(root), timeout_s=5, what="the children to end")
    saved = find_last_checkpoint(root / "checkpoints" / "stage-0")
    assert saved is not None
    saved_step = int(saved.name.removeprefix("checkpoint-"))
    assert last_trained(root) < 9

    finished = forge("resume", "grpo-1", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    with opened(root) as db:
        trained = db.execute(
            "SELECT step, attempt, group_concat(sample_id) FROM "
            "(SELECT * FROM sample_uses ORDER BY sample_id) GROUP BY step, attempt ORDER BY 1, 2"
        ).fetchall()
        strangers = db.execute(
            "SELECT count(*) FROM sample_uses u LEFT JOIN samples s USING (sample_id) "
            "WHERE (s.group_id, s.rollout, s.turn) IS NOT (u.group_id, u.rollout, u.turn)"
        ).fetchone()
        once = db.execute(
            "SELECT count(*), count(DISTINCT sample_id), min(staleness), max(staleness), "
            "count(DISTINCT step) FROM v_samples"
        ).fetchone()
    again = {step: samples for step, attempt, samples in trained if attempt == 2}
    assert sorted(again) == list(range(saved_step + 1, 10))
    for step, attempt, samples in trained:
        if attempt == 1 and step > saved_step:
            assert again[step] == samples, f"step {step} was trained on other samples"
    assert strangers == (0,), "a sample id was given out twice"
    count, distinct, youngest, oldest, steps = once
    assert count == distinct
    assert steps == 9
    assert 0 <= youngest <= oldest <= 1


def teach(model_dir: Path, *, problems: list[Path]) -> None:
    """A model that gives now one answer, now the other."""
    import torch
    from transformers import Qwen3ForCausalLM

    from forge.train.trainer.init_model import make_model

    prompts = [first_messages(load_problem(path)) for path in problems]
    texts = [message.content for prompt in prompts for message in prompt]
    texts += ANSWERS * len(prompts)
    make_model(SIZES.model_dump(), texts=texts, model_dir=model_dir, seed=0)
    chat, model = ChatTemplate.load(model_dir), Qwen3ForCausalLM.from_pretrained(model_dir)
    rows = [
        chat.training_row((*prompt, Message(role="assistant", content=answer)))
        for prompt in prompts
        for answer in ANSWERS
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(40):
        for row in rows:
            ids = torch.tensor([row.input_ids])
            labels = torch.where(torch.tensor([row.completion_mask]) == 1, ids, -100)
            model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(model_dir)


def last_trained(root: Path) -> int:
    """0 before the first step, and before there is a database."""
    try:
        with opened(root) as db:
            return db.execute("SELECT coalesce(max(step), 0) FROM sample_uses").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


@contextmanager
def opened(root: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(f"file:{root}/run.db?mode=ro", uri=True)
    try:
        yield db
    finally:
        db.close()
