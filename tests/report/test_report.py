"""`forge report`: one complete file, for whole, partial, broken and hostile runs."""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from forge.errors import ConfigError, MachineError
from forge.records import AttemptEnd, Event, Metrics, Purpose, Status
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.views.compare import find_changes
from forge.views.report import contents
from forge.views.report.charts import MOST_TABLE_ROWS, Chart, Line, draw_svg, label, make_line
from forge.views.report.contents import Contents
from forge.views.report.page import write_report
from forge.views.statistics import evaluate_groups
from forge.views.text import grouped, hide_secrets, is_secret
from tests.report.made_runs import make_run, write_hostile_run
from tests.store.storefactory import (
    attempt,
    edit,
    evaluation,
    group,
    problem,
    small_run,
    timing,
    with_turns,
)

TAGS = frozenset(
    re.findall(
        r"\w+",
        "html head meta link title style body header h1 h2 h3 p nav ol li a main section dl div dt "
        "dd strong ul table thead tbody tr th td figure img figcaption details summary pre code "
        "span",
    )
)
"""All elements that a page may contain."""


PICTURE = "data:image/svg+xml,"
CARD = r'<dt>(.*?)</dt><dd class="figure">(?:<a [^>]*>)?([^<]*)'


def assert_harmless(page: str) -> None:
    """No script, no request: only known elements, and pictures within the page."""
    for tag, attributes in Elements(page).tags:
        assert tag in TAGS
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("href") or "#").startswith(("#", "data:,"))
        assert (attributes.get("src") or PICTURE).startswith(PICTURE)


class Elements(HTMLParser):
    """Tags with their attributes, and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def words_at(page: str, anchor: str) -> str:
    """The text from a place of the page to the next one that is linked."""
    return Elements(page.partition(f'id="{anchor}">')[2].split('id="')[0]).words


def page_of(paths: RunPaths) -> str:
    return write_report(paths).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def canned_page(canned_template: RunPaths, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("report") / "report.html"
    return write_report(canned_template, out=out).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(write_hostile_run(tmp_path_factory.mktemp("hostile") / "evil-1"))


def missing(page: str) -> str:
    """The page's list of missing parts."""
    found = re.search(r'<div class="missing">(.*?)</div>', page, flags=re.DOTALL)
    return found[1] if found else ""


def test_the_quickstart_has_every_part(canned_page: str) -> None:
    page = canned_page
    names = re.findall(r'<figure id="([a-z-]+)">', page)
    assert names == [
        "evaluations", "pass-at-k", "reward", "pass-rate", "sft-loss", "levels", "reward-terms",
        "length", "waste", "kl", "entropy", "staleness", "loss", "sft-accuracy", "grad-norm",
        "sft-grad-norm", "failures", "idle", "step-time",
    ]  # fmt: skip
    assert page.count(f'src="{PICTURE}') == len(names)
    for anchor in re.findall(r'<li><a href="#([a-z-]+)">', page):
        assert f'<section id="{anchor}">' in page
    assert "tl.load" in Elements(page).words
    assert "no speed-up: nothing was timed" in missing(page)
    assert "learning_rate" in Elements(page).words  # the resolved experiment


def test_the_quickstart_is_summed_up_in_cards(canned_page: str) -> None:
    cards = dict(re.findall(CARD, canned_page))
    assert cards["pass@1"] == "54.7 %"
    assert cards["Time"] == "6:23"
    assert cards["Rollouts"] == "651"
    words = Elements(canned_page).words
    assert "0.0 % in eval-0; sft-1 +21.9 points (95 %: +9.4 to +34.4); grpo-3 +12.5" in words
    assert "init tiny, tiny.num_layers 2" in words
    assert "sft (steps 1,600, learning_rate" in words


def test_the_quickstart_has_a_failed_and_a_correct_answer_side_by_side(canned_page: str) -> None:
    (example,) = re.findall(r'<section id="example">.*?</section>', canned_page, flags=re.DOTALL)
    words = Elements(example).words
    assert "Before grpo-3: wrong (mismatch)" in words
    assert "After grpo-3: correct" in words
    assert words.count("class ModelNew") == 2
    assert "judge> wrong: mismatch" in words


