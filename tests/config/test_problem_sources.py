"""Checks of `[problems]` and `[data]`: several sources, levels, rows of files, and paths."""

from pathlib import Path

import pytest

from forge.config.load import dump_experiment, load_experiment
from forge.errors import ConfigError

HEAD = 'name = "x"\n[model]\npath = "org/model"\n'
BENCH = '[problems]\nsource = "dir"\npath = "bench"\n'
EVAL = '[[stage]]\nkind = "eval"\n'
PROBLEM = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bench" / "level1").mkdir(parents=True)
    (tmp_path / "bench" / "level1" / "1_a.py").write_text(PROBLEM)
    (tmp_path / "rows.jsonl").write_text("")
    return tmp_path


def write(folder: Path, problems: str, *, head: str = HEAD, stages: str = EVAL) -> Path:
    path = folder / "x.toml"
    path.write_text(f"{head}{problems}{stages}")
    return path


def mistakes(folder: Path, problems: str, **parts: str) -> list[str]:
    path = write(folder, problems, **parts)
    with pytest.raises(ConfigError) as caught:
        load_experiment(path)
    return [line.removeprefix(f"{path}:") for line in str(caught.value).splitlines()]


TWO = """[[problems.sources]]
source = "dir"
path = "bench"
weight = 2
[[problems.sources]]
source = "file"
path = "rows.jsonl"
format = "kernelbook"
use = "train"
"""


def test_paths_of_sources_are_relative_to_the_experiment(folder, monkeypatch):
    monkeypatch.chdir("/")
    experiment = load_experiment(write(folder, TWO))
    assert [part.path for part in experiment.problems.sources] == [
        folder / "bench",
        folder / "rows.jsonl",
    ]
    (folder / "resolved.toml").write_text(dump_experiment(experiment))
    assert load_experiment(folder / "resolved.toml") == experiment


def test_a_hub_name_stays_a_name(folder):
    path = write(folder, '[problems]\nsource = "file"\npath = "org/rows"\n')
    assert load_experiment(path).problems.path == Path("org/rows")


def test_set_changes_a_key_of_one_source(folder):
    path = write(folder, TWO)
    changed = load_experiment(path, overrides=["problems.sources.1.weight=0.5"])
    assert changed.problems.weights == {"bench": 2.0, "rows": 0.5}


@pytest.mark.parametrize(
    ("problems", "words"),
    [
        ('[problems]\npath = "bench"\n' + TWO, "problems.path: set together with problems.source"),
        (TWO.replace("bench", "no"), "problems.sources.0.path: found"),
        (TWO.replace('path = "rows.jsonl"\n', ""), 'problems.sources.1.source: found source = "fi'),
        (
            TWO.replace('use = "train"', 'use = "test"'),
            'sources.1.use: found "test"; one of "both"',
        ),
        ("[problems]\nsources = []\n", "problems.sources: found []; one [[problems.sources]] or"),
        (
            '[[problems.sources]]\nsource = "generated"\n' * 2,
            'problems.sources.1.source: found "generated" a second time',
        ),
        (
            f"{BENCH}train_levels = [1]\nheldout_levels = [1]\n",
            "problems.heldout_levels: found 1, which is in train_levels too",
        ),
        (
            '[problems]\nnum_heldout = "shared"\n',
            'problems.num_heldout: found "shared" with generated problems',
        ),
        (
            f'{BENCH}heldout_levels = [1]\nnum_heldout = "shared"\n',
            'problems.num_heldout: found "shared" with heldout_levels',
        ),
        (
            TWO.replace('"train"', '"heldout"').replace(
                "[[", '[problems]\nnum_heldout = "shared"\n[[', 1
            ),
            'problems.num_heldout: found "shared" with use = "heldout"',
        ),
        (f'{BENCH}num_heldout = "all"\n', 'num_heldout: found "all"; '),
        ("[problems]\nheldout_levels = [4]\n", "heldout_levels: set with generated problems only"),
        (
            '[problems]\nsource = "file"\npath = "no.jsonl"\n',
            "which does not exist; a file of rows, a directory or a hub name",
        ),
    ],
)
def test_a_mistake_is_one_line_with_its_key(problems, words, folder):
    (line,) = mistakes(folder, problems)
    assert words in line


MIX = """[[data.sources]]
source = "generated"
weight = 1
[[data.sources]]
source = "file"
path = "rows.jsonl"
"""
SFT = '[[stage]]\nkind = "sft"\nsteps = 1\nlearning_rate = 1e-3\n'


def test_rows_of_several_sources_have_weights_and_paths_beside_the_experiment(folder, monkeypatch):
    monkeypatch.chdir("/")
    experiment = load_experiment(write(folder, MIX, stages=SFT))
    assert experiment.data.weights == {0: 1.0}
    assert [part.path for part in experiment.data.parts()] == [None, folder / "rows.jsonl"]
    (folder / "resolved.toml").write_text(dump_experiment(experiment))
    assert load_experiment(folder / "resolved.toml") == experiment


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (MIX.replace("= 1", "= 0"), "data.sources.0.weight: found 0; a number, above 0"),
        (MIX.replace("= 1", "= -1"), "data.sources.0.weight: found -1; a number, above 0"),
        (MIX.replace("= 1", "= inf"), "data.sources.0.weight: found inf; a"),
        (MIX.replace('"generated"', '"web"'), 'data.sources.0.source: found "web"; one of "gen'),
        (MIX.replace("rows", "no"), "data.sources.1.path: found"),
        (
            MIX + 'format = "kernelbook"\n',
            'data.sources.1.format: found "kernelbook"; "messages"; `f',
        ),
        (MIX.replace('path = "rows.jsonl"', ""), 'data.sources.1.source: found source = "file" w'),
        ('[data]\nsource = "file"\n' + MIX, "data.source: set together with data.sources"),
        (MIX + '[[data.sources]]\nsource = "generated"\n', 'data.sources.2.source: found "gen'),
        (
            MIX + '[[data.sources]]\nsource = "file"\npath = "rows.jsonl"\n',
            "data.sources.2.path: found",
        ),
        (f"{BENCH}{MIX}", 'stage.0.kind: found "sft", which needs answers'),
    ],
)
def test_a_mistake_in_the_sources_of_rows_is_one_line(data, words, folder):
    (line,) = mistakes(folder, data, stages=SFT)
    assert words in line


SFT_THEN_GRPO = """[[stage]]
kind = "sft"
epochs = 1
learning_rate = 1e-3
[[stage]]
kind = "eval"
[[stage]]
kind = "grpo"
steps = 1
learning_rate = 1e-3
"""
TINY = 'name = "x"\n[model]\ninit = "tiny"\n'


def test_without_rows_a_directory_has_no_answers_to_learn_from(folder):
    lines = mistakes(folder, BENCH, head=TINY, stages=SFT_THEN_GRPO)
    assert len(lines) == 2
    assert "tokenizer learns from answers" in lines[0]
    assert 'found "sft", which needs answers' in lines[1]


def test_a_missing_kernelbench_comes_with_the_command_that_fetches_it(folder):
    (line,) = mistakes(folder, '[problems]\nsource = "dir"\npath = "KernelBench/KernelBench"\n')
    clone = "git clone https://github.com/ScalingIntelligence/KernelBench"
    assert line.endswith(f"; {clone} {folder}/KernelBench")
