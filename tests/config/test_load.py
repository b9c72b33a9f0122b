"""Loading experiments, and the messages about mistakes: place, what was found, what is allowed."""

import json
from pathlib import Path
from typing import Any

import pytest
import tomli
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge.config.checks import PINNING
from forge.config.keys import all_keys
from forge.config.load import dump_experiment, key_lines, load_experiment
from forge.config.schema import Experiment
from forge.errors import ConfigError
from forge.process.devices import VISIBILITY_VARIABLES

scalars = st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars,
    lambda x: st.lists(x, max_size=2) | st.dictionaries(st.text(max_size=3), x, max_size=2),
    max_leaves=4,
)


def inline(value: Any) -> str:
    """One value as TOML without a line end."""
    if isinstance(value, dict):
        pairs = (f"{inline(str(name))} = {inline(item)}" for name, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower()


ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "experiments" / "quickstart.toml"
MINIMAL = """\
name = "x"
model.init = "tiny"
[[stage]]
kind = "eval"
"""


def write(folder: Path, text: str, *, name: str = "x.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def mistakes_of(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_experiment(path, overrides=overrides)
    return str(caught.value).replace(f"{path.parent}/", "").splitlines()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda p: p.name
)
def test_every_experiment_loads_and_its_dump_loads_to_the_same(path, tmp_path):
    experiment = load_experiment(path, is_here=False)
    dumped = write(tmp_path, dump_experiment(experiment))
    assert load_experiment(dumped, is_here=False) == experiment


def test_two_mistakes_are_both_shown_with_their_lines_and_did_you_mean(tmp_path):
    path = write(tmp_path, MINIMAL + "samples = 0\n[rollout]\ngrup_size = 4\n")
    assert mistakes_of(path) == [
        "x.toml:5: stage.0.samples: found 0; an integer, 1 or more",
        "x.toml:7: rollout.grup_size: unknown key; did you mean group_size?",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('group_size = "8"', 'found "8"; an integer, 2 or more'),
        ("group_size = true", "found true; an integer, 2 or more"),
        ("group_size = 8.5", "found 8.5; an integer, 2 or more"),
        ("group_size = 1979-05-27", "found the date 1979-05-27; an integer, 2 or more"),
        ("gamma = 1.5", "found 1.5; a number from 0 to 1"),
        ("gamma = nan", "found nan; a number from 0 to 1"),
        ("temperature = 0", "found 0; a number, above 0, 2 or less"),
        ('advantage = "turns"', 'found "turns"; one of "group", "turn"; did you mean turn?'),
        ("train_truncated = 1", "found 1; true or false"),
    ],
)
def test_a_wrong_value_gives_a_message_in_plain_english(tmp_path, line, expected):
    path = write(tmp_path, f"{MINIMAL}[rollout]\n{line}\n")
    assert mistakes_of(path) == [f"x.toml:6: rollout.{line.split()[0]}: {expected}"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('model.init = "tiny"\n[[stage]]\nkind = "eval"', "x.toml: name: missing; 1 to 64 letters"),
        ('name = "../x"\nmodel.init = "tiny"\n[[stage]]\nkind = "eval"', "x.toml:1: name: found"),
        ('name = "x"\nmodel.init = "tiny"', "x.toml: stage: found none; one [["),
        ('name = "x"\nmodel.init = "tiny"\nstage = []', "x.toml:3: stage: found none; one [["),
        ('name = "x"\nmodel = 3\n[[stage]]\nkind = "eval"', "x.toml:2: model: found 3; a table"),
        (f"{MINIMAL}[[stage]]\nsteps = 3", 'x.toml:5: stage.1: missing kind; one of "sft"'),
        (f'{MINIMAL}[[stage]]\nkind = "gpro"', "x.toml:5: stage.1: found kind = "),
        (f'{MINIMAL}[[stage]]\nkind = "sft"\nsteps = 1', "x.toml:5: stage.1.learning_rate: miss"),
        ('name = "x"\nmodel.path = ""\n[[stage]]\nkind = "eval"', "x.toml:2: model.path: found"),
        (f"{MINIMAL}[problems]\nsft_by_level = [1,1,1,1,1]", "x.toml:6: problems.sft_by_level: "),
        (f"{MINIMAL}[judge]\nworkers = 9999", "x.toml:6: judge.workers: found 9999; an integer"),
        (f"{MINIMAL}[devices]\ngpus = 0", 'x.toml:6: devices.gpus: found 0; "auto", or a list'),
        (f"{MINIMAL}[reward]\ncorrect = nan", "x.toml:6: reward.correct: found nan; a number"),
        (f"{MINIMAL}[notify]\ntimeout_s = inf", "x.toml:6: notify.timeout_s: found inf; a number"),
        (f"{MINIMAL}[store]\nkeep_tokens = 'last:0'", 'x.toml:6: store.keep_tokens: found "last'),
        (f"{MINIMAL}[serve]\nenv = {{ A = 1 }}", "x.toml:6: serve.env.A: found 1; a table of"),
        (
            f"{MINIMAL}[problems]\noverrides = {{ rows = nan }}",
            "x.toml:6: problems.overrides.rows: found nan; a table of integers, numbers, true",
        ),
        (f"{MINIMAL}[problms]", "x.toml:5: problms: unknown key; did you mean problems?"),
        ("name = 'x'\n\nmodel = {", "x.toml:3: not valid TOML: "),
        ("a = 1\na = 2", "x.toml:2: not valid TOML: Cannot overwrite a value"),
    ],
)  # fmt: skip
def test_a_mistake_names_its_line(tmp_path, text, expected):
    found = mistakes_of(write(tmp_path, text))
    assert any(line.startswith(expected) for line in found), found
    assert not any("pydantic" in line or "_type" in line for line in found)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.path=org/x"], "--set model.path: found both init and path"),
        (["model.tiny.head_dim=33"], "--set model.tiny.head_dim: found 33; an even number"),
        (["model.tiny.num_kv_heads=3"], "--set model.tiny.num_kv_heads: found 3; a divisor of"),
        (["serve.context_tokens=352"], "--set serve.context_tokens: found 352; more than rollout."),
        (
            ["serve.context_tokens=5000"],
            "--set serve.context_tokens: found 5000; at most model.tiny",
        ),
        (["extends=y.toml"], "--set extends=y.toml: extends is allowed in an experiment file only"),
        (["judge.isolation=bwrap"], '--set judge.isolation: found "bwrap"; one of "auto"'),
        (["problems.source=dir"], '--set problems.source: found source = "dir" without path'),
        (["problems.source=dir", "problems.path=/no/x"], "--set problems.path: found"),
        (["problems.path=/tmp"], '--set problems.path: found a path; allowed with source = "dir"'),
        (["problems.num_heldout=3200"], "--set problems.num_heldout: found 3200; fewer than"),
        (["model.adapter=/no/adapter"], "--set model.adapter: found"),
        (["serve.python=/no/python"], "--set serve.python: found"),
        (["devices.train=1"], "--set devices.train: found 1, and devices.gpus is absent"),
        (["devices.gpus=auto", "devices.serve=2", "serve.replicas=3"], "--set serve.replicas: "),
        (["stage.1.warmup_steps=9999"], "--set stage.1.warmup_steps: found 9999; at most steps"),
        (["stage.0.num_problems=65"], "--set stage.0.num_problems: found 65; at most problems."),
        (["devices.judge=auto"], '--set devices.judge: found "auto", and devices.gpus is absent'),
        (["model.quantize.bits=4"], "--set model.quantize: set without [model.lora]"),
        (
            ["model.quantize.bits=4", "model.lora.r=8", "model.dtype=float32"],
            '--set model.dtype: found "float32" with [model.quantize]',
        ),
        (
            ["model.quantize.bits=4", "model.lora.r=8", "stage.1.parallel=fsdp2"],
            '--set stage.1.parallel: found "fsdp2" with [model.quantize]',
        ),
        (["stage.1.epochs=2.0"], ": stage.1: found both steps and epochs"),
        (["stage.1.steps=0"], ": stage.1: found neither steps nor epochs"),
        (
            ["stage.1.min_learning_rate=0.5"],
            "--set stage.1.min_learning_rate: found 0.5; at most learning_rate",
        ),
        (
            ["stage.1.loss_turns=all"],
            '--set stage.1.loss_turns: found "all" with generated repairs, whose earlier answers',
        ),
        (
            ["stage.1.loss_turns=all", "stage.1.source=rollouts"],
            '--set stage.1.loss_turns: found "all" with source = "rollouts", whose earlier answers',
        ),
        (
            ["stage.3.min_learning_rate=1e-9"],
            '--set stage.3.min_learning_rate: found 1e-09 with schedule = "constant"',
        ),
        (["stage.3.delta=1.28"], "--set stage.3.delta: found 1.28; above 1 + clip_high = 1.28"),
        (
            ["stage.3.delta=4.0", 'stage.3.loss="cispo"'],
            '--set stage.3.delta: found 4 with loss = "cispo", whose only bound is clip_high',
        ),
        (
            ["stage.3.clip_low=0.1", 'stage.3.loss="cispo"'],
            '--set stage.3.clip_low: found 0.1 with loss = "cispo", whose only bound is clip_high',
        ),
        (["reward.own_share=0.1"], '--set reward.own_share: found 0.1 with judge.policy = "own"'),
        (
            ["reward.speedup_floor=5", "reward.speedup_cap=4"],
            "--set reward.speedup_floor: found 5; below reward.speedup_cap = 4",
        ),
        (
            ["reward.improvement=0.6", "reward.speedup=0.3"],
            "--set reward.improvement: found 0.6; at most 0.536: reward.speedup = 0.3",
        ),
        (
            ["rollout.replay=3"],
            "--set rollout.replay: found 3; at most rollout.max_staleness + 1 = 2",
        ),
        (["stage.3.publish_every=3"], "--set stage.3.publish_every: found 3; at most rollout.max_"),
        (["serve.url=['http://h:1']"], 'stage.1.kind: found "sft" with serve.url'),
        (["serve.url=['h:1']"], '--set serve.url.0: found "h:1"; http://HOST:PORT[/PATH]'),
        (
            ['serve.env={ CUDA_VISIBLE_DEVICES = "0" }'],
            'serve.env.CUDA_VISIBLE_DEVICES: found "0"; remove it, devices.gpus chooses',
        ),
        (['judge.env={ HIP_VISIBLE_DEVICES = "" }'], 'judge.env.HIP_VISIBLE_DEVICES: found "";'),
        (["serve.weights=ipc"], '--set serve.weights: found "ipc" with serve.engine = "'),
        (
            ["serve.weights=ipc", "serve.engine=vllm", 'serve.url=["http://h:1"]'],
            '--set serve.weights: found "ipc" with serve.url; "files", or',
        ),
        (
            ["serve.weights=ipc", "serve.engine=vllm", "model.lora.r=8"],
            '--set serve.weights: found "ipc" with an adapter, which is a file',
        ),
        (["stage.1.round=4"], "--set stage.1.round: found 4; the stages of a [[round]] get"),
        (['rollout.tools=["docs", "run", "docs"]'], '--set rollout.tools.2: found "docs" again'),
        (["serve.model_name=x"], "--set serve.model_name: set without serve.url"),
        (["data.source=file"], '--set data.source: found source = "file" without path'),
        (["data.source=file", "data.path=/no/x"], '--set data.path: found "/no/x", which does not'),
        (["data.path=/tmp"], '--set data.path: found a path; allowed with source = "file"'),
    ],
)
def test_keys_that_exclude_each_other_are_mistakes(overrides, expected):
    found = mistakes_of(QUICKSTART, *overrides)
    assert any(expected in line for line in found), found