def test_all_but_the_main_curves_is_folded(canned_page: str) -> None:
    shown, _, folded = canned_page.partition("<details><summary>11 more curves</summary>")
    assert re.findall(r'<figure id="([a-z-]+)">', shown)[2:] == ["reward", "pass-rate", "sft-loss"]
    assert '<figure id="levels">' in folded
    assert "<details open" not in canned_page


def test_a_page_has_no_requests_and_no_script(canned_page: str) -> None:
    assert_harmless(canned_page)
    tags = Elements(canned_page).tags
    policy = next(a["content"] for _, a in tags if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'; ")


def test_every_link_leads_to_a_place(canned_page: str, hostile_page: str) -> None:
    for page in (canned_page, hostile_page):
        tags = Elements(page).tags
        ids = {attributes["id"] for _, attributes in tags if "id" in attributes}
        links = {attributes["href"] for tag, attributes in tags if tag == "a"}
        assert {f"#{each}" for each in ids} >= links


def test_a_number_leads_to_the_rollouts_behind_it(
    canned_page: str, canned_template: RunPaths
) -> None:
    """From pass@1 to the verdicts of its evaluation, from a count to a turn with the verdict."""
    (target,) = re.findall(r'<dt>pass@1</dt><dd class="figure"><a href="#([^"]+)"', canned_page)
    part = canned_page.partition(f'<div id="{target}">')[2].partition("</div></details>")[0]
    head, *rows = re.findall(r"<tr>(.*?)</tr>", part.partition("</table>")[0])
    assert Elements(head).words == "verdictturn 1turn 2turn 3"
    num_first = 0
    for row in rows:
        status, first, *_ = re.findall(r"<td>(.*?)</td>", row)
        anchor, count = re.findall(r'<a href="#([^"]+)">([\d,]+)</a>', first)[0]
        num_first += int(count)
        assert words_at(canned_page, anchor).startswith(f"Turn 1: {status}")
    with open_run(canned_template) as reader:
        sql = "SELECT count(*) FROM v_turns WHERE stage = 4 AND purpose = 'eval' AND turn = 0"
        assert num_first == reader.value(sql)
    problem = re.findall(r"<tr><td>(.*?)</td>.*?</tr>", part.partition("</table>")[2])[0]
    links = re.findall(rf'<tr><td>{problem}</td>.*?<a href="#(\w+\.\w+)\.t0">([^<]*)</a>', part)
    for rollout, statuses in links:
        assert statuses in canned_page.partition(f'<div id="{rollout}">')[0][-300:]


def test_a_rollout_is_shown_with_its_prompt_its_answers_and_their_feedback(
    canned_page: str,
) -> None:
    found = re.findall(r"<summary>[^<]*: wrong → correct \((g\d+\.r\d+) in", canned_page)
    shown = canned_page.partition(f'<div id="{found[0]}">')[2].partition("</div></details>")[0]
    words = Elements(shown).words
    assert words.count("class ModelNew") == 2
    assert "judge> wrong: mismatch" in words
    (prompt,) = re.findall(r'<a href="#(prompt-\d+)">', shown)
    assert "class Model" in words_at(canned_page, prompt)


def test_long_answers_and_many_rollouts_stay_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "</script>" * 120_000
    groups = [
        group(
            number,
            [[Status.WRONG]] * 4,
            problem_id=f"p{number}",
            purpose=Purpose.EVAL,
            stage=0,
            step=1 + number % 2,
        )
        for number in range(200)
    ]
    groups[0] = with_turns(groups[0], lambda t: replace(t, completion_text=long))
    problems = [replace(problem(), problem_id=f"p{number}") for number in range(200)]
    records = [attempt(), *problems, *groups, evaluation(stage="eval-0", step=1)]
    page = page_of(make_run(tmp_path / "l-1", records))
    assert page.count('<details class="rollout">') <= 2 * contents.MOST_SHOWN
    assert "</script>" not in page
    assert "[1,068,000 characters more are in the store]" in page
    assert len(page) < 2_000_000
    monkeypatch.setattr(contents, "MOST_CHARACTERS", 1)
    few = page_of(RunPaths(tmp_path / "l-1"))
    assert few.count('<details class="rollout">') == 1
    test_every_link_leads_to_a_place(page, few)


def test_every_picture_has_words_and_a_table(canned_page: str) -> None:
    for figure in re.findall(r"<figure .*?</figure>", canned_page, flags=re.DOTALL):
        assert re.search(r'<img src="data:image[^>]+" alt="[^"]{20,}">', figure)
        assert re.search(r"<summary>Numbers</summary>.*<td>", figure, flags=re.DOTALL)


def test_the_same_store_gives_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "s-1", small_run())
    here = write_report(paths, out=tmp_path / "a.html")
    argv = [sys.executable, "-m", "forge", "report", str(paths.root)]
    argv += ["--out", str(tmp_path / "b.html"), "--json"]
    env = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    ran = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert here.read_bytes() == Path(json.loads(ran.stdout)["report"]).read_bytes()


