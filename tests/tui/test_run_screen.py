"""The Run screen: a finished run from the store, a running one from its supervisor."""

import os

import pytest

from forge.process.control import LiveStatus
from forge.store.layout import RunPaths, open_run_lock, write_status
from forge.store.reader import open_run
from forge.tui.screens.run import CurveBox, Histories, ProcessTable
from forge.views.curves import load_processes
from forge.views.run_state import RungState, load_ladder, load_stages
from tests.store.storefactory import edit
from tests.tui.supervisors import component, supervising
from tests.tui.watching import (
    LARGE,
    NOW,
    SMALL,
    check_snapshot,
    press,
    settle,
    text_of,
    tick,
    watching,
)

NARROW = (40, 24)


@pytest.mark.parametrize("size", [SMALL, LARGE, NARROW])
async def test_a_finished_run(canned_run: RunPaths, size: tuple[int, int]):
    async with watching(canned_run, size=size) as pilot:
        check_snapshot(pilot, "run")


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_a_living_run(canned_run: RunPaths, size: tuple[int, int]):
    with supervising(canned_run):
        async with watching(canned_run, size=size) as pilot:
            check_snapshot(pilot, "run-live")


async def test_without_its_supervisor_the_run_is_shown_from_the_store(canned_run: RunPaths):
    async with watching(canned_run, size=LARGE) as pilot:
        with supervising(canned_run) as supervisor:
            await tick(pilot)
            assert "ETA 2m05" in text_of(pilot)
            supervisor.status["components"] = [component("judge-7", "judge")]
            await tick(pilot)
            assert "judge-7" in text_of(pilot)
        await tick(pilot)
        assert "✔ done" in text_of(pilot)
        assert "best kernels" in text_of(pilot)
        assert "judge-7" not in text_of(pilot)


async def test_without_a_supervisor_turns_are_counted_instead_of_verdicts(canned_run: RunPaths):
    change(canned_run, f"UPDATE turns SET recorded_at = {NOW - 10}")
    write_status(canned_run, {"pid": os.getpid()})
    with open_run_lock(canned_run):
        async with watching(canned_run, size=LARGE) as pilot:
            line = text_of(pilot).splitlines()[2]
            assert " turns/s " in line
            assert " judged/s " not in line


async def test_new_rows_are_shown(canned_run: RunPaths):
    async with watching(canned_run) as pilot:
        assert "0.987" not in text_of(pilot)
        change(
            canned_run,
            "UPDATE metrics SET value = 0.98712 WHERE key = 'train/entropy/mean' AND step = 20",
        )
        await tick(pilot)
        assert "entropy           0.987" in text_of(pilot)


async def test_enter_on_a_process_opens_its_log(canned_run: RunPaths):
    change(canned_run, "UPDATE processes SET reason = 'killed by signal 9'")
    change(canned_run, "UPDATE attempts SET exit_code = 3, reason = 'the disk is full'")
    async with watching(canned_run) as pilot:
        assert "failed: the disk is full" in text_of(pilot)
        pilot.app.screen.query_one(ProcessTable).focus()
        await press(pilot, "down", "down", "enter")
        name = load_names(canned_run)[2]
        assert pilot.app.current_mode == "logs"
        assert pilot.app.screen._wanted.process == name  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_resize_changes_columns_and_plots(canned_run: RunPaths):
    change(canned_run, "UPDATE processes SET reason = 'exit 0'")
    async with watching(canned_run) as pilot:
        assert "┌" not in text_of(pilot)
        await pilot.resize_terminal(*LARGE)
        await settle(pilot)
        check_snapshot(pilot, "run")
        await pilot.resize_terminal(*SMALL)
        await settle(pilot)
        check_snapshot(pilot, "run")
        await pilot.resize_terminal(20, 5)
        await settle(pilot)


async def test_the_keys_of_requests_are_shown_while_the_run_is_open(canned_run: RunPaths):
    async with watching(canned_run) as pilot:
        assert "Checkpoint" not in text_of(pilot)
        with supervising(canned_run):
            await tick(pilot)
            assert "Checkpoint" in text_of(pilot)