def test_exactly_the_variables_that_pin_a_child_to_gpus_are_refused():
    assert all(PINNING.fullmatch(name) for name in VISIBILITY_VARIABLES)
    asked = 'serve.env={ CUDA_CACHE_PATH = "/x" }'
    found = load_experiment(QUICKSTART, overrides=[asked])
    assert found.serve.env == {"CUDA_CACHE_PATH": "/x"}


def test_grpo_without_a_model_to_start_from_is_refused_with_advice(tmp_path):
    grpo = '[[stage]]\nkind = "grpo"\nsteps = 1\nlearning_rate = 1e-4\n'
    no_model = write(tmp_path, f'name = "x"\n[model]\n{grpo}')
    assert mistakes_of(no_model)[0].startswith("x.toml:2: model: found no model to start from; ")
    random = write(tmp_path, f'name = "x"\nmodel.init = "tiny"\n{grpo}')
    (line,) = mistakes_of(random)
    assert line.startswith("x.toml:4: stage.0.kind: found grpo on random weights")
    assert 'put a [[stage]] with kind = "sft" before it' in line
    from_hub = write(tmp_path, f'name = "x"\nmodel.path = "Qwen/Qwen3-0.6B"\n{grpo}')
    assert load_experiment(from_hub).model.path == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("model", ["my model", "./nowhere", "a/b/c", "-x"])
