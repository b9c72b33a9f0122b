"""Every reason has a policy, and the judge's source uses no reason that is not a member."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import forge.evalpool.judge as judge
from forge.records.reason import Cause, Reason, Status, policy_of
from forge.records.verdict import Verdict

JUDGE = Path(judge.__file__).parent


@cache
def trees() -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in sorted(JUDGE.rglob("*.py"))]


@cache
def used_by_the_judge() -> set[tuple[str | None, str]]:
    """Each reason in the judge's source, with the status beside it; None where that is computed."""
    names = {name: text for tree in trees() for name, text in constants(tree)}
    found = set[tuple[str | None, str]]()
    for call in (node for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Call)):
        keywords = {one.arg: one.value for one in call.keywords}
        status, *rest = (*call.args, None)
        match call.func:
            case (
                ast.Attribute(attr="finding" | "report" | "decided")
                | ast.Name(id="finding" | "report")
            ):
                reason = rest[0] if rest else None
            case ast.Name(id="Finding"):
                status, reason = keywords["status"], keywords["reason"]
            case ast.Name(id="_Found"):
                status, reason = None, status
            case _:
                continue
        if (code := text_of(reason, names)) is not None:
            found.add((status.attr if isinstance(status, ast.Attribute) else None, code))
    return found


def constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                yield name, text


def text_of(node: ast.AST | None, names: dict[str, str]) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return text
        case ast.Name(id=name):
            return names.get(name)
        case _:
            return None


def test_every_reason_of_the_judge_is_a_member():
    codes = {code for _, code in used_by_the_judge()}
    assert len(codes) >= 10
    assert {code for code in codes if Reason.of(code) is None} == set()


@pytest.mark.parametrize("code", [*Reason, "of_an_old_run:x"])
def test_only_a_verdict_that_is_not_scored_has_a_cause(code):
    for status in Status:
        assert (policy_of(status, code).cause is None) == status.is_scored


def test_a_problem_that_cannot_be_judged_is_no_fault_of_a_judge():
    assert not Status.UNJUDGEABLE.is_scored
    for reason in (Reason.REFERENCE_FAILED, Reason.PROBLEM_TOO_LARGE):
        policy = policy_of(Status.UNJUDGEABLE, reason)
        assert policy.cause is Cause.SUBJECT
        assert not policy.is_blamed(others_run=False)


def test_a_verdict_with_an_unknown_reason_is_read_and_has_the_policy_of_its_status():
    old = Verdict(status=Status.INFRA_ERROR, reason="of_an_old_run:x", detail="")
    read = Verdict.from_json(old.to_json())
    assert read == old
    assert read.policy.cause is Cause.JUDGE


def test_only_a_judge_that_is_at_fault_is_blamed():
    crowded = policy_of(Status.INFRA_ERROR, Reason.GPU_MEMORY)
    assert crowded.is_blamed(others_run=False)
    assert not crowded.is_blamed(others_run=True)
    for policy in (policy_of(status, code) for status in Status for code in Reason):
        for others_run in (False, True):
            assert policy.is_blamed(others_run=others_run) or policy.cause is not Cause.JUDGE
