"""Plans of a run: processes, phases, requirements and notes."""

import json
from functools import partial
from pathlib import Path

import pytest

from forge.config.load import load_experiment
from forge.config.schema import ModelTable, ProblemsTable
from forge.errors import ConfigError, MachineError
from forge.runner.plan import duration
from forge.runner.plan.machine import Machine, assume
from forge.runner.plan.placement import Placement
from forge.runner.plan.plan import Plan, plan, render
from forge.runner.plan.requirements import require_trainer
from forge.runner.plan.shape import KNOWN
from forge.runner.prepare.hub import locate_model
from tests.gpus import make_machine
from tests.views.terminals import shown

ROOT = Path(__file__).parents[3]


def plan_of(*overrides: str, machine: Machine | None = None) -> Plan:
    experiment = load_experiment(ROOT / "experiments" / "quickstart.toml", overrides=overrides)
    return plan(experiment, machine=machine or make_machine())


def test_a_plan_names_only_stages_and_work_of_its_experiment():
    whole = plan_of()
    assert [each.stages for each in whole.processes] == [
        "all", "eval, grpo", "prepare, eval, grpo", "prepare, eval, grpo", "sft, grpo",
    ]  # fmt: skip
    assert whole.phases[0].work == (
        "judges start, 303 broken answers judged, tokenizer and model made"
    )
    file = ROOT / "experiments" / "eval-kernelbench.toml"
    machine = assume("1xH100-80GB", here=make_machine())
    alone = plan(load_experiment(file, is_here=False), machine=machine)
    assert [each.stages for each in alone.processes] == ["all", "eval", "eval"]
    assert alone.phases[0].work == "judges start"


def test_the_quickstart_fits_ten_minutes_and_six_gib_on_two_cores():
    planned = plan_of()
    assert planned.wall_s is not None
    assert planned.memory_bytes is not None
    assert planned.wall_s <= 600
    assert planned.memory_bytes <= 6 << 30
    assert planned.phases[0].name == "prepare"
    assert sum(phase.wall_s or 0 for phase in planned.phases) == planned.wall_s


def test_each_card_has_one_role_and_one_place_in_the_table():
    asked = ("devices.gpus=['3', '2', 'GPU-1', '0']", "devices.serve=2", "serve.replicas=2")
    planned = plan_of(
        *asked, "devices.judge=1", "devices.train=1", machine=make_machine(num_gpus=4)
    )
    devices = {process.name: process.device for process in planned.processes}
    assert devices == {
        "supervisor": "cpu", "serve-0": "GPU 3", "serve-1": "GPU 2", "judge-0": "GPU 1",
        "trainer": "GPU 0",
    }  # fmt: skip


def test_a_disk_below_the_limit_and_a_missing_engine_are_machine_errors():
    with pytest.raises(MachineError, match=r"0.10 GB of disk are free"):
        plan_of(machine=make_machine(free_disk_bytes=10**8))
    with pytest.raises(MachineError, match=r'"llama" is not installed; `make setup`'):
        plan_of(machine=make_machine(engines=frozenset()))


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_adapters_are_served_by_vllm_in_bf16_only(precision):
    asked = [
        *("serve.engine=vllm", f"serve.precision={precision}", "model.lora.r=8"),
        *("devices.gpus=['0']", "devices.serve=1", "devices.train=1", "devices.share=auto"),
    ]
    machine = make_machine(num_gpus=1, engines=frozenset({"vllm"}), assumed="1xH200-141GB")
    if precision == "fast":
        plan_of(*asked, machine=machine)
        return
    with pytest.raises(ConfigError, match=r'serve.precision = "exact": vllm .* write "fast"'):
        plan_of(*asked, machine=machine)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["problems.num_problems=300"], r"none for stage 3 \(grpo\)"),
        (["problems.num_problems=300", "problems.sft_by_level=[0]"], r"none for stage 1 \(sft\)"),
        (
            ["problems.num_heldout=3", "stage.0.num_problems=3"],
            "every family and chain length needs one: at least 24",
        ),
    ],
)
def test_a_stage_without_problems_is_a_config_error(overrides, message):
    with pytest.raises(ConfigError, match=message):
        plan_of(*overrides)


