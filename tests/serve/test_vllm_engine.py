"""The engine around vLLM: its calls, their order, and its results. vLLM is a fake
here; the same engine on a GPU is in test_vllm_gpu.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import numpy as np
import pytest
import torch

from forge.errors import ConfigError, MachineError
from forge.process.shared_weights import share
from forge.records import Finish
from forge.serve.port import Chunk, Request
from forge.serve.vllm.__main__ import make_app
from forge.serve.vllm.engine import (
    MAX_LORAS,
    Counters,
    Vllm,
    VllmEngine,
    checkpoint_shapes,
    count_no_tokens,
    read_settings,
)
from tests.serve.conftest import Reference
from tests.serve.observed import until
from tests.shared_memory import FakeIpc


class DeadError(Exception):
    """vLLM's error when EngineCore is gone."""


class FakeQueue:
    def __init__(self, llm: FakeLlm, request_id: str, prompt: Any, params: dict[str, Any]) -> None:
        self.llm, self.request_id, self.prompt, self.params = llm, request_id, prompt, params
        self.lora: Any = None
        self.made = 0
        self.outputs: asyncio.Queue[Any] = asyncio.Queue()

    def make(self, count: int) -> None:
        """Add tokens 0, 1, 2, ..., each with the log probability -(token + 1) / 10."""
        tokens = list(range(self.made, self.made + count))
        self.made += count
        is_last = self.made >= self.params["max_tokens"]
        if self.params["output_kind"] == "FINAL_ONLY":
            if not is_last:
                return
            tokens = list(range(self.made))
        values = [-(token + 1) / 10 for token in tokens]
        flat = SimpleNamespace(start_indices=range(len(values)), logprobs=values)
        output = SimpleNamespace(
            token_ids=tokens, logprobs=flat, finish_reason="length" if is_last else None
        )
        prompt_logprobs = [None] + [
            {token: SimpleNamespace(logprob=-token / 100)} for token in self.prompt[1:]
        ]
        self.outputs.put_nowait(
            SimpleNamespace(outputs=[output], finished=is_last, prompt_logprobs=prompt_logprobs)
        )
        if is_last:
            del self.llm.output_processor.request_states[self.request_id]

    async def get(self) -> Any:
        out = await self.outputs.get()
        if isinstance(out, Exception):
            raise out
        return out


class FakeLlm:
    """AsyncLLM: keeps requests until a test adds their tokens."""

    errored = False

    def __init__(self, *, is_at_once: bool = False) -> None:
        self.queues: list[FakeQueue] = []
        self.calls: list[Any] = []
        self.output_processor = SimpleNamespace(request_states={})
        self.is_at_once = is_at_once
        self.failure: Exception | None = None

    async def add_request(
        self, request_id: str, prompt: Any, params: Any, *, lora_request: Any = None
    ) -> FakeQueue:
        await anyio.lowlevel.checkpoint()
        queue = FakeQueue(self, request_id, prompt, params)
        queue.lora = lora_request
        detokenizer = SimpleNamespace(num_output_tokens=lambda: queue.made)
        self.output_processor.request_states[request_id] = SimpleNamespace(detokenizer=detokenizer)
        self.queues.append(queue)
        if self.is_at_once:
            queue.make(params["max_tokens"])
        return queue

    async def abort(self, request_id: str, *, internal: bool) -> None:
        assert internal
        await anyio.lowlevel.checkpoint()
        self.calls.append(("abort", request_id))

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        self.calls.append((method, *args))
        if self.failure is not None and method == "forge_reload":
            raise self.failure
        return [1000]

    async def add_lora(self, lora: Any) -> bool:
        if self.failure is not None:
            raise self.failure
        self.calls.append(("add_lora", lora.lora_path))
        return True

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        self.calls.append(("pause", mode, clear_cache))

    async def resume_generation(self) -> None:
        self.calls.append("resume")

    async def sleep(self, *, level: int) -> None:
        self.calls.append(("sleep", level))

    async def wake_up(self) -> None:
        self.calls.append("wake")

    def shutdown(self, *, timeout: float) -> None:
        assert timeout > 0
        self.calls.append("shutdown")


def config_of(reference: Reference, **fields: Any) -> dict[str, Any]:
    asked = {"context_tokens": 64, "slots": 8, "precision": "fast", **fields}
    return {"model_dir": str(reference.path), **asked}


def make_engine(reference: Reference, llm: FakeLlm, **fields: Any) -> VllmEngine:
    config = config_of(reference, max_lora_rank=8, **fields)
    return VllmEngine(make_vllm(llm), read_settings(config))


