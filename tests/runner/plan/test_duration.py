"""Predicted times: by an earlier run on the same cards, by a roofline, or none with the reason."""

import json
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from forge.config.load import load_experiment
from forge.records import Event, Metrics
from forge.runner.plan.duration import COMPILE_S, RATES, record_rates
from forge.runner.plan.machine import assume, this_machine
from forge.runner.plan.plan import Plan, plan
from forge.store.layout import RunPaths
from tests.store.storefactory import attempt, evaluation, write_run

EXPERIMENTS = Path(__file__).parents[3] / "experiments"


def plan_for(name: str, cards: str, store: Path, *overrides: str) -> Plan:
    given = [f"store.dir={store}", *overrides]
    experiment = load_experiment(EXPERIMENTS / f"{name}.toml", overrides=given, is_here=False)
    return plan(experiment, machine=assume(cards, here=this_machine(store)))


def test_a_recipe_takes_as_long_on_a_card_as_it_was_measured_to(tmp_path: Path) -> None:
    phases = plan_for("h200-from-scratch", "1xH100-80GB", tmp_path).phases
    seconds = {phase.name: phase.wall_s for phase in phases}
    # RESULTS, the engine starts during SFT, 2026-11-26, 4ede8413: of 8:10 in all.
    measured = {"prepare": 106, "sft-0": 214, "eval-3": 25, "grpo-2": 89}
    for name, value in measured.items():
        assert value / 1.5 <= (seconds[name] or 0) <= value * 1.5, name


def test_a_model_of_135m_takes_as_long_as_it_was_measured_to(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 576, "num_layers": 30, "num_heads": 9, "num_kv_heads": 3,
        "intermediate_size": 1536, "vocab_size": 49152,
    }  # fmt: skip
    asked = [f"model.tiny.{key}={value}" for key, value in sizes.items()]
    asked += ["stage.0.steps=50", "stage.0.warmup_steps=0", "stage.0.batch_size=64"]
    planned = plan_for("h200-from-scratch", "1xH200-141GB", tmp_path, *asked)
    # RESULTS, SmolLM2-135M on an H200, 2026-11-29, 1b913676: SFT of 50 x 64 rows in 46 s.
    assert 46 / 1.5 <= (planned.phases[1].wall_s or 0) <= 46 * 1.5


def test_the_first_step_of_compiled_blocks_is_longer_on_cards_and_the_plan_says_so(
    tmp_path: Path,
) -> None:
    slow, fast = (
        plan_for("h200-from-scratch", "1xH200-141GB", tmp_path, f"stage.0.compile={key}").phases[1]
        for key in ("true", "false")
    )
    assert (slow.wall_s or 0) - (fast.wall_s or 0) == pytest.approx(COMPILE_S)
    assert f"{COMPILE_S:.0f} s longer" in slow.work
    assert "longer" not in fast.work


ELSEWHERE = ["cluster.address=auto", "cluster.serve=true", "serve.engine=vllm", "devices.serve=0"]


@pytest.mark.parametrize(
    ("cards", "overrides", "why"),
    [
        ("8xFuture-80GB", [], "no data sheet of Future"),
        ("8xH100-80GB", ["model.path=org/nothing"], "the size of the model is unknown"),
        ("8xH100-80GB", ELSEWHERE, "engines are elsewhere"),
    ],
)
def test_a_time_that_cannot_be_known_has_its_reason(
    cards: str, overrides: list[str], why: str, tmp_path: Path
) -> None:
    planned = plan_for("qwen3-8b-kernelbench", cards, tmp_path, *overrides)
    first = planned.phases[1]
    assert first.wall_s is None
    assert first.basis.startswith(why)
    assert planned.wall_s is None


