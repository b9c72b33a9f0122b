"""An EnginePort over vLLM's AsyncLLM: samples, adapters, weights, sleep.

AsyncLLM passes requests to its own process (EngineCore), which owns the GPU. Names are those of
vLLM 0.24, which `open_vllm` alone imports.

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
from forge.process.gpu_locks import card_turns
from forge.process.shared_weights import is_shared, shared_shapes
from forge.records import Finish
from forge.serve import checkpoint_files, port
from forge.serve.engine.rows import sample_seed
from forge.serve.engine.worker import FAULT_EXIT
from forge.serve.port import Chunk, EngineSample, EngineStatus, Request, check_score


@dataclass(slots=True)
class Counters:
    """Numbers of vLLM's scheduler after a step; updated by its listener."""

    running: int = 0
    kv_use: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm:
    """The parts of the library that forge uses: an engine, and constructors of its arguments."""

    llm: Any
    make_sampling: Callable[..., Any]
    """SamplingParams, with its output_kind by name."""
    make_lora: Callable[..., Any]
    make_prompt: Callable[[list[int]], Any]
    dead_error: type[Exception]
    num_vocab: int
    counters: Counters = field(default_factory=Counters)


def open_vllm(settings: VllmSettings) -> Vllm:
    """Start EngineCore: a minute with CUDA graphs, less without. Raises vLLM's errors."""
    for name, value in environment(settings).items():
        os.environ.setdefault(name, value)
    from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
    from vllm.inputs.engine import tokens_input  # pyright: ignore[reportMissingImports]
    from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]
    from vllm.sampling_params import RequestOutputKind, SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]
    from vllm.v1.engine.exceptions import EngineDeadError  # pyright: ignore[reportMissingImports]

    def make_sampling(*, output_kind: str, **arguments: Any) -> Any:
        return SamplingParams(output_kind=RequestOutputKind[output_kind], **arguments)

    counters = Counters()
    # Timing waits until the weights are loaded and the graphs are captured.
    with card_turns(settings.shared_gpus)():
        llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(**engine_arguments(settings)), stat_loggers=[_listener(counters)]
        )
    count_no_tokens(llm)
    return Vllm(
        llm=llm,
        make_sampling=make_sampling,
        make_lora=LoRARequest,
        make_prompt=tokens_input,
        dead_error=EngineDeadError,
        num_vocab=llm.model_config.get_vocab_size(),
        counters=counters,
    )


def count_no_tokens(llm: Any) -> None:
    """Keep vLLM's scheduler statistics and disable those of each token: with log probabilities,
    Python code for each token in this process limits the tokens per second.

    AsyncLLM starts its output handler again with the first request, and then reads `log_stats`."""
    llm.output_handler.cancel()
    llm.output_handler = None
    llm.log_stats = llm.output_processor.log_stats = False
    llm.output_processor.lora_states.log_stats = False


def _listener(counters: Counters) -> type:
    """A class that vLLM instantiates and calls after each step. It derives from the Prometheus
    logger, which vLLM would add otherwise and which costs more than the rest of a step's
    bookkeeping."""
    from vllm.v1.metrics.loggers import PrometheusStatLogger  # pyright: ignore[reportMissingImports]

    class Listener(PrometheusStatLogger):
        def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
            del vllm_config, engine_indexes

        def record(
            self,
            scheduler_stats: Any,
            iteration_stats: Any,
            mm_cache_stats: Any = None,
            engine_idx: int = 0,
        ) -> None:
            del iteration_stats, mm_cache_stats, engine_idx
            note_step(counters, scheduler_stats)

        def log_engine_initialized(self) -> None:
            return

        def log(self) -> None:
            return

        def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
            del sleep, level

    return Listener


def note_step(counters: Counters, scheduled: Any) -> None:
    if scheduled is not None:
        counters.running = scheduled.num_running_reqs
        counters.kv_use = scheduled.kv_cache_usage


LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM has kernels for; 1 is left out, since 8 costs no more."""
MAX_LORAS = 4
"""Adapters served at once: the newest, and those of unfinished samples. One of rank 64 on an 8B
model takes 340 MB."""
BATCH_TOKENS = 8192
"""Tokens of one step: enough for prompts to use the GPU, few enough for decoding never to wait
long."""

QUIET = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # It cannot return the log probabilities that we need, and it looks for a compiler.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # Ranks of a replica meet on this host.
    "VLLM_HOST_IP": "127.0.0.1",
}
"""Environment of the child; the experiment's `serve.env` replaces entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    model_dir: Path
    context_tokens: int
    slots: int
    is_exact: bool
    memory_share: float
    tensor_parallel: int
    is_eager: bool
    max_lora_rank: int
    """Maximum rank of adapters; 0 if none will be served."""
    shared_gpus: tuple[str, ...]
    """UUIDs of GPUs on which other processes time kernels or train."""
    seed: int
    version: int
    max_positions: int | None
    """Longest sequence of the model; None if its config does not say."""

    @property
    def can_sleep(self) -> bool:
        """True on a shared GPU. Elsewhere it is not worth its cost: vLLM must keep weights
        movable."""
        return bool(self.shared_gpus)


def read_settings(config: Mapping[str, Any]) -> VllmSettings:
    """Read the supervisor's config. Raises ConfigError for a context that is longer than the
    model's, and for several ranks on shared GPUs: a rank that waits for its turn would block the
    other, which waits for it in turn."""
    model_dir = Path(config["model_dir"])
    found = checkpoint_files.read_json(model_dir / "config.json")
    text = found.get("text_config") or found
    max_positions = text.get("max_position_embeddings")
    context_tokens = config["context_tokens"]
    if max_positions is not None and context_tokens > max_positions:
        raise ConfigError(
            f"serve.context_tokens = {context_tokens}: {model_dir} knows {max_positions} positions"
        )
    if config.get("tensor_parallel", 1) > 1 and config.get("shared_gpus"):
        raise ConfigError("serve.tensor_parallel above 1 needs GPUs that are not shared")
    return VllmSettings(
        model_dir=model_dir,
        context_tokens=context_tokens,
        slots=config["slots"],
        is_exact=config["precision"] == "exact",
        memory_share=config.get("memory_share", 0.85),
        tensor_parallel=config.get("tensor_parallel", 1),
        is_eager=config.get("eager", False),
        max_lora_rank=config.get("max_lora_rank", 0),
        shared_gpus=tuple(config.get("shared_gpus", ())),
        seed=config.get("seed", 0),
        version=config.get("version", 0),
        max_positions=max_positions,
    )


def environment(settings: VllmSettings) -> dict[str, str]:
    """Variables to set before vLLM is imported, unless they are set already."""
    long = settings.max_positions is not None and _model_len(settings) > settings.max_positions
    # The extra position is never evaluated: it is room for the token that a score generates.
    return QUIET | ({"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"} if long else {})


def engine_arguments(settings: VllmSettings) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": str(settings.model_dir),
        "dtype": "float32" if settings.is_exact else "bfloat16",
        "seed": settings.seed,
        "max_model_len": _model_len(settings),
        "max_num_seqs": settings.slots,
        "max_num_batched_tokens": max(BATCH_TOKENS, settings.slots),
        "gpu_memory_utilization": settings.memory_share,
        "tensor_parallel_size": settings.tensor_parallel,
        "enforce_eager": settings.is_eager,
        "enable_prefix_caching": True,
        # Token ids in and out: texts are ours.
        "skip_tokenizer_init": True,
        # Of the sampled distribution, as in every engine of ours.
        "logprobs_mode": "processed_logprobs",
        # A checkpoint's own sampling defaults are not ours.
        "generation_config": "vllm",
        "worker_extension_cls": "forge.serve.vllm.extension.ForgeWorker",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "enable_sleep_mode": settings.can_sleep,
    }
    if settings.max_lora_rank:
        arguments |= {
            "enable_lora": True,
            "max_lora_rank": lora_rank(settings.max_lora_rank),
            "max_loras": MAX_LORAS,
            "max_cpu_loras": MAX_LORAS,
        }
    if settings.shared_gpus:
        # Each step must be done with the GPU when it ends, so none is queued in advance.
        arguments["async_scheduling"] = False
    return arguments