GRPO = '[[stage]]\nkind = "grpo"\nsteps = 1\nlearning_rate = 1e-6\n'
MODULE = """import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x + {}
def get_inputs(): return [torch.randn(4)]
def get_init_inputs(): return []
"""


def plan_of_files(folder: Path, problems: str, *, num: int, stages: str) -> Plan:
    for number in range(num):
        (folder / f"{number}.py").write_text(MODULE.format(number))
    (folder / "copy.py").write_text(MODULE.format(0))
    keys = problems if "path" in problems else f'source = "dir"\npath = "."\n{problems}\n'
    text = f'name = "x"\n[model]\npath = "org/m"\n[serve]\nengine = "hf"\n[problems]\n{keys}'
    (folder / "x.toml").write_text(text + stages)
    machine = make_machine(engines=frozenset({"hf"}))
    return plan(load_experiment(folder / "x.toml"), machine=machine)


@pytest.mark.parametrize(
    ("num", "problems", "words"),
    [
        (1, "", "found 2 problems .1 distinct., all held out"),
        (3, "num_heldout = 4", "found 4 problems .3 distinct., all held out"),
        (3, "num_heldout = 64", "found 4 problems .3 distinct., all held out"),
        (
            3,
            '[[problems.sources]]\nsource = "dir"\npath = "."\nuse = "train"\n',
            r"none of them held out, and stage 0 \(eval\) evaluates",
        ),
    ],
)
def test_what_is_held_out_is_trained_on_by_choice_alone(
    tmp_path: Path, num: int, problems: str, words: str
) -> None:
    stages = f'[[stage]]\nkind = "eval"\n{GRPO}'
    with pytest.raises(ConfigError, match=f'{words}.* problems.num_heldout = "shared"'):
        plan_of_files(tmp_path, problems, num=num, stages=stages)
    shared = plan_of_files(tmp_path, 'num_heldout = "shared"', num=num, stages=stages)
    assert shared.phases[1].work.startswith(f"{num + 1} problems")
    assert shared.phases[1].work.endswith("shared with training")
    assert "no problem is held out" in shared.notes[0]


def test_an_evaluation_alone_has_every_file_if_as_many_are_held_out(tmp_path: Path) -> None:
    found = plan_of_files(tmp_path, "num_heldout = 9", num=3, stages='[[stage]]\nkind = "eval"\n')
    assert found.phases[1].work.startswith("4 problems")
    assert "shared" not in found.phases[1].work


def test_rows_from_a_file_need_no_problems_of_their_own(tmp_path):
    (tmp_path / "rows.jsonl").touch()
    rows = ["data.source=file", f"data.path={tmp_path / 'rows.jsonl'}"]
    assert plan_of("problems.num_problems=400", "problems.sft_by_level=[0]", *rows).phases


def test_the_plan_refuses_what_the_trainer_cannot_do(tmp_path):
    def plan_text(*lines: str) -> Plan:
        text = 'name = "x"\n[devices]\ngpus = "auto"\ntrain = 3\n'
        (tmp_path / "x.toml").write_text(text + "\n".join(lines))
        experiment = load_experiment(tmp_path / "x.toml")
        return plan(experiment, machine=make_machine(num_gpus=3))

    sft = ("[[stage]]", 'kind = "sft"', "steps = 1", "learning_rate = 1e-4")
    with pytest.raises(ConfigError, match=r"^stage\.0\.batch_size: found 16, which 3 trainer GPUs"):
        plan_text("[model]", 'path = "Qwen/Qwen3-0.6B"', *sft)
    mixture = ("[model]", 'path = "Qwen/Qwen3-30B-A3B"', "[model.lora]")
    with pytest.raises(ConfigError, match=r'^model\.lora\.target_modules: found "all-linear" on a'):
        plan_text(*mixture, *sft, "batch_size = 3")
    attention = (*mixture, 'target_modules = ["q_proj"]')
    assert plan_text(*attention, *sft, "batch_size = 3").gpus
    assert plan_text(*attention, "[model.quantize]", *sft, "batch_size = 3").gpus