def make_vllm(llm: FakeLlm) -> Vllm:
    return Vllm(
        llm=llm,
        make_sampling=dict,
        make_lora=SimpleNamespace,
        make_prompt=list,
        dead_error=DeadError,
        num_vocab=512,
        counters=Counters(running=2, kv_use=0.5),
    )


def request(*, n: int = 1, max_tokens: int = 6, seed: int = 1) -> Request:
    return Request(prompt=np.arange(5), n=n, max_tokens=max_tokens, temperature=1.0, seed=seed)


async def refused(engine: VllmEngine, asked: Request, said: list[str]) -> None:
    with pytest.raises((ConfigError, MachineError)) as caught:
        await engine.generate(asked)
    said.append(str(caught.value))


async def test_samples_have_their_log_probabilities_and_version(tied: Reference) -> None:
    llm = FakeLlm(is_at_once=True)
    engine, one = make_engine(tied, llm, version=3), request(n=2)
    await engine.generate(one)
    for sample in one.samples:
        assert sample.tokens.tolist() == [0, 1, 2, 3, 4, 5]
        assert sample.logprobs == pytest.approx([-0.1, -0.2, -0.3, -0.4, -0.5, -0.6])
        assert sample.versions.tolist() == [3] * 6
        assert sample.finish is Finish.LENGTH
    assert len({queue.params["seed"] for queue in llm.queues}) == 2
    status = engine.status()
    assert (status.running, status.waiting, status.kv_use) == (0, 0, 0.0)
    assert (status.generated_tokens, status.prompt_tokens) == (12, 5)


async def test_a_stream_gets_each_step(tied: Reference) -> None:
    llm, heard = FakeLlm(), list[Chunk]()
    engine, one = make_engine(tied, llm), request()
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: engine.generate(one, on_chunk=heard.append))
        await until(lambda: len(llm.queues) == 1)
        llm.queues[0].make(2)
        llm.queues[0].make(4)
    assert [chunk.token_ids for chunk in heard] == [[0, 1], [2, 3, 4, 5]]
    assert [chunk.finish for chunk in heard] == [None, Finish.LENGTH]
    assert one.samples[0].logprobs.size == 6


async def test_a_cancelled_request_is_aborted_with_all_its_samples(tied: Reference) -> None:
    llm = FakeLlm()
    engine = make_engine(tied, llm)
    async with anyio.create_task_group() as group:
        group.start_soon(engine.generate, request(n=3))
        await until(lambda: len(llm.queues) == 3)
        assert (engine.status().running, engine.status().waiting) == (2, 1)
        group.cancel_scope.cancel()
    assert {call[1] for call in llm.calls} == {queue.request_id for queue in llm.queues}
    assert len(llm.calls) == 3
    assert engine.status().waiting == 0


async def test_a_refusal_of_vllm_is_one_line_and_its_siblings_are_aborted(tied: Reference) -> None:
    llm = FakeLlm()
    engine = make_engine(tied, llm)
    said = list[str]()
    async with anyio.create_task_group() as group:
        group.start_soon(refused, engine, request(n=2), said)
        await until(lambda: len(llm.queues) == 2)
        llm.queues[0].outputs.put_nowait(ValueError("too\nlong"))
    assert said == ["vllm refused the request: too long"]
    assert ("abort", llm.queues[1].request_id) in llm.calls


async def test_log_probabilities_that_are_not_finite_fail_the_request(tied: Reference) -> None:
    llm, said = FakeLlm(), list[str]()
    engine = make_engine(tied, llm)
    flat = SimpleNamespace(start_indices=[0], logprobs=[float("nan")])
    output = SimpleNamespace(token_ids=[1], logprobs=flat, finish_reason="length")
    async with anyio.create_task_group() as group:
        group.start_soon(refused, engine, request(), said)
        await until(lambda: len(llm.queues) == 1)
        llm.queues[0].outputs.put_nowait(SimpleNamespace(outputs=[output], finished=True))
    assert said == ["logits were not finite at policy version 0"]


