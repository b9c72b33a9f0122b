"""`/v1/`: verdicts, rewards, batches, refusals in one line, faults that are never a score."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx

from forge import Reward, Verdict, reward
from forge.adapters.http import routes
from forge.adapters.subjects import known_problems
from forge.process.ask import open_client
from tests.adapters.kernels import PROBLEM, RIGHT
from tests.adapters.served import TextPool, code, serve

GOOD = {"problem": PROBLEM, "answer": code("a")}


@asynccontextmanager
async def asking(
    tmp_path: Path, pool: TextPool | None = None, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    path = tmp_path / "x.sock"
    async with (
        serve(pool or TextPool(), path, **options),
        open_client(path, timeout_s=20.0) as client,
    ):
        yield client


async def test_a_verdict_and_its_reward(tmp_path):
    async with asking(tmp_path) as client:
        plain = await client.post("/v1/judge", json=GOOD)
        wanted = {"reward": True, "weights": {"correct": 2.0}}
        answer = f"<think>x</think>\n```python\n{code('timed')}```"
        scored = await client.post("/v1/judge", json={**GOOD, "answer": answer, **wanted})
    assert plain.json()["reward"] is None
    found = routes.JudgeReply.model_validate_json(scored.content)
    assert found.verdict.code == code("timed")
    assert found.verdict.candidate_us == 10.0
    assert found.reward == reward(found.verdict, {"correct": 2.0})
    assert set(found.reward.terms) == {"compiled", "correct", "speedup"}
    assert Verdict.from_json(scored.json()["verdict"]) == found.verdict
    assert Reward.from_json(scored.json()["reward"]) == found.reward


async def test_a_problem_has_its_precision_and_entry_point(tmp_path):
    pool = TextPool()
    source = PROBLEM.replace("class Model", "class Net")
    more = {"entry_point": "Net", "precision": "bf16", "timed": False}
    async with asking(tmp_path, pool) as client:
        answer = code("a").replace("ModelNew", "NetNew")
        await client.post("/v1/judge", json={"problem": source, "answer": answer, **more})
    ((problem, _, is_timed),) = pool.asked
    assert (problem.entry_point, problem.precision, is_timed) == ("Net", "bf16", False)


async def test_a_batch_has_its_results_in_order_and_a_fault_is_no_score(tmp_path):
    names = ["a", "wrong", "fault", "b"]
    items = [{"problem": PROBLEM, "answer": code(name)} for name in names]
    async with asking(tmp_path) as client:
        response = await client.post("/v1/judge/batch", json={"items": items, "reward": True})
        assert response.status_code == 200
        results = routes.BatchReply.model_validate_json(response.content).results
        faults = await client.post("/v1/judge/batch", json={"items": items[2:3]})
    assert [one.verdict and one.verdict.status for one in results] == [
        "correct", "wrong", None, "correct",
    ]  # fmt: skip
    assert [one.reward and one.reward.value for one in results] == [0.8, 0.3, None, 0.8]
    assert results[2].error == "infra_error: judge_lost: judge-0 did not answer"
    assert faults.status_code == 503
    assert int(faults.headers["Retry-After"]) > 0


async def test_a_fault_of_the_machine_is_503_and_has_no_verdict(tmp_path):
    async with asking(tmp_path) as client:
        body = {**GOOD, "answer": code("fault"), "reward": True}
        response = await client.post("/v1/judge", json=body)
    assert response.status_code == 503
    assert int(response.headers["Retry-After"]) > 0
    assert routes.ErrorReply.model_validate_json(response.content).error.startswith("infra_error: ")
    assert set(response.json()) == {"error"}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no answer": ({"problem": PROBLEM}, "answer: missing"),
    "a number": ({**GOOD, "answer": 3}, "answer: found a number; a string is needed"),
    "null": ({**GOOD, "problem": None}, "problem: found null; a string is needed"),
    "key": ({**GOOD, "device": "cpu"}, "device: unknown key; known are "),
    "precision": ({**GOOD, "precision": "fp64"}, "precision: found a string; 'fp32', "),
    "bool": ({**GOOD, "reward": 1}, "reward: found a number; true or false is needed"),
    "weights alone": ({**GOOD, "weights": {"correct": 1}}, "weights: without reward there is"),
    "weights": (
        {**GOOD, "reward": True, "weights": {"corect": 1}},
        "weights.corect: unknown key; did you mean correct?",
    ),
    "weight": (
        {**GOOD, "reward": True, "weights": {"speedup_cap": 0.5}},
        "weights.speedup_cap: found 0.5; ",
    ),
    "times": ({**GOOD, "timed": True}, "timed: found true; these judges measure no times"),
    "a path": ({**GOOD, "problem": "/etc/passwd"}, "problem: '/etc/passwd' is no source, and"),
    "no Python": ({**GOOD, "problem": "def f(:\n"}, "problem: problem.py:1: no Python: "),
    "no problem": ({**GOOD, "problem": "x = 1\n"}, "problem: 0 functions and no problem; "),
    "surrogate": ({**GOOD, "problem": "x = 1\n\ud800"}, "problem: found half of a surrogate pair"),
    "empty": ({**GOOD, "problem": ""}, "problem: '' is no source"),
}
REFUSED_BATCHES: dict[str, tuple[dict[str, Any], str]] = {
    "no items": ({"items": []}, "items: found an array; List should have at least 1 item"),
    "one bad": ({"items": [GOOD, {"problem": "x"}]}, "items.1.answer: missing"),
    "own reward": (
        {"items": [{**GOOD, "reward": True}]},
        "items.0.reward: unknown key; known are problem",
    ),
}


async def test_a_request_that_is_none_is_refused_in_one_line(tmp_path):
    pool = TextPool()
    async with asking(tmp_path, pool) as client:
        for path, cases in (("/v1/judge", REFUSED), ("/v1/judge/batch", REFUSED_BATCHES)):
            for name, (body, message) in cases.items():
                headers = {"Content-Type": "application/json"}
                content = json.dumps(body)
                response = await client.post(path, content=content, headers=headers)
                assert response.status_code == 422, name
                error = response.json()["error"]
                assert message in error, name
                assert "\n" not in error, name
                assert len(error) < 300, name
    assert not pool.asked


async def test_another_route_or_method_is_one_line(tmp_path):
    async with asking(tmp_path) as client:
        for path, status in (("/v1/judge", 405), ("/v2/judge", 404)):
            response = await client.get(path)
            assert response.status_code == status
            error = response.json()["error"]
            assert error.startswith(f"GET {path}: ")
            assert "GET /openapi.json has all routes" in error


async def test_a_candidate_may_have_half_a_surrogate_pair(tmp_path):
    async with asking(tmp_path) as client:
        content = json.dumps({**GOOD, "answer": RIGHT + "# \ud800"})
        headers = {"Content-Type": "application/json"}
        response = await client.post("/v1/judge", content=content, headers=headers)
    assert response.status_code == 200
    assert response.json()["verdict"]["reason"] == "syntax_error"


async def test_problems_are_listed_shown_and_judged_by_name(tmp_path):
    folder = tmp_path / "bench" / "level1"
    folder.mkdir(parents=True)
    (folder / "19_ReLU.py").write_text(PROBLEM)
    (folder / "20_Tanh.py").write_text(PROBLEM.replace("relu", "tanh"))
    pool, known = TextPool(), known_problems(tmp_path / "bench")
    async with asking(tmp_path, pool, known=known) as client:
        listed = routes.ProblemNames.model_validate_json((await client.get("/v1/problems")).content)
        assert listed.problems == ["level1/19_ReLU", "level1/20_Tanh"]
        shown = await client.get("/v1/problems/level1/20_Tanh")
        assert "tanh" in routes.ProblemReply.model_validate_json(shown.content).source
        body = {"problem": "level=1 problem_id=19", "answer": code("a")}
        response = await client.post("/v1/judge", json=body)
        assert response.json()["verdict"]["problem_id"] == "level1/19_ReLU"
        for name in ("21", "/etc/passwd", "../x.sock"):
            absent = await client.post("/v1/judge", json={**body, "problem": name})
            assert absent.status_code == 422
            assert "GET /v1/problems lists them" in absent.json()["error"]
        assert (await client.get("/v1/problems/none")).status_code == 404
    assert pool.asked[0][0].source == PROBLEM


async def test_health_says_how_it_judges(tmp_path):
    pool = TextPool()
    async with asking(tmp_path, pool) as client:
        found = routes.HealthReply.model_validate_json((await client.get("/v1/health")).content)
        assert (found.ok, found.policy, found.protocol, found.capacity) == (True, "own", "forge", 8)
        pool.seating.judge_closed(pool.seating.seats[0])
        response = await client.get("/v1/health")
        assert response.status_code == 503
        assert not response.json()["ok"]


async def test_every_route_needs_the_token(tmp_path):
    async with asking(tmp_path, token="secret") as client:
        for path in ("/v1/judge", "/v1/judge/batch", "/v1/problems", "/v1/health", "/openapi.json"):
            method = "POST" if "judge" in path else "GET"
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
                response = await client.request(method, path, json=GOOD, headers=headers)
                assert response.status_code == 401
                assert response.json() == {"error": "a bearer token is needed"}
        headers = {"Authorization": "Bearer secret"}
        assert (await client.post("/v1/judge", json=GOOD, headers=headers)).status_code == 200


async def test_the_openapi_document_describes_every_route_and_refers_to_what_exists(tmp_path):
    async with asking(tmp_path) as client:
        text = (await client.get("/openapi.json")).text
    found = json.loads(text)
    assert set(found["paths"]) == {
        "/v1/judge", "/v1/judge/batch", "/v1/problems", "/v1/problems/{name}", "/v1/health",
    }  # fmt: skip
    schemas = found["components"]["schemas"]
    assert set(re.findall(r"#/components/schemas/(\w+)", text)) <= set(schemas)
    verdict = schemas["Verdict"]["properties"]
    assert set(verdict) == {field.name for field in fields(Verdict)}
    assert all(field.get("description") for name, field in verdict.items() if name != "problem_id")
    assert schemas["JudgeCall"]["required"] == ["problem", "answer"]
    answers = {
        path: operation["responses"]
        for path, operations in found["paths"].items()
        for method, operation in operations.items()
        if method != "parameters"
    }
    assert all({"200", "401", "403"} <= set(each) for each in answers.values())
    can_be_down = {path for path, each in answers.items() if "Retry-After" in str(each.get("503"))}
    assert can_be_down == {"/v1/judge", "/v1/judge/batch", "/v1/health"}
    assert "404" in answers["/v1/problems/{name}"]
