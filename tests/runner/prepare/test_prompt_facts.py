"""Facts that prompts state about judges, and the record of a run's prompts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from forge.config.load import load_experiment
from forge.config.schema import Experiment
from forge.data.prompts.prompt_set import PromptSet
from forge.errors import ConfigError
from forge.process.devices import Gpu
from forge.records import Event
from forge.records.problem import ReferenceModule
from forge.runner.prepare.prompt_facts import (
    card_facts,
    prompts_by_hash,
    prompts_for,
    recorded_prompts,
    to_event,
)
from forge.runner.prepare_run import _settle_prompts
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from tests.gpus import make_gpu
from tests.prompting import PROMPTS
from tests.runner.stages.desks import Recorder
from tests.store.storefactory import attempt, write_run

ROOT = Path(__file__).parents[3]
PEAKS = {
    "NVIDIA H100 80GB HBM3": 3352,
    "NVIDIA H200": 4800,
    "NVIDIA A100-SXM4-80GB": 2039,
    "NVIDIA GeForce RTX 4090": 1008,
    "RTX4090": 1008,
    "AMD Instinct MI300X": 5300,
    "NVIDIA H100 PCIe": None,
    "NVIDIA H100 NVL": None,
    "NVIDIA A100-SXM4-40GB": None,
    "NVIDIA GeForce RTX 4090 Laptop GPU": None,
    "NVIDIA GeForce RTX 4090 D": None,
    "NVIDIA GH200 480GB": None,
    "NVIDIA L40": None,
    "": None,
}
"""Memory rate in GB/s, by the driver's name; None where the peaks are not known."""


@pytest.mark.parametrize("name", PEAKS)
def test_peaks_are_stated_for_the_very_card_alone(name: str) -> None:
    assert card_facts(name).bandwidth_gbps == PEAKS[name]


def experiment_of(*overrides: str) -> Experiment:
    file = ROOT / "experiments" / "quickstart.toml"
    return load_experiment(file, overrides=["prompt.preset=standard", *overrides])


def prompts_in(experiment: Experiment, judges: Sequence[Gpu]) -> PromptSet:
    return prompts_for(experiment.prompt, experiment.judge, judges)


def test_prompts_state_the_judges_card_and_whether_it_times() -> None:
    values = prompts_in(experiment_of(), [make_gpu(name="NVIDIA H200")]).values
    assert values["hardware"]["name"] == "NVIDIA H200"
    assert values["is_timed"] is True
    values = prompts_in(experiment_of("judge.timing=false"), [make_gpu(name="NVIDIA H200")]).values
    assert values["is_timed"] is False
    assert prompts_in(experiment_of(), []).values["hardware"] is None


def test_prompts_state_the_tolerance_of_the_protocol_in_force() -> None:
    assert prompts_in(experiment_of(), []).tolerances["fp32"] == 1e-4
    assert prompts_in(experiment_of("judge.protocol=drkernel"), []).tolerances["fp32"] == 1e-2


@pytest.mark.parametrize(
    ("overrides", "policy"),
    [
        ((), "own"), (("judge.policy=hybrid",), "hybrid"),
        (("judge.protocol=kernelbench",), "hybrid"),
        (("judge.protocol=kernelbench", "judge.policy=own"), "own"),
    ],
)  # fmt: skip
def test_the_policy_is_the_protocols_own_unless_it_is_set_and_prompts_state_it(
    overrides: tuple[str, ...], policy: str
) -> None:
    experiment = experiment_of(*overrides)
    prompts = prompts_in(experiment, [])
    assert (experiment.judge.policy, prompts.values["policy"]) == (policy, policy)
    system, _ = prompts.first_messages(ReferenceModule(problem_id="p", source="class Model: ..."))
    has_line = "torch may do a part" in system.content
    assert has_line == (policy == "hybrid")


def test_the_prompts_of_each_attempt_are_found_by_their_hash(tmp_path: Path) -> None:
    other = replace(PROMPTS, attempts="last")
    events = [to_event(PROMPTS, before=None), to_event(other, before=PROMPTS)]
    anyio.run(write_run, tmp_path / "toy-1", [attempt(), *events])
    with open_run(tmp_path / "toy-1") as reader:
        assert recorded_prompts(reader) == other
        expected = {PROMPTS.hash: PROMPTS, other.hash: other, "": other}
        assert prompts_by_hash(reader) == expected
    assert to_event(other, before=other) is None


def test_a_record_that_another_program_wrote_is_one_line(tmp_path: Path) -> None:
    event = Event(at=1.0, kind="prompts", message="x", data={"preset": "tiny"})
    anyio.run(write_run, tmp_path / "toy-1", [attempt(), event])
    with open_run(tmp_path / "toy-1") as reader, pytest.raises(ConfigError, match="not as forge"):
        recorded_prompts(reader)


@pytest.mark.parametrize(("before", "num_said"), [(None, 0), (PROMPTS, 0), ("changed", 1)])
def test_an_attempt_whose_prompts_have_changed_says_so(
    tmp_path: Path, before: Any, num_said: int
) -> None:
    root = tmp_path / "toy-1"
    old = replace(PROMPTS, thinking="reason") if before == "changed" else before
    events = [] if old is None else [to_event(old, before=None)]
    anyio.run(write_run, root, [attempt(), *events])
    said: list[str] = []
    writer = Recorder()
    experiment = load_experiment(ROOT / "experiments" / "quickstart.toml")
    run: Any = SimpleNamespace(
        experiment=experiment, placement=SimpleNamespace(judge=()), paths=RunPaths(root),
        console=SimpleNamespace(say=said.append), writer=writer,
    )  # fmt: skip
    anyio.run(_settle_prompts, run)
    assert run.prompts == PROMPTS
    assert len(said) == num_said
    assert all(f"is now {PROMPTS.hash}" in line for line in said)
    recorded = [each.data for each in writer.records]
    assert recorded == ([] if before is PROMPTS else [PROMPTS.to_json()])
