"""Honest candidates of many styles are captured."""

import pytest

from forge.evalpool.judge.program.format import Choice, Launch, Op
from forge.evalpool.judge.program.ops import misuse
from tests.evalpool.capture.capturing import captured
from tests.evalpool.capture.corpus import CORPUS


@pytest.mark.parametrize("name", list(CORPUS))
def test_an_honest_candidate_is_captured(name, tmp_path):
    asked, code = CORPUS[name]
    program = captured(tmp_path, code, **asked)
    kinds = {type(node) for node in program.forward}
    assert kinds & {Launch, Choice}
    assert program.outputs
    assert program.stateful == ""
    nodes = [node for node in program.nodes if isinstance(node, Op)]
    assert [words for node in nodes if (words := misuse(node))] == []