def test_a_model_that_is_neither_a_directory_nor_a_hub_name_is_refused(tmp_path, model):
    path = write(tmp_path, f'name = "x"\nmodel.path = "{model}"\n[[stage]]\nkind = "eval"\n')
    (line,) = mistakes_of(path)
    assert line == (
        f'x.toml:2: model.path: found "{model}", which is not a directory; '
        "a directory, RUN or RUN:STEP, a GGUF file (.gguf) or a hub name"
    )


def test_sft_on_problems_without_answers_is_refused(tmp_path):
    (tmp_path / "problem.py").touch()
    found = mistakes_of(QUICKSTART, "problems.source=dir", f"problems.path={tmp_path}")
    assert any("stage.1.kind: found " in line and "needs answers" in line for line in found)


def test_mistakes_of_both_kinds_are_shown_at_once(tmp_path):
    path = write(tmp_path, 'name = "x"\n[model]\n[rollout]\ngama = 1\n[[stage]]\nkind = "eval"\n')
    found = mistakes_of(path, "nothing", "stage.7.x=1")
    starts = [
        "x.toml:2: model: ",
        "x.toml:4: rollout.gama: ",
        "--set nothing: ",
        "--set stage.7.x: ",
    ]
    assert [line.startswith(start) for line, start in zip(found, starts, strict=True)] == [True] * 4