def test_plots_are_svg_and_png_files(tmp_path: Path) -> None:
    paths = make_run(
        tmp_path / "p-1", [attempt(), problem(), evaluation(), evaluation("b", step=1)]
    )
    page = write_report(paths, plots=tmp_path / "new" / "plots").read_text(encoding="utf-8")
    names = re.findall(r'<figure id="([a-z-]+)">', page)
    files = {path.name: path.read_bytes() for path in (tmp_path / "new" / "plots").iterdir()}
    assert set(files) == {f"{name}.{kind}" for name in names for kind in ("svg", "png")}
    assert len(names) == 2
    for name, content in files.items():
        assert content.startswith(b"\x89PNG" if name.endswith(".png") else b"<?xml")


def test_hostile_text_is_escaped(hostile_page: str) -> None:
    page = hostile_page
    assert_harmless(page)
    elements = Elements(page)
    assert not any("owned" in (attributes.get("style") or "") for _, attributes in elements.tags)
    assert elements.words.count("<script>window.owned=1</script>") > 10
    assert "{{ 7*7 }}" in elements.words
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page)
    style = re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL)
    assert len(style) == 1
    assert "display:none" not in style[0]


def test_every_part_of_a_hostile_run_is_there(hostile_page: str) -> None:
    names = set(re.findall(r'<figure id="([a-z-]+)">', hostile_page))
    assert {"evaluations", "reward", "failures", "idle", "kl", "speedup"} <= names


def test_secrets_of_an_experiment_are_not_in_the_report(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "s-1", [attempt()])
    experiment = (
        '[notify]\nwebhook = "https://user:pw@hooks.example:8/T0/s3cret"\non = ["done"]\n\n'
        '[serve.env]\nHF_TOKEN = "s3cret"\n"MY_API_KEY" = "s3cret"\nOMP_NUM_THREADS = "2"\n\n'
        '[serve]\nkey = "shown"\n'
    )
    edit(paths.run_db, "UPDATE runs SET experiment = ?", experiment)
    words = Elements(page_of(paths)).words
    assert 'webhook = "https://hooks.example:8/…"' in words
    assert "pw" not in words
    assert "s3cret" not in words
    assert 'HF_TOKEN = "…"' in words
    assert 'OMP_NUM_THREADS = "2"' in words
    assert 'key = "shown"' in words


def test_timed_kernels_have_times_and_speed_ups(tmp_path: Path) -> None:
    groups = [
        group(i, [[Status.CORRECT], [Status.WRONG]], step=i, speed=timing(float(i)))
        for i in (1, 2, 3)
    ]
    evals = [
        group(9, [[Status.CORRECT]] * 2, purpose=Purpose.EVAL, stage=0, step=0, speed=timing(1.7))
    ]
    run = [attempt(), problem(), *evals, evaluation(timed=evals[0]), *groups]
    page = page_of(make_run(tmp_path / "t-1", run))
    assert dict(re.findall(CARD, page))["Best kernel"] == "≥ 2.70×"
    assert "softmax-0000, measured 3.00×" in page
    assert '<td class="words">softmax-0000</td>' in page  # folds, so that no column is cut off
    assert "<td>2.70×</td>" in page
    (best,) = re.findall(r'<td><a href="#(g3.r0.t0)">g3.r0.t0</a></td>', page)
    assert "3.00 times as fast" in words_at(page, best)
    assert '<figure id="speedup">' in page
    assert '<figure id="fast-p">' in page
    assert "<td>33.3</td><td>100.0</td>" in page  # candidate and baseline, µs


