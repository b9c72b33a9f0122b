"""Checks of `[problems]`, `[data]`, `[cluster]`, `[notify]`, `[sinks]` and `[[round]]`: several
sources, levels, rows of files, paths, repeated stages, sft stages that train on the run's own
answers; every mistake is one line that says what is allowed."""

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


EXPERIMENT = 'name = "x"\n[model]\ninit = "tiny"\n[[stage]]\nkind = "eval"\n'
NODES = ['cluster.address="auto"', "cluster.judges=2"]
URL = "https://hooks.example/services/T0/B0"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.toml"
    path.write_text(EXPERIMENT)
    return path


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["cluster.judges=2"], "found 2 without cluster.address; both or neither"),
        ([*NODES, "cluster.judges=0"], "cluster.address: set, and nothing runs on its nodes"),
        ([*NODES, "cluster.serve=true"], 'serve.engine: found "auto", and engines run'),
        (
            [*NODES, "cluster.serve=true", 'serve.engine="vllm"', 'serve.url=["unix:/s"]'],
            "cluster.serve: found true with serve.url",
        ),
        (
            [
                *NODES,
                "cluster.serve=true",
                'cluster.serve_on="cpu"',
                'devices.gpus="auto"',
                "devices.serve=1",
            ],
            "devices.serve: found 1 with cluster.serve",
        ),
        (
            [*NODES, "cluster.train_nodes=1"],
            "cluster.train_nodes: found 1, and no stage trains; a stage of kind sft or grpo, or 0",
        ),
        ([*NODES, 'cluster.address="head"'], 'found "head"; auto, HOST:PORT or ray://HOST:PORT'),
        (
            [
                *NODES,
                "cluster.serve=true",
                "cluster.share_gpus=true",
                'serve.engine="vllm"',
                "serve.tensor_parallel=2",
            ],
            "cluster.share_gpus: found true with serve.tensor_parallel = 2; false, or 1",
        ),
        ([*NODES, 'judge.url=["unix:/s"]'], "cluster.judges: found 2 with judge.url; one of them"),
        ([*NODES, 'devices.gpus="auto"', "devices.judge=1"], "devices.judge: found 1 with"),
        ([*NODES, "eval.both_baselines=true"], "measured by judges of this machine only"),
        ([*NODES, 'cluster.judge_on="tpu"'], 'found "tpu"; one of "gpu", "cpu"'),
        ([*NODES, 'problems.sizes="gpu"', 'cluster.judge_on="cpu"'], "judges on the CPU"),
        (['notify.webhook="ftp://x"'], 'found "ftp://x"; http(s)://HOST[:PORT][/PATH]'),
        (['notify.webhook="https://a b"'], 'found "https://a b"; http(s)://HOST[:PORT][/PATH]'),
        (['notify.on=["dead"]'], 'found "dead"; a list of "done", "failed", "stalled", "stopped"'),
        (['notify.on=["done"]'], "set without command or webhook; set one of them"),
        (['notify.webhook_env="NO_SUCH_HOOK"'], 'found "NO_SUCH_HOOK", which is not set;'),
        (['notify.webhook_env="EMPTY_HOOK"'], 'found "EMPTY_HOOK", which is not http(s)://HOST'),
        (["notify.timeout_s=0"], "found 0; a number, above 0, 300 or less"),
        (['notify.comand="x"'], "unknown key; did you mean command?"),
        (['sinks.to=["wandbb"]'], 'found "wandbb"; a list of "tensorboard", "trackio", "wandb"'),
        (['sinks.wandb_mode="offline"'], 'set without "wandb" in sinks.to; both or neither'),
        (['sinks.project="a/b"'], 'found "a/b"; 1 to 64 letters'),
    ],
)
def test_a_mistake_is_one_line(file, given, expected, monkeypatch):
    monkeypatch.setenv("EMPTY_HOOK", "")
    monkeypatch.delenv("NO_SUCH_HOOK", raising=False)
    with pytest.raises(ConfigError) as raised:
        load_experiment(file, overrides=given)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "ray://head:10001", "[::1]:6379"])
