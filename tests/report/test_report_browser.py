"""The report in a real browser: an empty console, no network request, every picture present, and
wide enough for a phone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forge.views.report import write_report
from tests.report.browser import Page, find_browser, open_page
from tests.report.made_runs import write_hostile_run

if TYPE_CHECKING:
    from forge.store.layout import RunPaths

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")

OPEN = "document.querySelectorAll('details').forEach(each => { each.open = true; })"
"""A picture in a closed part has no size."""
PICTURES = """
[...document.querySelectorAll('figure img')].map(image => {
  const box = image.getBoundingClientRect();
  return {name: image.parentElement.id, width: box.width, height: box.height,
          drawn: image.complete && image.naturalWidth > 0, alt: image.alt};
})
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert BROWSER is not None
    with open_page(BROWSER, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(canned_template: RunPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(canned_template, out=tmp_path_factory.mktemp("report") / "report.html")


@pytest.mark.parametrize(("width", "is_dark"), [(1200, False), (1200, True), (360, False)])
def test_every_picture_is_there_and_the_console_is_empty(
    page: Page, report: Path, width: int, is_dark: bool
) -> None:
    page.complaints.clear()
    page.requests.clear()
    page.open(report, width=width, is_dark=is_dark)
    page.value(OPEN)
    pictures = page.value(PICTURES)
    assert len(pictures) == report.read_text().count("<figure ") >= 14
    for picture in pictures:
        assert picture["width"] > 250, picture
        assert picture["height"] > 120, picture
        assert picture["drawn"], picture
        assert picture["alt"], picture
    assert page.complaints == []
    assert page.requests == [report.resolve().as_uri()]
    assert page.value("document.documentElement.scrollWidth") <= width
    dark = page.value("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    assert dark == is_dark


def test_a_number_opens_the_rollouts_behind_it(page: Page, report: Path) -> None:
    page.open(report, width=1000)
    page.value("document.querySelector('.figure a').click()")
    part = "document.querySelector(':target')"
    assert page.value(f"{part}.checkVisibility()") is True
    page.value(f"{part}.querySelector('a').click()")
    assert page.value(f"{part}.checkVisibility()") is True
    assert page.value(f"{part}.innerText").startswith("Turn 1: ")


def test_hostile_text_runs_no_script_and_makes_no_request(page: Page, tmp_path: Path) -> None:
    report = write_report(write_hostile_run(tmp_path / "evil-1"))
    page.complaints.clear()
    page.requests.clear()
    page.open(report, width=1000)
    assert page.value("window.owned === undefined") is True
    assert (
        page.value(
            "document.querySelectorAll('script, img:not(figure img), iframe, object').length"
        )
        == 0
    )
    assert page.value("document.body.innerText.includes('<script>window.owned')") is True
    assert page.complaints == []
    assert page.requests == [report.resolve().as_uri()]


def test_the_policy_alone_would_stop_a_script(page: Page, report: Path, tmp_path: Path) -> None:
    """Check of the browser test itself: a script on the page causes a complaint."""
    broken = tmp_path / "broken.html"
    broken.write_text(
        report.read_text().replace("</main>", "<script>window.owned = 1</script></main>")
    )
    page.complaints.clear()
    page.open(broken, width=800)
    assert page.value("window.owned === undefined") is True
    assert any("Content Security Policy" in line for line in page.complaints)