def test_time_is_reported_by_stage_and_with_the_queue_of_the_judges(tmp_path: Path) -> None:
    """Judges have no requests while a model is made; waiting for a judge belongs to no phase."""
    idle = {"step/wall/seconds": 10.0, "idle/judge/seconds": 10.0}
    played = group(1, [[Status.CORRECT], [Status.WRONG]])
    run = [
        attempt(), problem(), with_turns(played, lambda t: replace(t, judge_s=40.0)),
        Metrics(stage=0, step=5, values=idle, at=1.0),
        Metrics(stage=1, step=1, values=idle | {"idle/judge/seconds": 1.0}, at=2.0),
    ]  # fmt: skip
    page = page_of(make_run(tmp_path / "t-1", run))
    assert "<td>eval-0</td><td>judge</td><td>100.0 %</td>" in page
    assert "<td>grpo-1</td><td>judge</td><td>10.0 %</td>" in page
    assert re.search(
        r"<td>waiting for a judge, in training</td><td>\d+.\d</td><td>\d+</td><td>39", page
    )


@pytest.mark.parametrize("texts", ["plain", "zstd"])
def test_a_run_before_its_first_turn_says_what_is_missing(tmp_path: Path, texts: str) -> None:
    page = page_of(make_run(tmp_path / "new-1", [attempt()], texts=texts))
    for words in ("no turn", "no evaluation yet", "no step of reinforcement learning yet"):
        assert words in missing(page)
    assert PICTURE not in page
    assert page.count("No turn was played.") == 2
    for claim in ("No turn failed", "No kernel was correct", "steps of GRPO"):
        assert claim not in page


def test_a_killed_run_is_reported_up_to_its_last_row(tmp_path: Path) -> None:
    last = Event(at=1_061.0, kind="last", message="words")
    page = page_of(make_run(tmp_path / "k-1", [attempt(), last]))
    assert "killed" in missing(page)
    assert "killed, took " in page


def test_the_time_between_a_kill_and_a_resume_is_no_time_of_the_run(tmp_path: Path) -> None:
    last = Event(at=1_005.0, kind="last", message="words")  # of attempt 1, which began at 1,000
    again = replace(attempt(2), started_at=9_000.0)
    ended = AttemptEnd(attempt=2, ended_at=9_010.0, exit_code=0, reason="done")
    page = page_of(make_run(tmp_path / "r-1", [attempt(), last, again, evaluation(), ended]))
    assert "2 attempts, took 0:15" in page


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"out": Path("/dev/null/x.html")}, MachineError, "cannot be written"),
        ({"plots": Path("/dev/null/x")}, MachineError, "--plots"),
        ({"out": Path("/tmp")}, ConfigError, "is a directory"),
    ],
)
def test_an_unwritable_path_is_named(
    tmp_path: Path, options: dict, error: type[Exception], words: str
) -> None:
    paths = make_run(tmp_path / "w-1", [attempt()])
    with pytest.raises(error, match=words):
        write_report(paths, **options)


def test_help_and_import_load_no_matplotlib() -> None:
    code = "import sys, forge, forge.cli, forge.views.report; print('matplotlib' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "False\n"


DIFF = """\
--- a/experiments/mine.toml
+++ b/experiments/mine.toml
+[notify]
+webhook = "https://hooks.example/T0/s3cret"
+command = "curl -H 'Authorization: Bearer s3cret' https://x.example"
 notify = { webhook = "https://hooks.example/T0/s3cret" }
-HF_TOKEN = "s3cret"
+export API_KEY='s3cret'
+learning_rate = 1e-3
"""


