"""Continuous batching over a transformers model on one device: its weights and a separate adapter,
one forward pass in each step for all running samples, and one draw on the device of its logits.

Waiting samples start in order while there are free slots. Samples of one request that start
together share the evaluation of their prompt. Sequences of different lengths share a batch by
padding on the left, so that their newest tokens are in one column.

    add ─▶ waiting ─▶ prefill ─▶ rows ─▶ finished
              ▲                    │
              └──── new weights ───┘   running samples are evaluated again

Promises: every token has its policy version; the same requests in the same order with the same seed
give the same tokens; refused weights change nothing; an adapter is never merged (in bf16 that would
lose most of a small one); a row's KV never depends on other rows; equal logits give the tokens of
`forge.serve.llama.engine`; R numbers leave the device, not R × V.

Shapes: R rows, N new tokens of each row, T tokens or columns, V vocabulary, H heads, D size of a
head.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from peft import PeftConfig, PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from torch.nn.functional import pad
from transformers import AutoConfig, DynamicCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from forge.errors import ConfigError
from forge.records import Finish
from forge.serve.checkpoint_files import check_names, holds_adapter, one_line, read_lora_config
from forge.serve.engine.rows import (
    Draw,
    Knobs,
    Row,
    counters_of,
    knobs_of,
    record,
    tokens_from,
    uniforms,
)
from forge.serve.engine.worker import StepEngine
from forge.serve.port import SLEEP, EngineSample, EngineStatus, Request, check_score

NOT_LOADED = (
    OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError, SafetensorError,
    StrictDataclassError,
)  # fmt: skip
"""Errors of transformers and PEFT for a directory that they cannot load."""
KV = ("keys", "values")


class HfModel:
    def __init__(self, model_dir: Path, *, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self._dtype = dtype
        self._base: Any = _read(model_dir, dtype).to(device)
        self._adapted: PeftModel | None = None
        self._num_adapters = 0
        self._shapes = _shapes(self._base.state_dict())
        self.num_vocab = int(self._base.config.get_text_config().vocab_size)

    def load_weights(self, path: Path) -> None:
        """Load a full checkpoint, or an adapter on the last one. Raises ConfigError and changes
        nothing if it is not complete or belongs to another model."""
        if holds_adapter(path):
            return self._load_adapter(path)
        new = _read(path, self._dtype).state_dict()
        found = _shapes(new)
        changed = (n for n in found | self._shapes if found.get(n) != self._shapes.get(n))
        if name := min(changed, default=None):
            raise ConfigError(
                f"{path}: another model than the one served: {name} is "
                f"{_shown(found.get(name))} ({_shown(self._shapes.get(name))} served)"
            )
        if self._adapted is not None:
            self._base, self._adapted = self._adapted.unload(), None
        self._base.load_state_dict(new)

    def _load_adapter(self, path: Path) -> None:
        name = f"v{self._num_adapters}"
        self._num_adapters += 1
        adapted = self._adapted
        try:
            config, stored = _open_adapter(path)
            with warnings.catch_warnings():
                # PEFT uses a deprecated name of transformers.
                warnings.simplefilter("ignore", FutureWarning)
                if adapted is None:
                    adapted = PeftModel(self._base, config, adapter_name=name)
                # Does not report missing tensors, which would stay random: checked below.
                adapted.load_adapter(str(path), adapter_name=name)
            needed = get_peft_model_state_dict(
                adapted, adapter_name=name, save_embedding_layers=False
            )
            check_names(path, found=stored, needed=frozenset(needed))
        except (*NOT_LOADED, ConfigError) as error:
            self._forget(adapted, name)
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{path}: the adapter cannot be served: {one_line(error)}") from error
        adapted.set_adapter(name)
        for old in [other for other in adapted.peft_config if other != name]:
            adapted.delete_adapter(old)
        adapted.requires_grad_(False)
        self._adapted = adapted.eval()

    def _forget(self, adapted: PeftModel | None, name: str) -> None:
        if adapted is None:
            return
        if self._adapted is None:
            self._base = adapted.unload()
        elif name in adapted.peft_config:
            adapted.delete_adapter(name)

    def prefill(self, tokens: list[int]) -> tuple[torch.Tensor, RowCache]:
        """Evaluate one sequence. Returns the logits after its last token [1, V] and its KV."""
        ids = torch.tensor([tokens], device=self.device)
        lengths = torch.zeros(1, dtype=torch.long, device=self.device)
        memory = RowCache(empty_cache(self._base.config), lengths)
        return self.forward(ids, memory, num_logits=1)[:, -1], memory

    def decode(self, tokens: list[int], memory: RowCache) -> torch.Tensor:
        """Evaluate one more token of each row. Returns the logits after it. [R, V]"""
        ids = torch.tensor(tokens, device=self.device)[:, None]
        return self.forward(ids, memory, num_logits=1)[:, -1]

    @torch.inference_mode()
    def forward(
        self, ids_RN: torch.Tensor, memory: RowCache, *, num_logits: int = 0
    ) -> torch.Tensor:
        """Evaluate N more tokens of each row and add their KV to the memory. Returns the logits of
        the last `num_logits` of them, 0 for all. [R, N, V]"""
        num_new = ids_RN.shape[1]
        places_RN = memory.lengths[:, None] + torch.arange(num_new, device=self.device)
        model: Any = self._base if self._adapted is None else self._adapted
        out = model(
            input_ids=ids_RN,
            attention_mask=memory.mask(num_new=num_new),
            position_ids=places_RN,
            past_key_values=memory.cache,
            use_cache=True,
            logits_to_keep=num_logits,
        )
        memory.lengths = memory.lengths + num_new
        return out.logits

    def move(self, device: torch.device) -> None:
        (self._base if self._adapted is None else self._adapted).to(device)


def _read(path: Path, dtype: torch.dtype) -> Any:
    """Load a checkpoint on the CPU. Raises ConfigError if it is not complete."""
    try:
        read: Any = _class_of(path).from_pretrained(
            path, dtype=dtype, local_files_only=True, output_loading_info=True
        )
        model, report = read
    except NOT_LOADED as error:
        raise ConfigError(
            f"{path}: not a checkpoint that can be served: {one_line(error)}"
        ) from error
    # A mixture's config may have this option of training; with a cache its mask has another length.
    text = model.config.get_text_config()
    if getattr(text, "output_router_logits", False):
        text.output_router_logits = False
    # Only a warning reports missing tensors, which would stay random.
    for what in ("missing_keys", "mismatched_keys"):
        if names := sorted(map(str, report.get(what) or ())):
            kind = what.removesuffix("_keys")
            raise ConfigError(f"{path}: {len(names)} tensors {kind}, the first is {names[0]}")
    return model.eval().requires_grad_(False)


def _class_of(path: Path) -> Any:
    """The class that the trainer loads the model with, whose names of modules an adapter has."""
    names = AutoConfig.from_pretrained(path, local_files_only=True).architectures or ("",)
    generates = names[0].endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"))
    found = getattr(transformers, names[0], None) if generates else None
    return found or transformers.AutoModelForCausalLM


def _open_adapter(path: Path) -> tuple[PeftConfig, frozenset[str]]:
    """The adapter's config and the names of its tensors."""
    read_lora_config(path)
    config = PeftConfig.from_pretrained(str(path))
    config.inference_mode = True
    with safe_open(path / "adapter_model.safetensors", framework="pt") as file:
        return config, frozenset(file.keys())


