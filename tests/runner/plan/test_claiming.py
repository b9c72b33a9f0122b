"""A card's memory is checked under its claim: an earlier claim is waited for, or named."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from forge.config.load import load_experiment
from forge.errors import MachineError
from forge.process.devices import GpuUser
from forge.process.gpu_locks import claim, claimed
from forge.runner.plan import machine as claiming
from forge.runner.plan.machine import CardBusy, Machine, assume, open_claimed
from forge.runner.plan.placement import Placement, place
from tests.gpus import make_machine

ROOT = Path(__file__).parents[3]
HERE = make_machine(engines=frozenset())
EMPTY = assume("1xH200-141GB", here=HERE)
(CARD,) = EMPTY.gpus


def with_free(free_bytes: int) -> Machine:
    user = GpuUser(memory_bytes=CARD.memory_bytes - free_bytes, pid=77, name="python")
    card = replace(CARD, free_bytes=free_bytes)
    return replace(EMPTY, gpus=(card,), gpu_users={CARD.uuid: (user,)})


CROWDED, FULL = with_free(60 << 30), with_free(5 << 30)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(claiming, "claim", partial(claim, folder=tmp_path))
    monkeypatch.setattr(claiming, "LEFTOVERS_S", 0.2)
    monkeypatch.setattr(claiming, "LOOK_AGAIN_S", 0.01)
    return tmp_path


def lay_out(machine: Machine) -> Placement:
    experiment = load_experiment(ROOT / "experiments" / "h200-from-scratch.toml", is_here=False)
    return place(experiment, machine, engine="vllm")


def opened(
    look: Callable[[], Machine],
    *,
    wait_s: float = 0.0,
    say: Callable[[str], None] = lambda line: None,
) -> Placement:
    with open_claimed(lay_out, look=look, run="second", wait_s=wait_s, say=say) as (made, _):
        return made


@pytest.mark.parametrize("machine", [FULL, CROWDED, EMPTY])
def test_a_claimed_card_is_refused_with_the_name_of_its_run_even_if_it_is_full(
    machine: Machine, folder: Path
) -> None:
    with (
        claim([CARD], run="first-3", folder=folder),
        pytest.raises(MachineError, match=r"is used by run first-3, pid \d+; forge run waits"),
    ):
        opened(lambda: machine)


@pytest.mark.parametrize("machine", [FULL, CROWDED])
def test_a_run_that_waited_for_a_card_plans_with_all_its_memory(
    machine: Machine, folder: Path
) -> None:
    is_over, waits = threading.Event(), threading.Event()

    def hold() -> None:
        with claim([CARD], run="first-3", folder=folder):
            is_held.set()
            waits.wait(20)
            is_over.set()

    is_held = threading.Event()
    first = threading.Thread(target=hold)
    first.start()
    assert is_held.wait(20)
    made = opened(
        lambda: EMPTY if is_over.is_set() else machine, wait_s=20, say=lambda line: waits.set()
    )
    first.join()
    assert made.memory_share == lay_out(EMPTY).memory_share
    assert made.memory_share != lay_out(CROWDED).memory_share


@pytest.mark.parametrize(("num_busy", "starts"), [(2, True), (99999, False)])
def test_processes_of_a_killed_run_are_waited_for_and_other_processes_are_not(
    num_busy: int, starts: bool
) -> None:
    looks = iter([FULL] * num_busy + [EMPTY] * 9)
    if starts:
        assert opened(lambda: next(looks)) == lay_out(EMPTY)
    else:
        with pytest.raises(CardBusy, match=r"pid 77 \(python\) holds"):
            opened(lambda: next(looks))


def test_two_concurrent_runs_take_different_cards(folder: Path) -> None:
    here = assume("4xH200-141GB", here=HERE)

    def look() -> Machine:
        return replace(here, busy=claimed(here.gpus, folder=folder))

    def two(machine: Machine) -> Placement:
        overrides = ["devices.gpus=auto", "devices.train=1", "devices.judge=1"]
        experiment = load_experiment(ROOT / "experiments" / "quickstart.toml", overrides=overrides)
        return place(experiment, machine)

    opened = partial(open_claimed, two, look=look, wait_s=0.0, say=print)
    with opened(run="first") as (first, _), opened(run="second") as (second, _):
        assert [gpu.index for gpu in first.gpus] == [0, 1]
        assert [gpu.index for gpu in second.gpus] == [2, 3]
        with pytest.raises(MachineError, match="is used by run first"), opened(run="third"):
            pass