def test_a_notification_command_is_shown_without_its_arguments() -> None:
    text = '[notify]\ncommand = "curl -d \\"s3cret\\" https://x/s3cret"\n[model]\ncommand = "c d"\n'
    hidden = '[notify]\ncommand = "curl …"\n[model]\ncommand = "c d"\n'
    assert hide_secrets(text) == hidden


@pytest.mark.parametrize("rest", ["?token=s3cret", "#s3cret", "/x?s3cret", "/a@b/s3cret"])
@pytest.mark.parametrize("user", ["", "me:s3cret@", "me:s3@s3cret@"])
def test_only_the_host_of_a_webhook_is_shown(user: str, rest: str) -> None:
    hidden = hide_secrets(f'[notify]\nwebhook = "https://{user}h.example:8{rest}"\n')
    assert hidden == '[notify]\nwebhook = "https://h.example:8/…"\n'


def test_the_diff_of_a_report_hides_secrets(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "d-1", [replace(attempt(), code_diff=DIFF)])
    page = write_report(paths).read_text(encoding="utf-8")
    assert "learning_rate" in page
    assert "s3cret" not in page


def test_a_comparison_lists_a_changed_secret_without_its_value(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, [attempt()]) for name in ("a-1", "b-1")]
    for paths, host in zip(runs, ("one", "two"), strict=True):
        text = f'[notify]\nwebhook = "https://h/{host}"\n[serve.env]\nHF_TOKEN = "{host}"\n'
        edit(paths.run_db, "UPDATE runs SET experiment = ?", text)
    with open_run(runs[0]) as a, open_run(runs[1]) as b:
        found = {each["key"]: (each["a"], each["b"]) for each in find_changes(a, b)}
    assert found == {"notify.webhook": ("…", "…"), "serve.env.HF_TOKEN": ("…", "…")}
    assert not is_secret("notify.on")


def test_a_report_overwrites_only_reports(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "o-1", [attempt()])
    kept = paths.run_db.read_bytes()
    with pytest.raises(
        ConfigError, match=r"run\.db: exists and is not a report; name another file"
    ):
        write_report(paths, out=paths.run_db)
    assert paths.run_db.read_bytes() == kept
    target = tmp_path / "page.html"
    target.touch()
    for _ in range(2):
        assert write_report(paths, out=target) == target


def chart(*lines: Line, **keys: object) -> Chart:
    given = {"name": "c", "title": "T", "x_label": "step", "y_label": "y", "lines": lines}
    return Chart(**{**given, **keys})


def test_a_long_table_leaves_rows_out_evenly_and_counts_them() -> None:
    made = chart(make_line("a", [(i, float(i)) for i in range(300)]))
    head, rows = made.table()
    assert head == ["step", "a"]
    assert (len(rows), rows[0], rows[-1]) == (MOST_TABLE_ROWS, ["0", "0"], ["299", "299"])
    assert made.num_rows == 300


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (12.0, "12"),
        (12_300.0, "12,300"),
        (0.03125, "0.0312"),
        (3.21e-5, "3.21e-05"),
        (-2.5, "-2.5"),
    ],
)
def test_numbers_have_three_digits(value: float, shown: str) -> None:
    assert grouped(value) == shown


@pytest.mark.parametrize("has_names", [False, True])
def test_lines_and_points_are_drawn_with_any_label(has_names: bool) -> None:
    words = label("</text><script>x</script> $\\frac{1}{0}$ 漢字 & _")
    lines = [
        make_line(f"{i} {words}", [(0, 0.2, 0.1, 0.3), (1, 0.4)], is_points=i % 2 == 0)
        for i in range(9)
    ]
    document = draw_svg(chart(*lines, names=(words, words) if has_names else ()))
    texts = [each.text for each in ET.fromstring(document).iter() if each.tag.endswith("}text")]
    assert any(words in (text or "") for text in texts)


SOLVED, FAILED = [[Status.CORRECT]] * 4, [[Status.WRONG]] * 4


def contents_of(root: Path, records: list) -> Contents:
    with open_run(make_run(root, records)) as reader:
        return Contents(reader)