def _shapes(state: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def _shown(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))


def empty_cache(config: Any) -> DynamicCache:
    """A cache for one row. Layers with a window keep every column too, since rows of different
    lengths lie in different columns; the model's mask hides the others."""
    cache = DynamicCache(config=config)
    for place, layer in enumerate(cache.layers):
        if type(layer) is DynamicSlidingWindowLayer:
            cache.layers[place] = DynamicLayer()
        elif type(layer) is LinearAttentionAndSlidingWindowAttentionLayer:
            cache.layers[place] = LinearAttentionAndFullAttentionLayer(layer.number_of_states)
    return cache


@dataclass(slots=True, eq=False)
class RowCache:
    """Memory of the rows: for an attention layer a [R, H, T, D] pair, padded on the left; for a
    layer with a state its tensors, [R, ...] each; and each row's length."""

    cache: DynamicCache
    lengths: torch.Tensor
    """Number of each row's tokens in the cache. [R]"""

    @property
    def num_columns(self) -> int:
        return self.cache.get_seq_length()

    def mask(self, *, num_new: int) -> torch.Tensor:
        """Attention mask: 1 for a row's own columns and the `num_new` ones. [R, T + num_new]"""
        columns = torch.arange(self.num_columns + num_new, device=self.lengths.device)
        return (columns >= self.num_columns - self.lengths[:, None]).long()

    def repeat(self, times: int) -> None:
        for held, name in self._tensors():
            held[name] = held[name].repeat_interleave(times, dim=0)
        self.lengths = self.lengths.repeat_interleave(times)

    def keep(self, rows: list[int]) -> None:
        """Drop all other rows, and the columns that only those used."""
        index = torch.tensor(rows, dtype=torch.long, device=self.lengths.device)
        self.lengths = self.lengths[index]
        unused = self.num_columns - int(self.lengths.max())
        for held, name in self._tensors():
            kept = held[name][index]
            held[name] = kept[:, :, unused:] if name in KV else kept

    def join(self, other: RowCache) -> None:
        columns = max(self.num_columns, other.num_columns)
        mine, theirs = columns - self.num_columns, columns - other.num_columns
        pairs = zip(self._tensors(), other._tensors(), strict=True)
        for (held, name), (added, _) in list(pairs):
            first, last = held[name], added[name]
            if name in KV:
                first, last = _widened(first, mine), _widened(last, theirs)
            held[name] = torch.cat([first, last])
        self.lengths = torch.cat([self.lengths, other.lengths])

    def _tensors(self) -> Iterator[tuple[dict[Any, Any], str | int]]:
        """Each tensor that has a row dimension, as the dict that holds it and its key there."""
        for layer in self.cache.layers:
            if isinstance(layer, DynamicLayer):
                yield from ((vars(layer), name) for name in KV)
            if isinstance(layer, LinearAttentionLayer):
                for states in (layer.conv_states, layer.recurrent_states):
                    yield from ((states, i) for i, state in states.items() if state is not None)