def record_run(
    store: Path, *, step_s: float, num_problems: int = 64, is_continued: bool = False
) -> None:
    """Writes a run of h200-from-scratch that has ended, and records its rates."""
    planned = plan_for("h200-from-scratch", "1xH100-80GB", store)
    steps = [
        Metrics(stage=stage, step=k, at=k * step_s,
                values={"train/loss/mean": 1.0, "train/peak_bytes/max": 15e9})
        for stage in (0, 2) for k in range(1, 5)
    ]  # fmt: skip
    ended = Event(at=9.0, kind="stage_end", message="", data={"stage": 1, "seconds": 32.0})
    evaluated = replace(
        evaluation("eval-1", step=4, at=9.0, pass_at_1=0.5), num_problems=num_problems
    )
    kept = Event(at=9.0, kind="evaluation_continued", message="", data={"stage": 1, "step": 4})
    rows = [attempt(), *steps, evaluated, ended, *[kept] * is_continued]
    anyio.run(write_run, store / "toy-1", rows)
    (store / "toy-1/experiment.toml").write_text(
        (EXPERIMENTS / "h200-from-scratch.toml").read_text()
    )
    record_rates(RunPaths(store / "toy-1"), planned.placement)


def test_a_stage_takes_as_long_as_an_earlier_run_on_the_same_cards(tmp_path: Path) -> None:
    record_run(tmp_path, step_s=2.0)
    planned = plan_for("h200-from-scratch", "1xH100-80GB", tmp_path, "stage.0.steps=100")
    sft, first_eval, grpo, last_eval = planned.phases[1:]
    assert (sft.wall_s, grpo.wall_s) == (pytest.approx(200), pytest.approx(20))
    assert first_eval.wall_s == pytest.approx(32)
    assert last_eval.wall_s == first_eval.wall_s, "the same evaluation"
    assert all(phase.basis.startswith("as toy-1 took (a roofline") for phase in planned.phases[1:])
    assert any("toy-1 peaked at 15.0 GB" in reason for reason in planned.reasons)


@pytest.mark.parametrize(("num_problems", "is_continued"), [(64, True), (0, False)])
def test_an_evaluation_that_was_continued_or_is_empty_measures_nothing(
    num_problems: int, is_continued: bool, tmp_path: Path
) -> None:
    record_run(tmp_path, step_s=2.0, num_problems=num_problems, is_continued=is_continued)
    sft, evaluated = plan_for("h200-from-scratch", "1xH100-80GB", tmp_path).phases[1:3]
    assert sft.basis.startswith("as toy-1 took")
    assert not evaluated.basis.startswith("as toy-1 took")


def test_rates_that_cannot_be_written_do_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("forge.runner.plan.duration._STEPS", "SELECT 1 / x FROM nothing")
    record_run(tmp_path, step_s=2.0)
    assert "rates.json: not written" in caplog.text
    assert not (tmp_path / RATES).exists()


@pytest.mark.parametrize(
    ("cards", "override"),
    [
        ("1xH200-141GB", "seed=1"),
        ("1xH100-80GB", "model.tiny.num_layers=12"),
        ("1xH100-80GB", "stage.0.max_length=1024"),
        ("1xH100-80GB", "stage.0.compile=true"),
        ("1xH100-80GB", "stage.0.packing=false"),
        ("1xH100-80GB", 'model.dtype="float32"'),
    ],
)
def test_a_stage_of_other_cards_model_or_rows_is_not_measured(
    cards: str, override: str, tmp_path: Path
) -> None:
    record_run(tmp_path, step_s=2.0)
    planned = plan_for("h200-from-scratch", cards, tmp_path, override)
    assert planned.phases[1].basis.startswith("a roofline")


@pytest.mark.parametrize("text", ["", "[]", '{"x": 1}', "{"])
def test_a_damaged_file_of_rates_is_no_error_and_is_written_again(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / RATES).write_text(text)
    assert plan_for("h200-from-scratch", "1xH100-80GB", tmp_path).phases[1].wall_s
    record_run(tmp_path, step_s=2.0)
    assert len(json.loads((tmp_path / RATES).read_text())) == 3 + (text == '{"x": 1}')
