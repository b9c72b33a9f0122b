"""The numbers of cheats, attacks and honest kernels in the documents are those of the zoo, whose
tests judge every one of them."""

from __future__ import annotations

import json
import re

import pytest

from tests.docs.pages import ROOT
from tests.zoo.animals import FOLDER, load

NUM_CHEATS = len(load("cheats"))
ATTACKS = {path.stem: len(json.loads(path.read_text())) for path in FOLDER.glob("*_attacks*.json")}


@pytest.mark.parametrize("name", ["README.md", "docs/results/index.md"])
def test_a_document_counts_cheats_and_attacks(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.findall(
        r"[Oo]f (\d+) cheats and (\d+) attacks .* (\w+) are (?:accepted|judged)", text
    )
    assert found == [(str(NUM_CHEATS), str(sum(ATTACKS.values())), "two")]
    assert ATTACKS["accepted_attacks"] == 2


def test_the_results_of_the_judge_count_cheats_and_honest_kernels() -> None:
    text = (ROOT / "docs/results/judge.md").read_text(encoding="utf-8")
    num_honest = len(load("honest"))
    assert f"| cheats of the zoo judged correct | 0 of {NUM_CHEATS} |" in text
    assert f"| honest kernels of the zoo | {num_honest} of {num_honest} |" in text
