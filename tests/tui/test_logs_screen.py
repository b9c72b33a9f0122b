"""Logs: growing files, lines by process, level and pattern; the screen and its keys."""

import os
from datetime import UTC, datetime
from pathlib import Path

from textual.pilot import Pilot
from textual.widgets import Input, Log, Tab

from forge.store.layout import RunPaths
from forge.views import logs
from tests.tui.watching import check_snapshot, press, settle, text_of, unwrapped, watching

STAMP = "2026-11-21 18:08:31,313"


def log_of(paths: RunPaths, process: str) -> Path:
    return paths.root / "logs" / "latest" / f"{process}.log"


def lines_of(pilot: Pilot[None]) -> list[str]:
    return list(pilot.app.screen.query_one(Log).lines)


# ---- files


def test_only_whole_lines_are_read_and_each_once(tmp_path: Path):
    path = tmp_path / "trainer.log"
    tail = logs.LogTail(path)
    assert tail.read() == []
    path.write_text("one\ntw")
    assert [line.text for line in tail.read()] == ["one"]
    with path.open("a") as file:
        file.write("o\nthree\n")
    assert [line.text for line in tail.read()] == ["two", "three"]
    assert tail.read() == []
    path.write_text("anew\n")
    assert [line.text for line in tail.read()] == ["anew"]