def evaluated(stage: int, statuses: list, *, first_id: int, num: int = 12) -> list:
    """An evaluation stage on `num` problems with these statuses for each."""
    step = stage
    groups = [
        group(
            first_id + i, statuses, purpose=Purpose.EVAL, stage=stage, step=step,
            problem_id=f"softmax-{i:04d}",
        )
        for i in range(num)
    ]  # fmt: skip
    return [*groups, evaluation(f"eval-{stage}", step=step, at=stage)]


@pytest.fixture
def trained(tmp_path: Path) -> Contents:
    """Twelve problems: none solved before one step of GRPO, all after it."""
    steps = [
        group(100 + i, SOLVED if i < 2 else FAILED, stage=1, step=1, problem_id=f"softmax-{i:04d}")
        for i in range(4)
    ]
    metrics = Metrics(stage=1, step=1, values={"train/loss/mean": 0.1}, at=5.0)
    problems = [problem(i) for i in range(12)]
    before, after = evaluated(0, FAILED, first_id=1), evaluated(2, SOLVED, first_id=200)
    return contents_of(tmp_path / "r-1", [attempt(), *problems, *before, *steps, metrics, *after])


def test_a_gain_is_paired_by_problem_and_has_an_interval(trained: Contents) -> None:
    (gain,) = trained.gains
    assert (gain.before, gain.after, gain.estimate.num_problems) == ("eval-0", "eval-2", 12)
    assert gain.by == ("grpo-1",)
    assert gain.estimate.is_clear
    assert gain.points() == "+100.0 points (95 %: +100.0 to +100.0)"
    (_, _, about), *_ = trained.cards
    assert "grpo-1 +100.0 points (95 %: +100.0 to +100.0)" in about


def test_the_pair_of_answers_is_of_one_problem(trained: Contents) -> None:
    pair = trained.before_after
    assert pair["before"]["problem_id"] == pair["after"]["problem_id"]
    assert (pair["before"]["status"], pair["after"]["status"]) == ("wrong", "correct")
    assert (pair["before"]["rate"], pair["after"]["rate"]) == ("0 of 4", "4 of 4")


def test_the_pass_rate_has_points_of_held_out_problems(trained: Contents) -> None:
    chart = next(each for each in trained.charts["trained"] if each.name == "pass-rate")
    (points,) = [line for line in chart.lines if line.is_points]
    assert [row[0] for row in points.rows] == [0, 1]
    assert points.rows[0][2] is not None


def test_the_reward_has_a_band_over_the_groups_of_a_step(trained: Contents) -> None:
    chart = next(each for each in trained.charts["trained"] if each.name == "reward")
    (line,) = chart.lines
    _, mean, low, high = line.points[0]
    # two groups of 0.8, two of 0.3: the standard error of the mean is 0.5 / sqrt(12)
    assert mean == pytest.approx(0.55)
    assert (high - low) / 4 == pytest.approx(0.5 / 12**0.5)


def test_without_a_later_correct_answer_there_is_no_pair(tmp_path: Path) -> None:
    contents = contents_of(tmp_path / "s-1", small_run())
    assert contents.before_after is None


def test_the_best_of_n_is_a_curve_over_tokens_for_each_number_of_turns(tmp_path: Path) -> None:
    right, wrong = Status.CORRECT, Status.WRONG
    played = group(
        0, [[wrong, right], [wrong, wrong], [right]], purpose=Purpose.EVAL, stage=0, step=0
    )
    result = evaluate_groups(
        [played], [problem()], stage="eval-0", step=0, version=0, max_turns=2, at=1.0
    )
    paths = make_run(tmp_path / "t-1", [attempt(), problem(), played, result])
    with open_run(paths) as reader:
        charts = {each.name: each for each in Contents(reader).drawn}
    one, two = charts["best-at"].lines
    assert (one.label, two.label) == ("up to 1 turn", "up to 2 turns")
    assert [row[0] for row in one.rows] == [12.0, 24.0, 36.0]
    assert [row[1] for row in one.rows] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert [row[1] for row in two.rows] == pytest.approx([2 / 3, 1.0, 1.0])
