"""An EnginePort over vLLM's AsyncLLM: samples, adapters, weights, sleep.

AsyncLLM passes requests to its own process (EngineCore), which owns the GPU.

    generate ─▶ one vLLM request for each sample, with the adapter of its start ─▶ EngineCore
    load_weights ─▶ adapter: for new samples; running samples end on the old one
                 └▶ full: pause, write weights, drop KV, continue the running samples

Promises: an adapter's id is never used twice (vLLM's prefix cache is keyed by it); every token has
its policy version; when EngineCore is gone, this process ends immediately, so that waiting clients
use another replica.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from forge.errors import ConfigError, ForgeError, MachineError
from forge.process.busy import BusyClock
from forge.process.shared_weights import is_shared, shared_shapes
from forge.records import Finish
from forge.serve import port
from forge.serve.checkpoint_files import (
    ADAPTER_CONFIG,
    check_names,
    holds_adapter,
    list_tensors,
    one_line,
    read_json,
    read_lora_config,
    weight_files,
)
from forge.serve.engine.worker import FAULT_EXIT
from forge.serve.port import Chunk, EngineSample, EngineStatus, Request, check_score
from forge.serve.vllm.library import Vllm
from forge.serve.vllm.settings import MAX_LORAS, VllmSettings, sampling_arguments, scoring_arguments

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class Flight:
    """A sample that vLLM generates."""

    sample: EngineSample
    lora: Any
    """The sample's LoRARequest, or None."""
    version: int
    """Policy version of its newest tokens."""
    queue: Any = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of (number of tokens until a change of weights, version before it), in order."""

    def versions(self) -> np.ndarray:
        out = np.full(len(self.tokens), self.version, np.int64)
        for end, version in reversed(self.marks):
            out[:end] = version
        return out


class VllmEngine:
    """A served model."""

    name = "vllm"

    def __init__(self, vllm: Vllm, settings: VllmSettings) -> None:
        self._vllm, self._llm = vllm, vllm.llm
        self._settings = settings
        self._shapes = checkpoint_shapes(settings.model_dir)
        self._version = settings.version
        self._lora: Any = None
        self._ids = count(1)
        self._flights: set[Flight] = set()
        self._landed = anyio.Event()
        """Set, and replaced, when a sample ends."""
        self._resumed: anyio.Event | None = None
        """New samples wait for it while weights are written."""
        self._loading = anyio.Lock()
        self._busy = BusyClock()
        self._generated_tokens = self._prompt_tokens = 0
        features = {port.PREFIX_CACHE}
        features |= {port.OLD_ADAPTERS} if settings.max_lora_rank else set()
        self.features = frozenset(features | {port.SLEEP} if settings.can_sleep else features)

    async def start(self) -> None:
        """Call it once, before anything else."""
        await self._llm.collective_rpc("forge_start", args=(list(self._settings.shared_gpus),))

    async def check(self, request: Request) -> None:
        request.check(num_vocab=self._vllm.num_vocab, context_tokens=self._settings.context_tokens)

    async def generate(
        self, request: Request, *, on_chunk: Callable[[Chunk], None] | None = None
    ) -> None:
        """See EnginePort. Each sample is one vLLM request; vLLM's prefix cache evaluates their
        prompt once."""
        await self.check(request)
        request.samples = [EngineSample(request, index) for index in range(request.n)]
        prompt, failures = request.prompt.tolist(), list[ForgeError]()

        async def one(sample: EngineSample) -> None:
            try:
                await self._sample(sample, prompt, on_chunk)
            except ForgeError as error:
                failures.append(error)
                group.cancel_scope.cancel()

        with self._busy.running(), self._dying():
            async with anyio.create_task_group() as group:
                for sample in request.samples:
                    group.start_soon(one, sample)
        if failures:
            raise failures[0]
        self._prompt_tokens += len(prompt)
        self._generated_tokens += sum(sample.tokens.size for sample in request.samples)

    async def _sample(
        self, sample: EngineSample, prompt: list[int], on_chunk: Callable[[Chunk], None] | None
    ) -> None:
        while self._resumed is not None:
            await self._resumed.wait()
        flight = Flight(sample=sample, lora=self._lora, version=self._version)
        arguments = sampling_arguments(sample.request, sample.index)
        output_kind = "FINAL_ONLY" if on_chunk is None else "DELTA"
        async with self._flying(flight, prompt, {**arguments, "output_kind": output_kind}):
            while sample.finish is None:
                output = await flight.queue.get()
                self._take(flight, output.outputs[0], is_last=output.finished)
                if on_chunk is not None:
                    new = list(output.outputs[0].token_ids)
                    on_chunk(Chunk(index=sample.index, token_ids=new, finish=sample.finish))
        if not np.isfinite(sample.logprobs).all():
            raise MachineError(f"logits were not finite at policy version {flight.version}")

    @asynccontextmanager
    async def _flying(
        self, flight: Flight, prompt: list[int], arguments: dict[str, Any]
    ) -> AsyncIterator[None]:
        """A request in vLLM, inside the context. If the body is cancelled, the request is
        aborted."""
        self._flights.add(flight)
        try:
            # Not cancelled: vLLM cannot abort a request that is half added.
            with anyio.CancelScope(shield=True):
                flight.queue = await self._llm.add_request(
                    f"forge-{next(self._ids)}",
                    self._vllm.make_prompt(prompt),
                    self._vllm.make_sampling(**arguments),
                    lora_request=flight.lora,
                )
            yield
        except ValueError as error:
            raise ConfigError(f"vllm refused the request: {one_line(error)}") from error
        except anyio.get_cancelled_exc_class():
            if flight.queue is not None:
                with anyio.CancelScope(shield=True):
                    await self._llm.abort(flight.queue.request_id, internal=True)
            raise
        finally:
            self._flights.remove(flight)
            self._landed.set()
            self._landed = anyio.Event()

    def _take(self, flight: Flight, output: Any, *, is_last: bool) -> None:
        """Add an output; the last one completes the sample."""
        flight.tokens += list(output.token_ids)
        flight.logprobs += sampled_logprobs(output.logprobs)
        if not is_last:
            return
        sample = flight.sample
        sample.tokens = np.array(flight.tokens, np.int32)
        sample.logprobs = np.array(flight.logprobs, np.float32)
        sample.versions = flight.versions()
        sample.finish = Finish(output.finish_reason)
        if sample.finish is Finish.ABORT or not flight.tokens:
            raise MachineError("vllm gave the request up")

    @contextmanager
    def _dying(self) -> Iterator[None]:
        """End this process if EngineCore is gone."""
        try:
            yield
        except* self._vllm.dead_error:
            die()

    async def score(self, prompt: np.ndarray, completion: np.ndarray) -> list[float]:
        """See EnginePort. vLLM scores both as one prompt."""
        num_vocab, context_tokens = self._vllm.num_vocab, self._settings.context_tokens
        check_score(prompt, completion, num_vocab=num_vocab, context_tokens=context_tokens)
        tokens = [*prompt.tolist(), *completion.tolist()]
        request = Request(prompt=np.array(tokens), n=1, max_tokens=1, temperature=0.0, seed=0)
        flight = Flight(sample=EngineSample(request, 0), lora=self._lora, version=self._version)
        arguments = {**scoring_arguments(), "output_kind": "FINAL_ONLY"}
        with self._busy.running(), self._dying():
            async with self._flying(flight, tokens, arguments):
                output = await flight.queue.get()
        rows = output.prompt_logprobs[prompt.size :]
        return [row[token].logprob for row, token in zip(rows, completion.tolist(), strict=True)]

    async def load_weights(self, path: Path, *, version: int) -> None:
        """See EnginePort. Raises MachineError if vLLM fails with weights half written; it then
        answers nothing until other weights are loaded."""
        rank = self._settings.max_lora_rank
        check_weights(path, served=self._shapes, max_lora_rank=rank)
        async with self._loading:
            with self._dying():
                if holds_adapter(path):
                    await self._load_adapter(path, version)
                else:
                    await self._load_full(path, version)

    async def _load_adapter(self, path: Path, version: int) -> None:
        while len(self._loras()) >= MAX_LORAS:
            await self._landed.wait()
        number = next(self._ids)
        lora = self._vllm.make_lora(
            lora_name=f"v{version}-{number}", lora_int_id=number, lora_path=str(path)
        )
        try:
            await self._llm.add_lora(lora)
        except self._vllm.dead_error:
            raise
        except Exception as error:  # any error of a worker arrives as a bare Exception
            raise ConfigError(
                f"{path}: vllm cannot serve the adapter: {one_line(error)}"
            ) from error
        self._lora, self._version = lora, version

    def _loras(self) -> set[int]:
        """Ids of the adapters in use: the newest, and those of unfinished samples."""
        needed = [flight.lora for flight in self._flights] + [self._lora]
        return {lora.lora_int_id for lora in needed if lora is not None}

    async def _load_full(self, path: Path, version: int) -> None:
        """Load a checkpoint. Running samples are evaluated again under the new weights and
        continue."""
        self._resumed = self._resumed or anyio.Event()
        await self._llm.pause_generation(mode="keep", clear_cache=True)
        for flight in self._flights:
            flight.marks.append((self._num_tokens(flight), flight.version))
            flight.version = version
        try:
            method = "forge_copy" if is_shared(path) else "forge_reload"
            await self._llm.collective_rpc(method, args=(str(path),))
        except self._vllm.dead_error:
            raise
        except Exception as error:  # as above
            raise MachineError(f"{path}: vllm failed to load it: {one_line(error)}") from error
        self._lora, self._version = None, version
        await self._llm.resume_generation()
        self._resumed.set()
        self._resumed = None

    def _num_tokens(self, flight: Flight) -> int:
        """Number of tokens that vLLM has generated for a sample, delivered or not."""
        if flight.queue is None:
            return 0
        state = self._llm.output_processor.request_states.get(flight.queue.request_id)
        if state is None:  # it is complete
            return flight.sample.request.max_tokens
        return state.detokenizer.num_output_tokens()

    async def sleep(self) -> None:
        with self._dying():
            await self._llm.sleep(level=1)

    async def wake(self) -> None:
        with self._dying():
            await self._llm.wake_up()

    def status(self) -> EngineStatus:
        """Numbers of the engine. Tokens count when their request ends."""
        if self._llm.errored:
            die()
        counters, unfinished = self._vllm.counters, len(self._flights)
        running = min(counters.running, unfinished)
        return EngineStatus(
            version=self._version,
            running=running,
            waiting=unfinished - running,
            kv_use=counters.kv_use if unfinished else 0.0,
            generated_tokens=self._generated_tokens,
            prompt_tokens=self._prompt_tokens,
            step_s=self._busy.busy_s,
        )


def die() -> None:
    """End this process: EngineCore is gone, and all requests with it."""
    logger.error("vLLM's EngineCore died; this process ends and is started again")
    os._exit(FAULT_EXIT)


def sampled_logprobs(found: Any) -> list[float]:
    """Log probability of the sampled token at each position. It is the first entry, in vLLM's flat
    form and in its tables by position."""
    if hasattr(found, "start_indices"):
        return [found.logprobs[start] for start in found.start_indices]
    return [next(iter(table.values())).logprob for table in found]


Shapes = dict[str, tuple[int, ...]]


def checkpoint_shapes(path: Path) -> Shapes:
    """Shapes of a checkpoint's tensors by name, read from the headers of its files. A head that is
    the embedding is left out. Raises ConfigError."""
    if is_shared(path):
        return shared_shapes(path)
    shapes: Shapes = {}
    for file in weight_files(path):
        shapes.update({name: tensor.shape for name, tensor in list_tensors(file).items()})
    if read_json(path / "config.json").get("tie_word_embeddings"):
        shapes.pop("lm_head.weight", None)
    return shapes


def check_weights(path: Path, *, served: Mapping[str, tuple[int, ...]], max_lora_rank: int) -> None:
    if holds_adapter(path):
        return _check_adapter(path, max_lora_rank=max_lora_rank)
    found = checkpoint_shapes(path)
    check_names(path, found=found.keys(), needed=served.keys())
    for name, shape in found.items():
        if shape != served[name]:
            raise ConfigError(f"{path}: {name} is {list(shape)}, {list(served[name])} is served")


def _check_adapter(path: Path, *, max_lora_rank: int) -> None:
    where = path / ADAPTER_CONFIG
    if not max_lora_rank:
        raise ConfigError(f"{path}: the engine was started without room for adapters")
    config = read_lora_config(path)
    if type(rank := config.get("r")) is not int:
        raise ConfigError(f"{where}: r is {rank!r}; allowed is an integer")
    if rank > max_lora_rank:
        raise ConfigError(f"{where}: rank {rank}; the engine has room for {max_lora_rank}")
    for key in ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern"):
        if config.get(key):
            raise ConfigError(f"{where}: {key} is {config[key]!r}; the vllm engine needs it off")
    if not list_tensors(path / "adapter_model.safetensors"):
        raise ConfigError(f"{path}: the adapter holds no tensors")
