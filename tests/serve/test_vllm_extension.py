"""The parts of the worker extension that need no vLLM: turns on the GPU, layers without
wrappers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from forge.process.gpu_locks import card_turns
from forge.process.shared_weights import share
from forge.serve.vllm.extension import ForgeWorker, bare_layers, in_turns
from tests.shared_memory import UUID, FakeIpc


class Turns:
    """Records entering and leaving."""

    def __init__(self) -> None:
        self.did: list[str] = []

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.did.append("enter")
        try:
            yield
        finally:
            self.did.append("leave")

    def does(self, what: str, *, answer: Any = None) -> Callable[..., Any]:
        def call(*_: Any) -> Any:
            self.did.append(what)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def test_the_two_halves_of_a_step_are_one_turn_that_ends_with_an_idle_gpu() -> None:
    turns = Turns()
    execute, sample = in_turns(
        turns.does("execute"),
        turns.does("sample", answer="tokens"),
        turns=turns,
        drain=turns.does("drain"),
    )
    for _ in range(2):
        assert execute(None) is None
        assert sample(None) == "tokens"
    assert turns.did == ["enter", "execute", "sample", "drain", "leave"] * 2


def test_a_step_without_tokens_is_one_turn() -> None:
    turns = Turns()
    execute, _ = in_turns(
        turns.does("execute", answer="nothing"),
        turns.does("sample"),
        turns=turns,
        drain=turns.does("drain"),
    )
    assert execute(None) == "nothing"
    assert turns.did == ["enter", "execute", "drain", "leave"]


@pytest.mark.parametrize("half", ["execute", "sample"])
def test_a_failed_step_releases_the_gpu(half: str) -> None:
    turns = Turns()
    fault = RuntimeError("out of memory")
    execute, sample = in_turns(
        turns.does("execute", answer=fault if half == "execute" else None),
        turns.does("sample", answer=fault),
        turns=turns,
        drain=turns.does("drain"),
    )
    with pytest.raises(RuntimeError):
        sample(execute(None))
    assert turns.did.count("enter") == turns.did.count("leave") == 1


def test_moving_adapters_or_weights_is_a_turn_that_ends_with_an_idle_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = Turns()

    class Worker:
        """Call a method like vLLM 0.24: by name, on the instance."""

        execute_model = sample_tokens = staticmethod(turns.does("step"))

        def add_lora(self, lora_request: str) -> bool:
            turns.did.append(f"add {lora_request}")
            return True

        def sleep(self, level: int = 1) -> None:
            turns.did.append(f"sleep {level}")

        def wake_up(self, tags: list[str] | None = None) -> None:
            turns.did.append(f"wake {tags}")
            raise RuntimeError("out of memory")

    class Extended(Worker, ForgeWorker):
        """A worker class like vLLM's."""

    monkeypatch.setattr("forge.serve.vllm.extension.die_with_parent", lambda _parent: None)
    monkeypatch.setattr("forge.serve.vllm.extension.card_turns", lambda _uuids: turns)
    monkeypatch.setattr(torch.cuda, "synchronize", turns.does("drain"))
    worker: Any = Extended()
    worker.forge_start(["GPU-0"])
    assert worker.add_lora("adapter") is True
    worker.sleep(level=1)
    with pytest.raises(RuntimeError):
        worker.wake_up(tags=None)
    did = ("add adapter", "sleep 1", "wake None")
    assert turns.did == [step for what in did for step in ("enter", what, "drain", "leave")]
    turns.did.clear()
    alone: Any = Extended()
    alone.forge_start([])
    alone.sleep()
    assert turns.did == ["sleep 1"], "a GPU that is not shared needs no turns"


class BaseLayerWithLoRA(nn.Module):
    def __init__(self, base_layer: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.lora_a = nn.Parameter(torch.zeros(2))


class Wrapper(BaseLayerWithLoRA):
    """A subclass of it."""


def test_a_checkpoints_names_fit_without_the_wrappers() -> None:
    inner = nn.Sequential(nn.Linear(3, 3), Wrapper(nn.Linear(3, 3)))
    model = nn.ModuleDict({"block": inner, "head": Wrapper(nn.Sequential(Wrapper(nn.Tanh())))})
    before = [(name, id(module)) for name, module in model.named_modules()]
    with bare_layers(model):
        names = {name for name, _ in model.named_parameters()}
        assert {"block.0.weight", "block.1.weight"} <= names
        assert not [name for name in names if name.startswith("block") and "base_layer" in name]
    assert [(name, id(module)) for name, module in model.named_modules()] == before
    with pytest.raises(RuntimeError), bare_layers(model):
        raise RuntimeError
    assert [(name, id(module)) for name, module in model.named_modules()] == before


def test_the_extension_replaces_no_method_of_vllm() -> None:
    """vLLM refuses an extension with names of its own worker."""
    added = [name for name in dir(ForgeWorker) if not name.startswith("__")]
    assert added
    assert all(name.startswith("forge_") for name in added)


def test_turns_hold_every_named_gpu_and_nothing_without_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did: list[str] = []

    class FakeLease:
        def __init__(self, uuid: str) -> None:
            self.uuid = uuid

        @contextmanager
        def shared(self, *, timeout_s: float) -> Iterator[None]:
            assert timeout_s > 0
            did.append(f"+{self.uuid}")
            yield
            did.append(f"-{self.uuid}")

    monkeypatch.setattr("forge.process.gpu_locks.GpuLease", FakeLease)
    with card_turns([])():
        assert did == []
    with card_turns(["b", "a"])():
        assert did == ["+a", "+b"], "always in the same order"
    assert did == ["+a", "+b", "-b", "-a"]


def test_weights_of_a_trainer_are_loaded_in_a_turn_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ipc = FakeIpc(monkeypatch)
    turns, model = Turns(), nn.Linear(3, 2, bias=False)

    def reload_weights(*, weights_iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        turns.did.append("reload")
        model.load_state_dict(dict(weights_iterator))

    monkeypatch.setattr(torch.cuda, "synchronize", turns.does("drain"))
    taken: list[list[str]] = []
    monkeypatch.setattr(
        "forge.serve.vllm.extension.card_turns", lambda uuids: taken.append(sorted(uuids)) or turns
    )
    worker = ForgeWorker()
    worker.forge_gpus = frozenset({"GPU-own"})
    worker.model_runner = SimpleNamespace(get_model=lambda: model, reload_weights=reload_weights)
    weights = {"weight": torch.randn(2, 3)}
    share(tmp_path / "grpo-1", weights)
    worker.forge_copy(str(tmp_path / "grpo-1"))
    assert turns.did == ["enter", "reload", "drain", "leave"]
    assert taken == [[f"GPU-{UUID}", "GPU-own"]], "no timing on the trainer's GPU either"
    assert torch.equal(model.weight, weights["weight"])
    weights.clear()
    assert ipc.tensors[0]() is None