def test_an_address_may_name_the_head(file, address):
    experiment = load_experiment(file, overrides=[*NODES, f'cluster.address="{address}"'])
    assert experiment.cluster.address == address


def test_a_webhook_and_a_variable_for_it_exclude_each_other(file, monkeypatch):
    monkeypatch.setenv("OUR_HOOK", URL)
    with pytest.raises(ConfigError, match=r"set together with notify\.webhook; exactly one"):
        load_experiment(
            file, overrides=[f'notify.webhook="{URL}"', 'notify.webhook_env="OUR_HOOK"']
        )


def test_a_variable_is_not_required_for_another_machine(file):
    overrides = ['notify.webhook_env="NO_SUCH_HOOK"']
    elsewhere = load_experiment(file, overrides=overrides, is_here=False)
    assert elsewhere.notify.webhook_env == "NO_SUCH_HOOK"
    with pytest.raises(ConfigError, match="NO_SUCH_HOOK"):
        load_experiment(file, overrides=overrides)


ROUNDS = """\
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


def experiment_file(folder: Path, text: str) -> Path:
    path = folder / "x.toml"
    path.write_text(text)
    return path


def test_a_run_has_the_stages_of_each_round_after_its_others(tmp_path):
    path = experiment_file(tmp_path, ROUNDS + BEFORE + ROUND)
    experiment = load_experiment(path, overrides=["round.0.repeat=2"])
    assert [stage.label(index) for index, stage in enumerate(experiment.stage)] == [
        "sft-0",
        "search-1 (round 1)", "sft-2 (round 1)", "eval-3 (round 1)",
        "search-4 (round 2)", "sft-5 (round 2)", "eval-6 (round 2)",
    ]  # fmt: skip
    resolved = experiment_file(tmp_path, dump_experiment(experiment))
    assert load_experiment(resolved) == experiment, "a resumed run has no rounds to repeat"


def test_rounds_are_counted_on_and_a_file_may_have_nothing_else(tmp_path):
    path = experiment_file(tmp_path, ROUNDS + BEFORE + ROUND + ROUND)
    experiment = load_experiment(path)
    assert [stage.round for stage in experiment.stage[-3:]] == [6] * 3
    many = load_experiment(path, overrides=["round.0.stage.0.num_problems=100"])
    assert many.problems.num_reserved < 100, "training problems have no such limit"
    alone = ROUND.replace('source = "search"\n', "")
    assert len(load_experiment(experiment_file(tmp_path, ROUNDS + alone)).stage) == 9


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
        (ROUND.replace('"64"', '"0m"'), "x.toml:9: round.0.stage.0.budget: found"),
        (
            ROUND.replace('kind = "eval"', 'kind = "grpo"\nsteps = 2\nlearning_rate = 1e-3'),
            "round.0.stage.2.kind: found grpo on random weights",
        ),
        ("", "stage: found none; one [[stage]] or more, or [[round]]"),
    ],
)
def test_a_mistake_in_a_round_is_one_line_with_its_place(tmp_path, text, said):
    with pytest.raises(ConfigError) as found:
        load_experiment(experiment_file(tmp_path, ROUNDS + text))
    lines = [line for line in str(found.value).splitlines() if said in line]
    assert len(lines) == 1, found.value


def test_answers_of_grpo_are_a_source_of_rows(tmp_path):
    grpo = '[[stage]]\nkind = "grpo"\nsteps = 2\nlearning_rate = 1e-3\n'
    own = BEFORE + 'source = "rollouts"\n'
    assert (
        load_experiment(experiment_file(tmp_path, ROUNDS + BEFORE + grpo + own)).stage[2].kind
        == "sft"
    )
    with pytest.raises(ConfigError, match=r"stage\.1\.source: .* or a grpo stage before it"):
        load_experiment(experiment_file(tmp_path, ROUNDS + BEFORE + own))