def test_set_takes_toml_values_unquoted_strings_and_stage_indices():
    experiment = load_experiment(
        QUICKSTART,
        overrides=[
            "name=other",
            "stage.1.steps=50",
            'judge.env={ A = "1" }',
            "problems.include=['a*.py']",
            "limits.hours = 0.5",
            "model.tiny.num_layers=2",
        ],
    )
    assert (experiment.name, experiment.judge.env) == ("other", {"A": "1"})
    assert experiment.stage[1].steps == 50  # pyright: ignore[reportAttributeAccessIssue]
    assert experiment.problems.include == ["a*.py"]
    assert (experiment.limits.hours, experiment.model.tiny.num_layers) == (0.5, 2)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("rollout.grup_size=4", "--set rollout.grup_size: unknown key; did you mean group_size?"),
        ("group_size=4", "--set group_size: unknown key; did you mean rollout.group_size?"),
        ("samples=4", "--set samples: unknown key; did you mean eval.samples or stage.N.samples?"),
        ("rollout.group_size=4x", '--set rollout.group_size: found "4x"; an integer, 2 or more'),
        ("stage.9.steps=1", "--set stage.9.steps: stage.9 does not exist; found 5, counted from 0"),
        ("rolout.group_size=4", "--set rolout: unknown key; did you mean rollout?"),
        ("name.x=1", "--set name.x: name is not a table"),
        ("rollout", "--set rollout: found no key=value; write e.g. --set rollout.group_size=4"),
        ("a b=1", "--set a b=1: found no key=value; write e.g. --set rollout.group_size=4"),
    ],
)  # fmt: skip
def test_a_mistake_in_set_names_the_set(override, line):
    assert mistakes_of(QUICKSTART, override) == [line]