def _widened(kv_RHTD: torch.Tensor, columns: int) -> torch.Tensor:
    return pad(kv_RHTD, (0, 0, columns, 0))


SCORE_TOKENS = 512
"""Tokens scored in one forward pass: their logits over a vocabulary of 150k take 300 MB in f32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HfSettings:
    model_dir: Path
    context_tokens: int
    num_slots: int
    is_exact: bool = True
    device: str = "cpu"
    version: int = 0


class HfEngine(StepEngine):
    def __init__(self, settings: HfSettings) -> None:
        self._settings = settings
        self._device = torch.device(settings.device)
        dtype = torch.float32 if settings.is_exact else torch.bfloat16
        self._model = HfModel(settings.model_dir, dtype=dtype, device=self._device)
        self._version = settings.version
        self._waiting: deque[EngineSample] = deque()
        self._rows: list[Row] = []
        self._memory: RowCache | None = None
        self._generated_tokens = self._prompt_tokens = 0
        # Without a GPU there is no GPU memory to release.
        self.features = frozenset({SLEEP} if settings.device != "cpu" else ())

    def check(self, request: Request) -> None:
        request.check(num_vocab=self._model.num_vocab, context_tokens=self._settings.context_tokens)

    def add(self, request: Request) -> None:
        self.check(request)
        request.samples = [EngineSample(request, index) for index in range(request.n)]
        self._waiting.extend(request.samples)

    def abort(self, request: Request) -> None:
        self._waiting = deque(s for s in self._waiting if s.request is not request)
        self._drop([row for row in self._rows if row.sample.request is request])
        for sample in request.samples:
            sample.finish = sample.finish or Finish.ABORT

    @property
    def is_active(self) -> bool:
        return bool(self._rows or self._waiting)

    def new_tokens(self, sample: EngineSample, start: int) -> list[int]:
        return tokens_from(self._rows, sample, start)

    def load_weights(self, path: Path, *, version: int) -> None:
        self._model.load_weights(path)
        self._version = version
        self._waiting.extendleft(row.leave() for row in reversed(self._rows))
        self._rows, self._memory = [], None

    def score(self, prompt: np.ndarray, completion: np.ndarray) -> np.ndarray:
        num_vocab, context_tokens = self._model.num_vocab, self._settings.context_tokens
        check_score(prompt, completion, num_vocab=num_vocab, context_tokens=context_tokens)
        logits, memory = self._model.prefill(prompt.tolist())
        logprobs, last_V = [], logits[0]
        for start in range(0, completion.size, SCORE_TOKENS):
            ids = torch.from_numpy(completion[start : start + SCORE_TOKENS]).to(self._device)
            out_TV = self._model.forward(ids[None], memory)[0]
            # A token is predicted by the logits before it.
            table_TV = torch.cat([last_V[None], out_TV[:-1]]).float().log_softmax(dim=-1)
            logprobs.append(table_TV.gather(1, ids[:, None])[:, 0].cpu().numpy())
            last_V = out_TV[-1]
        return np.concatenate(logprobs)

    def sleep(self) -> None:
        self._model.move(torch.device("cpu"))
        torch.cuda.empty_cache()

    def wake(self) -> None:
        self._model.move(self._device)

    @torch.inference_mode()
    def step(self) -> list[EngineSample]:
        logits: list[torch.Tensor] = []
        if self._memory is not None:
            logits.append(self._model.decode([row.tokens[-1] for row in self._rows], self._memory))
        while self._waiting and len(self._rows) < self._settings.num_slots:
            logits += self._start()
        rows = self._rows
        drawn = draw(torch.cat(logits), knobs_of(rows), uniforms(*counters_of(rows)))
        self._generated_tokens += int(drawn.is_finite.sum())
        return self._drop([rows[place] for place in record(rows, drawn, version=self._version)])

    def _start(self) -> list[torch.Tensor]:
        """Start the next waiting sample, and others of its request that have the same tokens and a
        free slot. Returns their logits, [1, V] each."""
        first = self._waiting.popleft()
        starting = [first]
        free = self._settings.num_slots - len(self._rows)
        while len(starting) < free and self._waiting and not first.tokens.size:
            following = self._waiting[0]
            if following.request is not first.request or following.tokens.size:
                break
            starting.append(self._waiting.popleft())
        tokens = np.concatenate([first.request.prompt, first.tokens])
        logits, memory = self._model.prefill(tokens.tolist())
        self._prompt_tokens += tokens.size
        memory.repeat(len(starting))
        if self._memory is None:
            self._memory = memory
        else:
            self._memory.join(memory)
        self._rows += [Row.of(sample) for sample in starting]
        return [logits] * len(starting)

    def _drop(self, rows: list[Row]) -> list[EngineSample]:
        """Remove rows from the batch. Returns their samples."""
        if not rows:
            return []
        kept = [place for place, row in enumerate(self._rows) if row not in rows]
        self._rows = [self._rows[place] for place in kept]
        if not kept:
            self._memory = None
        elif self._memory is not None:
            self._memory.keep(kept)
        return [row.leave() for row in rows]

    def status(self) -> EngineStatus:
        """KV use is the share of slots in use."""
        return EngineStatus(
            version=self._version, running=len(self._rows), waiting=len(self._waiting),
            kv_use=len(self._rows) / self._settings.num_slots,
            generated_tokens=self._generated_tokens, prompt_tokens=self._prompt_tokens,
        )  # fmt: skip

    def close(self) -> None:
        self._waiting.clear()
        self._rows, self._memory = [], None


def draw(logits: torch.Tensor, knobs: Knobs, uniform: np.ndarray) -> Draw:
    """Draw one token for each row. `logits` [R, V] have any element type; `uniform` is [R]."""
    logits_RV = logits.float()
    is_greedy = knobs.temperature == 0.0
    temperature = np.where(is_greedy, 1.0, knobs.temperature)
    plain_RV = torch.log_softmax(logits_RV, dim=-1)
    sampled_RV = plain_RV
    if (temperature != 1.0).any():
        scaled_RV = logits_RV / _on(temperature, logits_RV)[:, None].float()
        sampled_RV = torch.log_softmax(scaled_RV, dim=-1)
    is_cut = ((knobs.top_k > 0) | (knobs.top_p < 1.0)) & ~is_greedy
    if is_cut.any():
        rows = _on(np.flatnonzero(is_cut), logits_RV)
        sampled_RV = sampled_RV.clone()
        sampled_RV[rows] = _truncated(sampled_RV[rows], knobs[np.flatnonzero(is_cut)])
    drawn_R = _inverted(sampled_RV.exp(), _on(uniform, logits_RV))
    token_R = torch.where(_on(is_greedy, logits_RV), logits_RV.argmax(dim=-1), drawn_R)
    chosen_R1 = token_R[:, None]
    return Draw(
        token=token_R.cpu().numpy(),
        logprob=sampled_RV.gather(1, chosen_R1)[:, 0].cpu().numpy(),
        is_finite=torch.isfinite(plain_RV.amax(dim=-1)).cpu().numpy(),
    )


def _inverted(probs_RV: torch.Tensor, uniform_R: torch.Tensor) -> torch.Tensor:
    """First index whose cumulative probability exceeds uniform · total; never one with probability
    0. [R]"""
    cumulative_RV = probs_RV.cumsum(dim=-1, dtype=torch.float64)
    total_R = cumulative_RV[:, -1]
    below_total_R = torch.nextafter(total_R, torch.zeros_like(total_R))
    target_R = torch.minimum(uniform_R * total_R, below_total_R)
    token_R1 = torch.searchsorted(cumulative_RV, target_R[:, None], right=True)
    return token_R1[:, 0].clamp(max=probs_RV.shape[1] - 1)


def _truncated(logprobs_RV: torch.Tensor, knobs: Knobs) -> torch.Tensor:
    """Log probabilities renormalised after top-k and then top-p; -inf for the others. [R, V]"""
    num_vocab = logprobs_RV.shape[1]
    order_RV = logprobs_RV.argsort(dim=-1, descending=True, stable=True)
    probs_RV = logprobs_RV.gather(1, order_RV).exp().double()
    keep_R = np.where(knobs.top_k > 0, np.minimum(knobs.top_k, num_vocab), num_vocab)
    rank_V = torch.arange(num_vocab, device=logprobs_RV.device)
    probs_RV = torch.where(rank_V < _on(keep_R, logprobs_RV)[:, None], probs_RV, 0.0)
    mass_RV = probs_RV.cumsum(dim=-1)
    limit_R1 = _on(knobs.top_p, logprobs_RV)[:, None] * mass_RV[:, -1:]
    # A token stays if the mass before it is below the limit; at top_p 1 all that top-k left stay.
    is_kept_RV = (mass_RV - probs_RV < limit_R1) & (probs_RV > 0)
    kept_RV = torch.zeros_like(is_kept_RV).scatter(1, order_RV, is_kept_RV)
    return torch.log_softmax(logprobs_RV.masked_fill(~kept_RV, -torch.inf), dim=-1)


def _on(array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(like.device)