def _model_len(settings: VllmSettings) -> int:
    """A score generates one token after the last, and vLLM needs room for it."""
    return settings.context_tokens + 1


def lora_rank(rank: int) -> int:
    """The smallest rank of vLLM that holds `rank`. Raises ConfigError above the largest."""
    if rank > LORA_RANKS[-1]:
        raise ConfigError(f"model.lora.r = {rank}: vllm serves up to {LORA_RANKS[-1]}")
    return next(size for size in LORA_RANKS if size >= rank)


def sampling_arguments(request: Request, index: int) -> dict[str, Any]:
    """Keywords of `SamplingParams` for one sample of a request."""
    return {
        "n": 1,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "seed": sample_seed(request.seed, index),
        "max_tokens": request.max_tokens,
        "stop_token_ids": list(request.stop_token_ids),
        # Only the request's stop tokens end a completion.
        "ignore_eos": True,
        # Only the sampled token's log probability.
        "logprobs": 0,
        "flat_logprobs": True,
        "detokenize": False,
        "skip_clone": True,
    }


def scoring_arguments() -> dict[str, Any]:
    """Keywords of `SamplingParams` for the log probabilities of a prompt's own tokens."""
    return {
        "n": 1,
        "temperature": 0.0,
        "max_tokens": 1,
        "ignore_eos": True,
        "prompt_logprobs": 0,
        "detokenize": False,
    }


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
            raise ConfigError(
                f"vllm refused the request: {checkpoint_files.one_line(error)}"
            ) from error
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
                if checkpoint_files.holds_adapter(path):
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
                f"{path}: vllm cannot serve the adapter: {checkpoint_files.one_line(error)}"
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
            raise MachineError(
                f"{path}: vllm failed to load it: {checkpoint_files.one_line(error)}"
            ) from error
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
    for file in checkpoint_files.weight_files(path):
        shapes.update(
            {name: tensor.shape for name, tensor in checkpoint_files.list_tensors(file).items()}
        )
    if checkpoint_files.read_json(path / "config.json").get("tie_word_embeddings"):
        shapes.pop("lm_head.weight", None)
    return shapes


def check_weights(path: Path, *, served: Mapping[str, tuple[int, ...]], max_lora_rank: int) -> None:
    if checkpoint_files.holds_adapter(path):
        return _check_adapter(path, max_lora_rank=max_lora_rank)
    found = checkpoint_shapes(path)
    checkpoint_files.check_names(path, found=found.keys(), needed=served.keys())
    for name, shape in found.items():
        if shape != served[name]:
            raise ConfigError(f"{path}: {name} is {list(shape)}, {list(served[name])} is served")


def _check_adapter(path: Path, *, max_lora_rank: int) -> None:
    where = path / checkpoint_files.ADAPTER_CONFIG
    if not max_lora_rank:
        raise ConfigError(f"{path}: the engine was started without room for adapters")
    config = checkpoint_files.read_lora_config(path)
    if type(rank := config.get("r")) is not int:
        raise ConfigError(f"{where}: r is {rank!r}; allowed is an integer")
    if rank > max_lora_rank:
        raise ConfigError(f"{where}: rank {rank}; the engine has room for {max_lora_rank}")
    for key in ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern"):
        if config.get(key):
            raise ConfigError(f"{where}: {key} is {config[key]!r}; the vllm engine needs it off")
    if not checkpoint_files.list_tensors(path / "adapter_model.safetensors"):
        raise ConfigError(f"{path}: the adapter holds no tensors")