def test_extends_merges_files_and_each_mistake_names_its_own_file(tmp_path):
    write(tmp_path, MINIMAL + "[rollout]\ngamma = 0.5\ngroup_size = 1\n", name="base.toml")
    path = write(tmp_path, 'extends = "base.toml"\n[rollout]\ngamma = 2\nmax_turns = 1\n')
    assert mistakes_of(path) == [
        "base.toml:7: rollout.group_size: found 1; an integer, 2 or more",
        "x.toml:3: rollout.gamma: found 2; a number from 0 to 1",
    ]
    rollout = load_experiment(path, overrides=["rollout.gamma=1", "rollout.group_size=2"]).rollout
    assert (rollout.gamma, rollout.group_size, rollout.max_turns) == (1.0, 2, 1)


@pytest.mark.parametrize(
    ("extends", "expected"),
    [
        ('"none.toml"', "x.toml:2: none.toml: no such file; there is x.toml"),
        ('"x.toml"', "x.toml:2: extends: x.toml is already part of this chain"),
        ("3", "x.toml:2: extends: found 3; the path of an experiment file"),
    ],
)
def test_a_mistake_in_extends_names_its_line(tmp_path, extends, expected):
    assert mistakes_of(write(tmp_path, f"\nextends = {extends}\n")) == [expected]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load_experiment(tmp_path / "x.toml").name == "x"


def test_a_missing_file_a_directory_and_a_binary_file_are_config_errors(tmp_path):
    write(tmp_path, MINIMAL, name="near.toml")
    assert mistakes_of(tmp_path / "no.toml") == ["no.toml: no such file; there is near.toml"]
    (tmp_path / "dir.toml").mkdir()
    assert mistakes_of(tmp_path / "dir.toml") == ["dir.toml: Is a directory"]
    (tmp_path / "bin.toml").write_bytes(b"a = 1\nb = '\xff'")
    assert mistakes_of(tmp_path / "bin.toml") == ["bin.toml:2: not UTF-8 text, which TOML must be"]


def problems_in(folder: Path) -> Path:
    (folder / "kb").mkdir(parents=True)
    (folder / "kb" / "1.py").touch()
    return folder / "kb"


DIR = MINIMAL.replace('init = "tiny"', 'path = "org/x"') + '[problems]\nsource = "dir"\n'


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ("[]", ": found 0 shapes; 1 to 16"),
        (str([{"N": n} for n in range(17)]).replace("': ", "' = "), ": found 17 shapes; 1 to 16"),
        ("[{}]", ".0: found an empty table; at least one constant"),
        ('[{ N = 1 }, { "3" = {} }]', ".1: found an empty table"),
        ("[{ N = 1, M = 2 }, { N = 2 }, { M = 2, N = 1 }]", ".2: found the same shape as before"),
        ("[{ N = [1], M = 1 }]", ".0.N: found [1]; a list of 1 to 16 tables of constants"),
        ("{ N = 1 }", ": found a table; a list of 1 to 16 tables of constants"),
    ],
)
def test_shapes_that_cannot_be_used_name_the_shape(tmp_path, shapes, expected):
    kb = problems_in(tmp_path)
    found = mistakes_of(write(tmp_path, f'{DIR}path = "{kb}"\nshapes = {shapes}\n'))
    assert len(found) == 1
    assert f"problems.shapes{expected}" in found[0]