async def test_a_running_sample_ends_on_its_first_adapter(
    tied: Reference, make_adapter: Callable[..., Reference]
) -> None:
    llm, path = FakeLlm(), make_adapter(tied, r=4).path
    engine, old, new = make_engine(tied, llm), request(), request()
    await engine.load_weights(path, version=1)
    async with anyio.create_task_group() as group:
        group.start_soon(engine.generate, old)
        await until(lambda: len(llm.queues) == 1)
        await engine.load_weights(path, version=2)
        group.start_soon(engine.generate, new)
        await until(lambda: len(llm.queues) == 2)
        for queue in llm.queues:
            queue.make(6)
    first, second = (queue.lora.lora_int_id for queue in llm.queues)
    assert first != second, "the same id would reuse the old KV"
    assert set(old.samples[0].versions) == {1}
    assert set(new.samples[0].versions) == {2}
    assert "pause" not in str(llm.calls), "an adapter pauses nothing"


async def test_a_new_adapter_waits_for_room_beside_those_in_use(
    tied: Reference, make_adapter: Callable[..., Reference]
) -> None:
    llm, path = FakeLlm(), make_adapter(tied, r=4).path
    engine = make_engine(tied, llm)
    async with anyio.create_task_group() as group:
        for version in range(MAX_LORAS):
            await engine.load_weights(path, version=version)
            group.start_soon(engine.generate, request())
            await until(lambda: len(llm.queues) == version + 1)  # noqa: B023
        group.start_soon(lambda: engine.load_weights(path, version=9))
        await anyio.sleep(0.02)
        assert engine.status().version == MAX_LORAS - 1
        llm.queues[1].make(6)
        await until(lambda: engine.status().version == 9)
        for queue in llm.queues[:1] + llm.queues[2:]:
            queue.make(6)


async def test_tokens_before_and_after_full_weights_have_their_versions(
    tied: Reference, newer: Reference
) -> None:
    llm = FakeLlm()
    engine, one, late = make_engine(tied, llm), request(), request()
    async with anyio.create_task_group() as group:
        group.start_soon(engine.generate, one)
        await until(lambda: len(llm.queues) == 1)
        llm.queues[0].make(2)
        await engine.load_weights(newer.path, version=4)
        llm.queues[0].make(1)
        await engine.load_weights(tied.path, version=5)
        llm.queues[0].make(3)
        group.start_soon(engine.generate, late)
        await until(lambda: len(llm.queues) == 2)
        llm.queues[1].make(6)
    assert one.samples[0].versions.tolist() == [0, 0, 4, 5, 5, 5]
    assert late.samples[0].versions.tolist() == [5] * 6
    first = [("pause", "keep", True), ("forge_reload", str(newer.path)), "resume"]
    assert llm.calls[:3] == first


