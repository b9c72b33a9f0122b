"""Files, keys, views and figures that the explanation pages name are those of the code."""

import re
from pathlib import Path

import pytest

from docs.generate.store import relations
from forge.config.keys import all_keys
from forge.config.schema import GrpoStage, JudgeTable, RewardTable, RolloutTable
from forge.evalpool.judge.program import limits, questions
from forge.evalpool.judge.program import policy as facts
from forge.evalpool.judge.timing import baseline
from forge.rollout import admission
from forge.runner.weights import sync
from forge.store.write import writer
from forge.views import statistics

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs/explanation"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
ROOTS = (ROOT, ROOT / "forge/evalpool/judge", ROOT / "runs")
"""Folders that a path of a page may be relative to."""
OF_A_RUN = {"logs", "checkpoints", "weights", "batches", "data"}

DEFAULTS = GrpoStage.model_fields
FIGURES = {
    "judge": (
        f"{limits.MAX_NODES:,} nodes",
        f"{limits.MAX_OPERATIONS:,} operations of a kernel",
        f"{limits.MAX_CONSTANT_BYTES >> 20} MiB of constants",
        f"{limits.MAX_TTIR_BYTES >> 20} MiB of TTIR",
        f"up to {questions.MAX_VALUES} values a call",
        f"(up to {facts.INDEX_SHARE:.0%} of the necessary work)".replace("%", " %"),
        f"(up to {facts.COMBINE_SHARE:.0%})".replace("%", " %"),
    ),
    "timing": (
        f"above {baseline.STEADY_SHARE:.0%} of the median".replace("%", " %"),
        f"resolution of {baseline.RESOLUTION_US:g} µs",
        (
            f"{baseline.LOW_PERCENTILE:g}th percentile of the same ratio over "
            f"{baseline.NUM_RESAMPLES:,}"
        ),
        f"more than {baseline.MAX_DRIFT:.0%} longer".replace("%", " %"),
        f"`judge.min_us` ({JudgeTable().min_us:g} µs)",
        f"`reward.speedup_cap` ({RewardTable().speedup_cap:g}x)",
        f"`reward.stop_at_speedup` ({RewardTable().stop_at_speedup:g}x)",
        f"with {statistics.FLOOR}x for a wrong one",
    ),
    "returns-and-losses": (
        f"$`\\gamma`$ is {RolloutTable().gamma}",
        f"`clip_low` ({DEFAULTS['clip_low'].default})",
        f"`clip_high` ({DEFAULTS['clip_high'].default},",
    ),
    "loop": (
        f"{admission.MORE} times as many",
        f"{admission.FEWER} times when",
        f"{sync.PROBE_LIMIT['exact']:.0e}".replace("e-03", "e-3"),
        f"({sync.PROBE_LIMIT_GPU:.0e} on a GPU)".replace("e-03", "e-3"),
        f"{sync.PROBE_LIMIT['fast']} in fast",
        f"{RolloutTable().max_staleness} (the default)",
    ),
    "resume": (f"`restarts` times ({DEFAULTS['restarts'].default})",),
    "store": (f"{1000 * writer.COMMIT_AFTER_S:g} ms", f"{writer.COMMIT_RECORDS:,} records"),
}


@pytest.mark.parametrize("name", PAGES)
def test_every_file_that_a_page_names_exists(name):
    named = re.findall(r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.py|\.md))`", PAGES[name])
    assert named or name not in FIGURES
    absent = [
        path
        for path in named
        if not any((root / path).exists() for root in ROOTS)
        and path.strip("/") not in OF_A_RUN
        and path != "/proc"
    ]
    assert absent == []


@pytest.mark.parametrize("name", PAGES)
def test_every_key_and_view_that_a_page_names_exists(name):
    keys = {key.path for key in all_keys()}
    tables = {key.table for key in all_keys() if key.table.isalpha()}
    dotted = re.findall(r"`(\w+\.\w+)(?: = [^`]+)?`", PAGES[name])
    assert [key for key in dotted if key.split(".")[0] in tables and key not in keys] == []
    views = {each.name for each in relations()}
    assert set(re.findall(r"`(v_\w+)`", PAGES[name])) - views == set()


@pytest.mark.parametrize(("name", "words"), [(n, w) for n, each in FIGURES.items() for w in each])
def test_the_figures_of_a_page_are_those_of_the_code(name, words):
    assert words in " ".join(PAGES[name].split())


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_at_most_two_pages_long_and_says_what_the_reader_gets(name):
    assert len(PAGES[name].split()) < 1300
    assert name == "index" or "\n\nYou get: " in PAGES[name]