def test_a_path_is_relative_to_the_file_that_contains_it(tmp_path, monkeypatch, caplog):
    beside = problems_in(tmp_path / "experiments")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    file = write(tmp_path / "experiments", f'{DIR}path = "kb"\n')
    assert load_experiment(file).problems.path == beside
    derived = write(tmp_path / "elsewhere", 'extends = "../experiments/x.toml"\n', name="y.toml")
    assert load_experiment(derived).problems.path == beside
    assert caplog.text == ""


def test_a_path_may_be_relative_to_the_working_directory(tmp_path, monkeypatch, caplog):
    here = problems_in(tmp_path)
    (tmp_path / "experiments").mkdir()
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "experiments", f'{DIR}path = "kb"\n')
    assert load_experiment(file).problems.path == here
    absent = write(tmp_path / "experiments", f"{DIR}\n", name="z.toml")
    assert load_experiment(absent, overrides=["problems.path=kb"]).problems.path == here
    assert caplog.text == ""


def test_of_two_directories_the_one_beside_the_file_is_taken_and_said(
    tmp_path, monkeypatch, caplog
):
    beside = problems_in(tmp_path / "experiments")
    here = problems_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "experiments", f'{DIR}path = "kb"\n')
    assert load_experiment(file).problems.path == beside
    (line,) = caplog.messages
    assert f"problems.path: {beside} is taken, which is relative to the file" in line
    caplog.clear()
    assert load_experiment(file, overrides=["problems.path=kb"]).problems.path == here
    assert caplog.text == ""


some_key = st.sampled_from([key.path for key in all_keys() if " " not in key.path])
some_stage_key = st.sampled_from(
    ["stage.0.kind", "stage.1.steps", "stage", "stage.3", "model.tiny"]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(some_key | some_stage_key, anything, max_size=4))
def test_any_values_give_an_experiment_or_a_config_error(changes):
    overrides = [f"{key}={inline(value)}" for key, value in changes.items()]
    try:
        assert isinstance(load_experiment(QUICKSTART, overrides=overrides), Experiment)
    except ConfigError as caught:
        error = caught
    else:
        return
    assert all("--set" in line or "quickstart.toml" in line for line in str(error).split("\n"))


DOCUMENT = '''\
# [not.a.table]
name = "a # no comment" # x = 1
"quoted key".'and.dotted' = 1
text = """
[no.table]
key = "no \\""" key"
"""
raw = \'\'\'
a = ''1\'\'\'\'\'
list = [
  1, # one
  { x = 1, y.z = [2, 3] },
  [ "]", '}' ],
]
when = 1979-05-27 07:32:00Z

[ table . inner ]
x = {}
[[stage]]
kind = "sft"
[stage.deep]
y = 1
[[stage]]
kind = "eval"
[[stage.more]]
z = 1
'''


def test_lines_are_counted_from_one():
    lines = key_lines(DOCUMENT)
    assert lines["name",] == 2
    assert lines["quoted key", "and.dotted"] == 3
    assert lines["raw",] == 8
    assert lines["list",] == 10
    assert lines["list", 1, "y", "z", 1] == 10, "a value counts as the line of its key"
    assert lines["when",] == 15
    assert lines["table", "inner", "x"] == 18
    assert lines["stage", 0, "deep", "y"] == 22
    assert lines["stage", 1] == 23
    assert lines["stage", 1, "more", 0, "z"] == 26
    assert set(lines) == paths_of(tomli.loads(DOCUMENT))


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = {path} if path else set()
    for key, inner in items:
        nested = isinstance(inner, dict | list)
        found |= paths_of(inner, (*path, key)) if nested else {(*path, key)}
    return found