async def test_a_killed_run_says_so(canned_run: RunPaths):
    change(canned_run, "UPDATE attempts SET ended_at = NULL, exit_code = NULL, reason = NULL")
    change(canned_run, "UPDATE processes SET ended_at = NULL, reason = NULL WHERE name = 'serve-0'")
    change(canned_run, "UPDATE processes SET reason = 'out of memory' WHERE name = 'trainer'")
    async with watching(canned_run, size=LARGE) as pilot:
        assert "✘ killed" in text_of(pilot)
        assert '"forge resume quickstart-1" continues it' in text_of(pilot)
        assert "out of memory" in text_of(pilot)
        assert "serve-0" not in text_of(pilot), "what ended with the supervisor says nothing"


async def test_an_empty_run_is_shown(canned_run: RunPaths):
    for table in ("metrics", "groups", "turns", "verdicts", "processes", "events", "evaluations"):
        change(canned_run, f"DELETE FROM {table}")
    async with watching(canned_run) as pilot:
        assert "nothing was trained yet" in text_of(pilot)
        assert "no verdict yet" in text_of(pilot)
        assert not any(box.display for box in pilot.app.screen.query(CurveBox))


def test_histories_add_up_processes_and_omit_what_nobody_reports():
    histories = Histories()
    live = {
        "run": "x", "stage": "grpo-1", "done": 1, "total": 2, "unit": "steps", "elapsed_s": 1.0,
        "eta_s": None, "tokens_per_s": 50.0, "judged_per_s": 0.0,
        "components": [
            component("a", "serve", cpu_cores=0.5), component("b", "judge", cpu_cores=1),
        ],
    }  # fmt: skip
    histories.add(LiveStatus.from_json(live), now=1.0)
    histories.add(LiveStatus.from_json(live | {"tokens_per_s": 99.0}), now=1.1)  # too early
    histories.add(LiveStatus.from_json(live | {"tokens_per_s": 100.0}), now=2.0)
    text = histories.draw(160, most_lines=2).plain
    assert "CPU 1.5 cores" in text
    assert "memory 1.66G" in text
    assert "▅█" in text
    assert "GPU" not in text
    assert "judged/s" not in text, "always zero"
    assert len(histories.draw(40, most_lines=2).plain.splitlines()) == 2


def test_the_ladder_has_the_state_of_each_stage(canned_run: RunPaths):
    change(canned_run, "DELETE FROM events WHERE kind = 'stage_end' AND message LIKE 'grpo-3%'")
    change(canned_run, "DELETE FROM events WHERE json_extract(data, '$.stage') = 4")
    change(canned_run, "DELETE FROM evaluations WHERE stage = 'eval-4'")
    with open_run(canned_run) as reader:
        stages = load_stages(reader)
        states = [each.state.value for each in load_ladder(reader, stages, is_running=True)]
        assert states == ["done", "done", "done", "running", "done", "waiting"]
        cut = load_ladder(reader, stages, is_running=False)
    assert cut[3].state is RungState.CUT
    assert (cut[3].step, cut[3].num_steps) == (20, 20)
    assert (cut[4].name, cut[4].size) == ("@10", "16×1")


def test_a_trainer_of_the_next_stage_is_no_restart(canned_run: RunPaths):
    with open_run(canned_run) as reader:
        rows = {row["name"]: row for row in load_processes(reader)}
    assert rows["trainer"]["num_restarts"] == 0
    change(canned_run, "UPDATE processes SET reason = 'killed by signal 9' WHERE name = 'trainer'")
    with open_run(canned_run) as reader:
        rows = {row["name"]: row for row in load_processes(reader)}
    assert rows["trainer"]["num_restarts"] == 1


def change(paths: RunPaths, sql: str) -> None:
    edit(paths.run_db, sql)


def load_names(paths: RunPaths) -> list[str]:
    with open_run(paths) as reader:
        return [row["name"] for row in load_processes(reader)]