async def test_weights_in_the_memory_of_a_trainer_are_checked_and_copied_there(
    tied: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeIpc(monkeypatch)
    llm = FakeLlm()
    engine = make_engine(tied, llm)
    weights = {n: torch.zeros(shape) for n, shape in checkpoint_shapes(tied.path).items()}
    share(tmp_path / "grpo-1", weights)
    await engine.load_weights(tmp_path / "grpo-1", version=1)
    copied = [("pause", "keep", True), ("forge_copy", str(tmp_path / "grpo-1")), "resume"]
    assert llm.calls == copied
    assert engine.status().version == 1
    name, tensor = weights.popitem()
    for wrong in ({}, {name: tensor[:-1].clone()}):
        path = tmp_path / f"grpo-{2 + len(wrong)}"
        share(path, weights | wrong)
        with pytest.raises(ConfigError, match=name):
            await engine.load_weights(path, version=2)
    assert llm.calls == copied


async def test_full_weights_end_an_adapter(
    tied: Reference, newer: Reference, make_adapter: Callable[..., Reference]
) -> None:
    llm = FakeLlm(is_at_once=True)
    engine = make_engine(tied, llm)
    await engine.load_weights(make_adapter(tied, r=4).path, version=1)
    await engine.load_weights(newer.path, version=2)
    await engine.generate(request())
    assert llm.queues[0].lora is None


async def test_half_written_weights_answer_nothing_until_the_next_load(
    tied: Reference, newer: Reference
) -> None:
    llm = FakeLlm(is_at_once=True)
    engine, one = make_engine(tied, llm), request()
    llm.failure = RuntimeError("out of\nmemory")
    with pytest.raises(MachineError, match="failed to load it: out of memory"):
        await engine.load_weights(newer.path, version=1)
    assert "resume" not in llm.calls
    async with anyio.create_task_group() as group:
        group.start_soon(engine.generate, one)
        await anyio.sleep(0.02)
        assert not llm.queues
        llm.failure = None
        await engine.load_weights(tied.path, version=0)
    assert one.samples[0].finish is Finish.LENGTH


async def test_a_refused_adapter_changes_nothing(
    tied: Reference, make_adapter: Callable[..., Reference]
) -> None:
    llm = FakeLlm(is_at_once=True)
    engine = make_engine(tied, llm)
    llm.failure = Exception("no such module")
    with pytest.raises(ConfigError, match="cannot serve the adapter: no such module"):
        await engine.load_weights(make_adapter(tied, r=4).path, version=1)
    await engine.generate(request())
    assert llm.queues[0].lora is None
    assert engine.status().version == 0


async def test_a_score_covers_the_tokens_of_the_completion_only(tied: Reference) -> None:
    llm = FakeLlm(is_at_once=True)
    engine = make_engine(tied, llm)
    found = await engine.score(np.array([7, 8, 9]), np.array([10, 20]))
    assert found == [-0.1, -0.2]
    assert llm.queues[0].params["prompt_logprobs"] == 0
    with pytest.raises(ConfigError, match="allowed is 64 together"):
        await engine.score(np.arange(60), np.arange(5))


async def test_a_dead_core_ends_the_process(
    tied: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr("forge.serve.vllm.engine.os._exit", codes.append)
    llm = FakeLlm()
    engine = make_engine(tied, llm)
    async with anyio.create_task_group() as group:
        group.start_soon(engine.generate, request(n=2))
        await until(lambda: len(llm.queues) == 2)
        llm.queues[0].outputs.put_nowait(DeadError())
    assert codes == [70]
    llm.errored = True
    engine.status()
    assert codes == [70, 70]


async def test_sleep_and_wake_call_vllm(tied: Reference) -> None:
    llm = FakeLlm()
    shared, own = (make_engine(tied, llm, shared_gpus=gpus) for gpus in (["GPU-a"], []))
    assert "sleep" in shared.features
    assert "sleep" not in own.features
    await shared.start()
    assert llm.calls[0] == ("forge_start", ["GPU-a"])
    await shared.sleep()
    await shared.wake()
    assert [call for call in llm.calls if "forge" not in call[0]] == [("sleep", 1), "wake"]


async def test_the_child_answers_once_the_engine_is_ready_and_stops_it_with_the_server(
    tied: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = FakeLlm(is_at_once=True)
    config = config_of(tied, stop_token_ids=[7])
    vllm = make_vllm(llm)
    monkeypatch.setattr("forge.serve.vllm.__main__.open_vllm", lambda _settings: vllm)
    monkeypatch.setattr("forge.serve.vllm.__main__.gc.freeze", lambda: None)
    child = make_app(config, read_settings(config))
    async with child.router.lifespan_context(child):
        assert llm.calls == [("forge_start", [])]
        transport = httpx.ASGITransport(child)
        async with httpx.AsyncClient(transport=transport, base_url="http://forge") as http:
            said = (await http.get("/health")).json()
            answer = await http.post("/v1/completions", json={"prompt": [1], "max_tokens": 3})
    assert (said["engine"], said["ok"]) == ("vllm", True)
    assert answer.json()["choices"][0]["token_ids"] == [0, 1, 2]
    assert llm.queues[0].params["stop_token_ids"] == [7]
    assert llm.calls[-1] == "shutdown"


async def test_a_vllm_that_does_not_start_logs_the_reason_in_one_line(
    tied: Reference, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Ended(BaseException):
        """Replaces the end of this process."""

    def end(code: int) -> None:
        raise Ended(code)

    def fail(_settings: object) -> None:
        raise ValueError("Free memory on device\n(1 GiB) is too little")

    monkeypatch.setattr("forge.serve.vllm.__main__.open_vllm", fail)
    monkeypatch.setattr("forge.serve.vllm.__main__.os._exit", end)
    config = config_of(tied)
    child = make_app(config, read_settings(config))
    with pytest.raises(Ended, match="3"):
        await child.router.lifespan_context(child).__aenter__()
    assert caplog.messages == ["vLLM did not start: Free memory on device (1 GiB) is too little"]


def test_disabling_token_statistics_lets_the_output_handler_start_again() -> None:
    cancelled: list[bool] = []
    handler = SimpleNamespace(cancel=lambda: cancelled.append(True))
    states = SimpleNamespace(log_stats=True)
    llm = SimpleNamespace(
        output_handler=handler,
        log_stats=True,
        output_processor=SimpleNamespace(log_stats=True, lora_states=states),
    )
    count_no_tokens(llm)
    assert cancelled == [True]
    assert llm.output_handler is None
    assert [llm.log_stats, llm.output_processor.log_stats, states.log_stats] == [False] * 3