def test_weights_in_the_memory_of_a_trainer_need_one_on_a_gpu_and_no_mixture(tmp_path, monkeypatch):
    def refused(*lines: str, is_here: bool = False) -> str:
        text = ['name = "x"', "[serve]", 'weights = "ipc"', 'engine = "vllm"', *lines,
                "[[stage]]", 'kind = "grpo"', "steps = 1", "learning_rate = 1e-6"]  # fmt: skip
        (tmp_path / "x.toml").write_text("\n".join(text))
        with pytest.raises(ConfigError) as caught:
            require_trainer(load_experiment(tmp_path / "x.toml"), Placement(), is_here=is_here)
        return str(caught.value)

    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:64")
    _, found = refused("[model]", 'path = "Qwen/Qwen3-0.6B"', is_here=True).splitlines()
    assert "PYTORCH_CUDA_ALLOC_CONF has expandable_segments:True" in found
    assert refused("[model]", 'path = "Qwen/Qwen3-0.6B"').startswith(
        'serve.weights: found "ipc", and the trainer has no GPU; '
    )
    first, _ = refused("[model]", 'path = "Qwen/Qwen3-30B-A3B"').splitlines()
    assert first.startswith('serve.weights: found "ipc" for a mixture of experts')


def test_an_optimizer_that_is_not_installed_is_a_machine_error(monkeypatch):
    monkeypatch.setattr("forge.train.refusals.find_spec", lambda name: None)
    experiment = load_experiment(
        ROOT / "experiments" / "quickstart.toml", overrides=["stage.3.optimizer=adamw_8bit"]
    )
    assert plan(experiment, machine=make_machine()).phases, "another machine may have it"
    with pytest.raises(MachineError, match=r'stage 3: optimizer = "adamw_8bit" needs bitsandbytes'):
        require_trainer(experiment, Placement(), is_here=True)


def test_answers_on_several_shapes_take_a_verdict_for_each():
    experiment = load_experiment(ROOT / "experiments" / "quickstart.toml")
    shapes = [{"N": size} for size in range(1, 5)]
    problems = experiment.problems.model_copy(update={"shapes": shapes})
    sized = experiment.model_copy(update={"problems": problems})
    predict = partial(
        duration.predict_phases, machine=make_machine(), params=1, placement=Placement()
    )
    one, four = (
        {phase.name: phase.wall_s or 0 for phase in predict(each)} for each in (experiment, sized)
    )
    workers = experiment.judge.workers
    answers = {name: workers * (four[name] - one[name]) / (3 * duration.JUDGE_S) for name in one}
    assert answers["sft-1"] == 0
    assert answers["eval-2"] >= 64 * 5
    assert answers["grpo-3"] >= 20 * 48


def test_a_stage_in_epochs_is_predicted_from_its_rows_if_they_are_known():
    planned = plan_of("stage.1.steps=0", "stage.1.epochs=2.0")
    (sft,) = [phase for phase in planned.phases if phase.name == "sft-1"]
    assert sft.work == "2 epochs × 8 rows"
    assert sft.wall_s is not None
    assert sft.wall_s > 0


def test_unusable_problem_files_are_named(tmp_path):
    (tmp_path / "problem.py").write_text("class Model: ...\nDIM = 4\ndef get_inputs(): ...\n")
    experiment = load_experiment(ROOT / "experiments" / "quickstart.toml")
    table = ProblemsTable(source="dir", path=tmp_path, overrides={"DIN": 2})
    with pytest.raises(ConfigError, match="no get_init_inputs"):
        plan(experiment.model_copy(update={"problems": table}), machine=make_machine())
    with (tmp_path / "problem.py").open("a") as file:
        file.write("def get_init_inputs(): ...\n")
    with pytest.raises(
        ConfigError, match=r"DIN: problem.py has no such module constant; did you mean DIM"
    ):
        plan(experiment.model_copy(update={"problems": table}), machine=make_machine())


def test_all_kept_checkpoints_count_in_the_disk_if_their_number_is_known():
    stages = {"kept": 'stage.1.keep_checkpoints="all"', "often": "stage.1.save_every=10"}
    few, many = plan_of(stages["often"]), plan_of(*stages.values())
    assert few.disk_bytes is not None
    assert many.disk_bytes is not None
    assert many.disk_bytes > 10 * few.disk_bytes
    epochs = ("stage.1.steps=0", "stage.1.epochs=2.0")
    assert plan_of(stages["kept"], *epochs).disk_bytes is None


