"""`[[round]]`: stages that are repeated, and sft stages that train on the run's own answers."""

from pathlib import Path

import pytest

from forge.config.load import dump_experiment, load_experiment
from forge.errors import ConfigError

HEAD = """\
name = "x"
[model]
init = "tiny"
"""
BEFORE = """\
[[stage]]
kind = "sft"
steps = 2
learning_rate = 1e-3
"""
ROUND = """\
[[round]]
repeat = 3
[[round.stage]]
kind = "search"
problems = "train"
budget = "64"
[[round.stage]]
kind = "sft"
source = "search"
steps = 2
learning_rate = 1e-3
[[round.stage]]
kind = "eval"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "x.toml"
    path.write_text(text)
    return path


def test_a_run_has_the_stages_of_each_round_after_its_others(tmp_path):
    path = write(tmp_path, HEAD + BEFORE + ROUND)
    experiment = load_experiment(path, overrides=["round.0.repeat=2"])
    assert [stage.label(index) for index, stage in enumerate(experiment.stage)] == [
        "sft-0",
        "search-1 (round 1)", "sft-2 (round 1)", "eval-3 (round 1)",
        "search-4 (round 2)", "sft-5 (round 2)", "eval-6 (round 2)",
    ]  # fmt: skip
    resolved = write(tmp_path, dump_experiment(experiment))
    assert load_experiment(resolved) == experiment, "a resumed run has no rounds to repeat"


def test_rounds_are_counted_on_and_a_file_may_have_nothing_else(tmp_path):
    path = write(tmp_path, HEAD + BEFORE + ROUND + ROUND)
    experiment = load_experiment(path)
    assert [stage.round for stage in experiment.stage[-3:]] == [6] * 3
    many = load_experiment(path, overrides=["round.0.stage.0.num_problems=100"])
    assert many.problems.num_reserved < 100, "training problems have no such limit"
    alone = ROUND.replace('source = "search"\n', "")
    assert len(load_experiment(write(tmp_path, HEAD + alone)).stage) == 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ROUND.replace("3", "0", 1), "x.toml:5: round.0.repeat: found 0; an integer from 1 to 64"),
        ("[[round]]\nrepeat = 2\n", "x.toml:4: round.0.stage: missing; one [[round.stage]]"),
        (ROUND.replace("budget", "budgets"), "x.toml:9: round.0.stage.0.budgets: unknown key"),
        (ROUND.replace('"eval"', '"evil"'), "round.0.stage.2: found kind ="),
        (
            ROUND.replace("steps = 2", "steps = 2\nwarmup_steps = 9"),
            "x.toml:14: round.0.stage.1.warmup_steps: found 9; at most steps = 2",
        ),
        (
            ROUND.replace('problems = "train"\n', ""),
            'x.toml:11: round.0.stage.1.source: found "search", and no stage before it',
        ),
        (
            BEFORE + "best_per_problem = 2\n",
            'x.toml:8: stage.0.best_per_problem: found 2 with source = "data"',
        ),
        (ROUND.replace("budget", "round = 4\nbudget"), "x.toml:9: round.0.stage.0.round: found 4"),
        (ROUND.replace('"64"', '"0m"'), "x.toml:9: round.0.stage.0.budget: found 0m; above 0"),
        (
            ROUND.replace('kind = "eval"', 'kind = "grpo"\nsteps = 2\nlearning_rate = 1e-3'),
            "round.0.stage.2.kind: found grpo on random weights",
        ),
        ("", "stage: found none; one [[stage]] or more, or [[round]]"),
    ],
)
def test_a_mistake_in_a_round_is_one_line_with_its_place(tmp_path, text, said):
    with pytest.raises(ConfigError) as found:
        load_experiment(write(tmp_path, HEAD + text))
    lines = [line for line in str(found.value).splitlines() if said in line]
    assert len(lines) == 1, found.value


def test_answers_of_grpo_are_a_source_of_rows(tmp_path):
    grpo = '[[stage]]\nkind = "grpo"\nsteps = 2\nlearning_rate = 1e-3\n'
    own = BEFORE + 'source = "rollouts"\n'
    assert load_experiment(write(tmp_path, HEAD + BEFORE + grpo + own)).stage[2].kind == "sft"
    with pytest.raises(ConfigError, match=r"stage\.1\.source: .* or a grpo stage before it"):
        load_experiment(write(tmp_path, HEAD + BEFORE + own))
