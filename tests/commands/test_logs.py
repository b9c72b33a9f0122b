"""`forge logs`: last lines, new lines, and filters by level and pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forge.commands import logs
from forge.commands.logs import log_files, parse_filter, read_logs
from forge.errors import ConfigError
from forge.store.layout import RunPaths, create_run

if TYPE_CHECKING:
    from pathlib import Path

TRAINER = """\
2026-11-21 18:08:39,064 forge.train INFO imports took 3 s
2026-11-21 18:08:40,000 forge.train WARNING memory is short
Traceback (most recent call last):
  File "x.py", line 1
ValueError: \x1b[31mred
2026-11-21 18:08:41,000 forge.train INFO step 1
"""
SERVE = "2026-11-21 18:08:40,500 ERROR forge.serve: died\n"


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = create_run("x", store_dir=tmp_path)
    (made.logs(1) / "trainer.log").write_text(TRAINER)
    (made.logs(1) / "serve-0.log").write_text(SERVE)
    return made


def shown(
    paths: RunPaths,
    process: str | None = None,
    *,
    num: int = 20,
    level: str | None = None,
    pattern: str | None = None,
) -> list[str]:
    files = log_files(paths, process=process)
    return list(read_logs(paths, files, num_lines=num, wanted=parse_filter(level, pattern)))


def test_without_a_filter_the_last_lines_of_each_are_shown(paths: RunPaths) -> None:
    assert shown(paths, num=1) == [
        "serve-0      2026-11-21 18:08:40,500 ERROR forge.serve: died",
        "trainer      2026-11-21 18:08:41,000 forge.train INFO step 1",
    ]
    assert len(shown(paths, "trainer")) == 6
    with pytest.raises(ConfigError, match="no log of judge-0; found serve-0, trainer"):
        shown(paths, "judge-0")


def test_lines_are_chosen_by_level_with_their_continuation_lines(paths: RunPaths) -> None:
    assert [line.split()[0] for line in shown(paths, level="error")] == ["serve-0"] + 3 * [
        "trainer"
    ]
    assert len(shown(paths, "trainer", level="WARNING")) == 4
    assert "ValueError: ␛[31mred" in shown(paths, "trainer", level="warning")


def test_lines_are_chosen_by_pattern_and_the_last_matches_are_shown(paths: RunPaths) -> None:
    assert shown(paths, "trainer", pattern=r"STEP \d")[0].endswith("INFO step 1")
    assert len(shown(paths, pattern="forge")) == 4
    assert len(shown(paths, num=1, pattern="forge")) == 2


def test_a_pattern_that_takes_too_long_is_refused(paths: RunPaths) -> None:
    (paths.logs(1) / "trainer.log").write_text("a" * 3000 + "!\n")
    with pytest.raises(ConfigError, match="too slow for these lines"):
        shown(paths, pattern="(a+)+$")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (("loud", None), "--level: found 'loud'; allowed are debug, info, warning, error"),
        ((None, "("), "not a regular expression"),
    ],
)
def test_an_invalid_filter_is_refused(wanted: tuple[str | None, str | None], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_filter(*wanted)


@pytest.mark.parametrize("level", [None, "info"])
def test_new_lines_are_followed_until_the_run_ends(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, level: str | None
) -> None:
    log = paths.logs(1) / "serve-0.log"
    looks = iter([True, True, False])
    monkeypatch.setattr(logs, "is_owned", lambda paths: next(looks))

    def write(seconds: float) -> None:
        with log.open("a") as file:
            file.write("2026-11-21 18:08:42,000 INFO forge.serve: again\n")

    monkeypatch.setattr(logs.time, "sleep", write)
    found = list(
        read_logs(
            paths, [log], process="serve-0", num_lines=1, wanted=parse_filter(level, None),
            is_followed=True,
        )
    )  # fmt: skip
    assert [line.rpartition(" ")[2] for line in found] == ["died", "again", "again"]


@pytest.mark.parametrize("level", [None, "info"])
def test_a_log_that_appears_later_is_followed_and_a_deleted_one_is_skipped(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, level: str | None
) -> None:
    looks = iter([True, True, False])
    monkeypatch.setattr(logs, "is_owned", lambda paths: next(looks))

    def begin(seconds: float) -> None:
        (paths.logs(1) / "judge-0.log").write_text("INFO judge: here\n")
        (paths.logs(1) / "serve-0.log").unlink(missing_ok=True)
        (paths.logs(1) / "trainer.log").write_text("INFO trainer: cut off\n")

    monkeypatch.setattr(logs.time, "sleep", begin)
    files, wanted = log_files(paths), parse_filter(level, None)
    found = list(read_logs(paths, files, num_lines=1, wanted=wanted, is_followed=True))
    assert [line.split()[0] for line in found] == ["serve-0", "trainer", "trainer", "judge-0"]
    assert found[2].endswith("cut off")


def test_control_characters_in_the_name_of_a_log_are_escaped(paths: RunPaths) -> None:
    (paths.logs(1) / "a\x1b[31m.log").write_text("INFO x\n")
    assert shown(paths)[0] == "a\u241b[31m       INFO x"
    assert shown(paths, level="info")[0] == "a\u241b[31m       INFO x"