OTHERS = {"others": ("run x-1, pid 7",)}
ON_A_CARD = ("devices.gpus=auto", "devices.judge=1")
SERVED = ("devices.gpus=auto", "devices.serve=1")
ONLY_HF = {"num_gpus": 1, "engines": frozenset({"hf"})}


@pytest.mark.parametrize(
    ("asked", "facts", "words", "is_noted"),
    [
        ((), {"memory_bytes": 1 << 30}, "GB of memory; this machine has 1.1 GB", True),
        (("serve.threads=3",), {}, "threads for 2 cores", True),
        ((), OTHERS, "run x-1, pid 7", True),
        (ON_A_CARD, {"num_gpus": 1, **OTHERS}, "x-1", False),
        (("devices.gpus=auto",), {"num_gpus": 1}, "everything runs on the CPU", True),
        ((), {"num_gpus": 1}, "has 1 GPU(s), which this experiment does not use", True),
        (ON_A_CARD, {"num_gpus": 1}, "everything runs on the CPU", False),
        (SERVED, ONLY_HF, "many times slower", True),
        ((*SERVED, "serve.engine=hf"), ONLY_HF, "many times slower", False),
    ],
)
def test_allowed_but_unwise_settings_are_noted(asked, facts, words, is_noted):
    assert (words in " ".join(plan_of(*asked, machine=make_machine(**facts)).notes)) is is_noted


def test_judges_behind_a_url_are_named_and_none_is_planned():
    planned = plan_of('judge.url=["http://box:8200", "unix:/run/j.sock"]')
    assert not any(process.name.startswith("judge") for process in planned.processes)
    assert any("http://box:8200, unix:/run/j.sock" in note for note in planned.notes)


@pytest.mark.parametrize("url", ["box:8200", "ftp://box", "http://", "unix:", "http://box/path"])
def test_a_judge_url_is_http_or_a_socket(url):
    with pytest.raises(ConfigError, match=r"judge\.url"):
        plan_of(f'judge.url=["{url}"]')


def test_the_rendered_plan_has_every_process_and_phase():
    planned = plan_of()
    text = shown(render(planned), width=120)
    assert all(each.name in text for each in (*planned.processes, *planned.phases))
    assert json.loads(json.dumps(planned.to_json()))["phases"][0]["name"] == "prepare"


@pytest.mark.parametrize(("asked", "words"), [("", "3 problems"), ("num_problems = 2\n", "2 pro")])
def test_a_plan_counts_the_problems_of_the_folder(asked: str, words: str, tmp_path: Path) -> None:
    source = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"
    (tmp_path / "kb").mkdir()
    for name in "abc":
        (tmp_path / "kb" / f"{name}.py").write_text(source)
    (tmp_path / "x.toml").write_text(
        'name = "x"\n[model]\npath = "org/x"\n[problems]\nsource = "dir"\npath = "kb"\n'
        f'[[stage]]\nkind = "eval"\n{asked}'
    )
    planned = plan(load_experiment(tmp_path / "x.toml"), machine=make_machine())
    assert planned.phases[1].work.startswith(words)


def test_a_plan_refuses_a_directory_as_a_run_does(tmp_path: Path) -> None:
    table = ModelTable(path=str(tmp_path))
    with pytest.raises(ConfigError) as of_a_run:
        locate_model(table)
    overrides = [f"model.path={tmp_path}", "devices.gpus=auto"]
    experiment = load_experiment(ROOT / "experiments/kernelllm-8b-single-turn.toml",
                                 overrides=overrides, is_here=False)  # fmt: skip
    with pytest.raises(ConfigError) as of_a_plan:
        plan(experiment, machine=make_machine(num_gpus=8))
    assert str(of_a_plan.value) == str(of_a_run.value)
    (tmp_path / "config.json").write_text(json.dumps(KNOWN["llama-3.1-8b"]))
    with pytest.raises(ConfigError, match=r"lacks tokenizer.json, \*.safetensors; .*--assume"):
        plan(experiment, machine=make_machine(num_gpus=8))
    assumed = assume("8xH100-80GB", here=make_machine())
    assert plan(experiment, machine=assumed).params == 8_030_261_248