def test_a_long_file_is_read_from_a_whole_line_near_its_end(tmp_path: Path):
    path = tmp_path / "trainer.log"
    path.write_text("".join(f"line {i:06d}\n" for i in range(logs.READ_BYTES // 6)))
    lines = logs.LogTail(path).read()
    assert lines[-1].text == f"line {logs.READ_BYTES // 6 - 1:06d}"
    assert all(len(line.text) == len("line 000000") for line in lines)


def test_a_line_without_a_level_has_that_of_the_line_before(tmp_path: Path):
    path = tmp_path / "trainer.log"
    path.write_text(
        f"{STAMP} forge.x INFO fine\nprinted\nx.py:3: FutureWarning: old\n  code\n"
        f"{STAMP} ERROR forge.x: bad\nTraceback (most recent call last):\n  File\n"
        f"{STAMP} forge.x DEBUG detail\n"
    )
    found = [(line.text, line.level) for line in logs.LogTail(path).read()]
    assert found[0] == ("18:08:31 forge.x INFO fine", logs.Level.INFO)
    assert [level for _, level in found] == [
        logs.Level.INFO, logs.Level.INFO, logs.Level.WARNING, logs.Level.WARNING,
        logs.Level.ERROR, logs.Level.ERROR, logs.Level.ERROR, logs.Level.DEBUG,
    ]  # fmt: skip


def test_output_of_a_process_cannot_move_the_cursor(tmp_path: Path):
    path = tmp_path / "trainer.log"
    path.write_bytes(b"10%\r20%\r\x1b[2Jdone \xff[red]x[/red]\n")
    assert logs.LogTail(path).read()[0].text == "␛[2Jdone \ufffd[red]x[/red]"


def test_lines_of_all_processes_are_sorted_by_time(canned_run: RunPaths):
    book = logs.LogBook(canned_run)
    lines = book.read()
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    assert {"supervisor", "trainer", "serve-0"} <= set(book.processes())
    wanted = logs.LogFilter(process="trainer", pattern=logs.compile_pattern("STEP 3:"))
    trainer = wanted.choose(book.lines)
    assert trainer
    assert all(line.process == "trainer" and "step 3:" in line.text for line in trainer)
    assert book.lines.maxlen == logs.KEPT_LINES


def test_lines_of_vllm_are_sorted_too(tmp_path: Path):
    """vLLM prints no year; without its times a minute of its lines sorted too early."""
    folder = tmp_path / "run-1" / "logs" / "attempt-1"
    folder.mkdir(parents=True)
    (folder.parent / "latest").symlink_to("attempt-1")
    (folder / "serve-0.log").write_text(
        "INFO 11-21 18:08:01 [model.py:5] first\n"
        f"{STAMP} INFO forge.serve.engine.endpoints: second\n"
        "(EngineCore pid=7) WARNING 11-21 18:08:31 [core.py:1] third\n"
        "INFO 11-21 18:09:44 [core.py:2] last\n"
    )
    (folder / "trainer.log").write_text(f"{STAMP.replace('18:08', '18:09')} forge.x INFO fourth\n")
    at = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    os.utime(folder / "serve-0.log", (at, at))
    lines = logs.LogBook(RunPaths(tmp_path / "run-1")).read()
    assert [line.text.split()[-1] for line in lines] == [
        "first", "second", "third", "fourth", "last",
    ]  # fmt: skip
    assert lines[2].level is logs.Level.WARNING


# ---- the screen


async def test_the_screen_matches_its_snapshot(canned_run: RunPaths):
    async with watching(canned_run, keys=["5"]) as pilot:
        check_snapshot(pilot, "logs")


async def test_brackets_and_clicks_choose_a_process(canned_run: RunPaths):
    async with watching(canned_run, keys=["5", "right_square_bracket"]) as pilot:
        first = lines_of(pilot)
        assert any("imports took" in line for line in first)
        await press(pilot, "left_square_bracket", "left_square_bracket")
        assert any("{'loss'" in line for line in lines_of(pilot)), "the last one is the trainer"
        supervisor = next(
            tab for tab in pilot.app.screen.query(Tab) if str(tab.label) == "supervisor"
        )
        await pilot.click(supervisor)
        await settle(pilot)
        assert any("judge-0 started" in line for line in lines_of(pilot))
        assert not any("{'loss'" in line for line in lines_of(pilot))


async def test_l_goes_through_the_levels(canned_run: RunPaths):
    with log_of(canned_run, "judge-0").open("a") as file:
        file.write(f"{STAMP} ERROR x: broken\n")
    async with watching(canned_run, keys=["5", "l", "l"]) as pilot:
        assert "level WARNING and above" in text_of(pilot)
        assert any("FutureWarning" in line for line in lines_of(pilot))
        await press(pilot, "l")
        assert [line.split(maxsplit=1)[1] for line in lines_of(pilot) if line] == [
            "18:08:31 ERROR x: broken"
        ]
        await press(pilot, "l")
        assert "level all" in text_of(pilot)


async def test_slash_filters_by_a_pattern_and_escape_clears_it(canned_run: RunPaths):
    async with watching(canned_run, keys=["5", "slash"]) as pilot:
        await pilot.press(*"step 3[:,]")
        await press(pilot, "enter")
        shown = [line for line in lines_of(pilot) if line]
        assert shown
        assert all("step 3" in line for line in shown)
        assert "filter step 3[:,]" in text_of(pilot)
        await press(pilot, "slash")
        pilot.app.screen.query_one(Input).value = "("
        await press(pilot, "enter")
        assert "not a regular expression" in unwrapped(pilot)
        await press(pilot, "escape")
        assert "filter –" in text_of(pilot)
        assert len(lines_of(pilot)) > len(shown)


async def test_a_pattern_that_is_too_slow_is_dropped_and_reported(canned_run: RunPaths):
    async with watching(canned_run, keys=["5", "slash"]) as pilot:
        num_lines = len(lines_of(pilot))
        await pilot.press(*"(a+)+$", "enter")
        await append(pilot, canned_run, "a" * 3000 + "!")
        assert "filter –" in text_of(pilot)
        assert "too slow for these lines" in unwrapped(pilot)
        assert len(lines_of(pilot)) == num_lines + 1, "all that was shown before, too"


async def test_f_toggles_following_of_new_lines(canned_run: RunPaths):
    async with watching(canned_run, keys=["5"]) as pilot:
        log = pilot.app.screen.query_one(Log)
        await append(pilot, canned_run, "followed")
        assert log.is_vertical_scroll_end
        await press(pilot, "f")
        await append(pilot, canned_run, "not followed\n" * 5)
        assert not log.is_vertical_scroll_end
        assert "follow off" in text_of(pilot)
        await press(pilot, "f")
        assert log.is_vertical_scroll_end


async def append(pilot: Pilot[None], paths: RunPaths, words: str) -> None:
    with log_of(paths, "judge-0").open("a") as file:
        file.write(words.rstrip() + "\n")
    pilot.app.screen.refresh_data()  # pyright: ignore[reportAttributeAccessIssue]
    await settle(pilot)
    assert words.split("\n")[0] in "".join(lines_of(pilot))
