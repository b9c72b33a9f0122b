"""Writing weights: complete directories that an engine, PEFT or transformers can load; and
publishing them beside training, by a thread that writes while the trainer takes its next batch.

    step ── copy of the weights ──▶ thread: write ── /publish ──▶ version
      └── take, next step ...          └── at most one; the next publish waits for it

The thread writes a copy, so the weights may change meanwhile. Its error is raised, too, while the
trainer waits for a batch, which may never come without these weights.

Probes are tokens of the run, scored by the trainer with the published weights and with those
before; the supervisor compares an engine's scores with them. They are chosen once and kept beside
the checkpoints: scores of the same tokens before and after a step distinguish its weights from the
last ones, and a resumed stage has them before its first batch. Random tokens do not work: the bf16
noise of their scores (0.02 to 0.04 nats with only 4 layers) hides the difference between versions.

Shapes: T tokens, V vocabulary.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from forge.process.shared_weights import collect_shared, share
from forge.train.checkpoints import link_or_copy, whole_dir
from forge.train.trainer.child.saving import Background, fits_host

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from forge.records import Sample
    from forge.train.trainer.child.control import SupervisorClient
    from forge.train.trainer.child.settings import TrainerSettings


SIDE_SUFFIXES = frozenset({".json", ".jinja", ".model", ".txt", ".tiktoken", ".py"})
"""Files of a model directory that a published one has too, as they are: config, tokenizer, chat
template, code of the model. An index lists files of weights."""
OWN_FILES = frozenset({"adapter_config.json", "lineage.json"})
"""Files that describe the weights themselves."""
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
NUM_COPIES = 2
"""Copies in pinned memory at a time: the next is made while the last is still written. Copying into
it is ten times as fast, but nothing else can use that memory."""

logger = logging.getLogger(__name__)

PROBE_TOKENS = 128
"""Maximum completion tokens. With 32, the bf16 rounding of one token decides too often: the
supervisor's rule raised 1 false alarm in 15 probes; with 128, none in 240 on samples chosen as
here."""
PROMPT_TOKENS = 256
ROW_TOKENS = 32
"""Tokens from an SFT row, and as many before them; they fit any engine's context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The end of a prompt and the beginning of its completion."""

    prompt: Sequence[int]
    completion: Sequence[int]

    @classmethod
    def of_samples(cls, samples: Sequence[Sample]) -> Tokens:
        """Tokens of the sample with the lowest log probability: tokens that the model is certain of
        score the same under all versions."""

        def total(sample: Sample) -> float:
            """Without tokens of tools' replies."""
            return math.fsum(p for p in sample.logprobs[:PROBE_TOKENS] if not math.isnan(p))

        most = min(samples, key=total)
        return cls(
            prompt=most.prompt_ids[-PROMPT_TOKENS:], completion=most.completion_ids[:PROBE_TOKENS]
        )

    @classmethod
    def of_row(cls, ids: Sequence[int], start: int) -> Tokens:
        """Tokens of an SFT row from its first trained one."""
        return cls(
            prompt=ids[max(start - ROW_TOKENS, 0) : start],
            completion=ids[start : start + ROW_TOKENS],
        )


def read_tokens(path: Path) -> Tokens | None:
    """Tokens that an earlier attempt wrote; None if there are none, or a power cut left the file
    damaged."""
    if not path.is_file():
        return None
    try:
        return Tokens(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        logger.warning("%s: damaged; the tokens of the probe are chosen anew", path)
        return None


class Prober:
    """A stage's probe tokens, and their scores under the weights that were last published."""

    def __init__(self, path: Path, tokens: Tokens | None) -> None:
        """`tokens`: those in the file, the same on every rank."""
        self._path = path
        self._tokens = tokens
        self._before: list[float] | None = None

    @property
    def is_ready(self) -> bool:
        """True if there are tokens, and scores for the next publish to compare with."""
        return self._before is not None

    def choose(self, samples: Sequence[Sample], model: Any, *, keeps: bool) -> None:
        """Choose the tokens from the first batch and score them with the served weights.
        Collective. `keeps` is True on the rank that writes the file."""
        if self._tokens is None:
            self._tokens = Tokens.of_samples(samples)
            if keeps:
                self._write(self._tokens)
        self._before = score(model, self._tokens.prompt, self._tokens.completion)

    def take(self, model: Any) -> dict[str, Any] | None:
        """The probe of the current weights; None if the stage has no tokens yet. Collective."""
        if self._tokens is None:
            return None
        found = probe(model, self._tokens)
        if self._before is not None:
            found["before"] = self._before
        self._before = found["logprobs"]
        return found

    def _write(self, tokens: Tokens) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        ids = {"prompt": list(tokens.prompt), "completion": list(tokens.completion)}
        partial.write_text(json.dumps(ids))
        partial.rename(self._path)


def probe(model: PreTrainedModel | PeftModel, tokens: Tokens) -> dict[str, Any]:
    """The tokens with their log probabilities under the current weights, at temperature 1."""
    return {
        "prompt_ids": list(tokens.prompt),
        "completion_ids": list(tokens.completion),
        "logprobs": score(model, tokens.prompt, tokens.completion),
    }


@torch.no_grad()
def score(
    model: PreTrainedModel | PeftModel, prompt: Sequence[int], completion: Sequence[int]
) -> list[float]:
    """Teacher-forced log probability of each completion token."""
    was_training = model.training
    model.eval()
    try:
        ids_1T = torch.tensor([[*prompt, *completion]], device=model.device)
        logits_1TV = model(input_ids=ids_1T, use_cache=False).logits
    finally:
        model.train(was_training)
    start = len(prompt) - 1
    logprobs_TV = logits_1TV[0, start:-1].float().log_softmax(-1)
    targets_T1 = ids_1T[0, start + 1 :, None]
    return logprobs_TV.gather(-1, targets_T1)[:, 0].tolist()


def snapshot(
    model: PreTrainedModel | PeftModel, *, dtype: torch.dtype | None = None, keeps: bool = True,
    on_device: bool = False,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Copy what is trained to the CPU, or on its own device, so that the weights may change while
    the copy is written or read.

    That is all weights, or the trained adapter of a PEFT model. Parameters are rounded to `dtype`
    if given, except for those of `_exact`. Tensors that share memory still share it in the copy.
    For a sharded model this is a collective; ranks that do not write pass `keeps=False` and get
    nothing."""
    exact = set() if dtype is None else _exact(model)
    is_adapter = hasattr(model, "peft_config")
    trained = [p for p in model.parameters() if p.requires_grad]
    sizes = (p.numel() * (dtype or p.dtype).itemsize for p in trained)
    pinned = sum(1 << (size - 1).bit_length() for size in sizes if size)  # as torch rounds each
    copy = _Copier(is_pinned=fits_host(NUM_COPIES * pinned), on_device=on_device)
    copies: dict[tuple[int, torch.Size], torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        # A reference may be held as a second adapter.
        if is_adapter and ("lora_" not in name or ".ref." in name):
            continue
        shard = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        key = (shard.data_ptr(), tensor.shape)
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if not keeps:
            continue
        if key not in copies or not shard.numel():
            is_rounded = dtype is not None and name not in exact and whole.is_floating_point()
            copies[key] = copy(whole.detach(), dtype=dtype if is_rounded else whole.dtype)
        found[name] = copies[key]
    copy.wait()
    return found


def _exact(model: torch.nn.Module) -> set[str]:
    """Names of tensors that are never rounded to bf16: buffers, frozen weights (a router's bias: in
    bf16 experts tie), and weights that the model's class keeps in f32."""
    kept = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    named = dict(model.named_parameters(remove_duplicate=False))
    frozen = {name for name, p in named.items() if not p.requires_grad}
    buffers = {name for name, _ in model.named_buffers()}
    in_f32 = {name for name in named if any(part in name.split(".") for part in kept)}
    # The wrapper for recomputation removes its name from state_dict, and from nothing else.
    return {name.replace("_checkpoint_wrapped_module.", "") for name in buffers | frozen | in_f32}


class _Copier:
    """Copies tensors to the host. Those of a GPU are queued together into pinned memory, which
    torch keeps for the next publish; `wait` waits for all of them."""

    def __init__(self, *, is_pinned: bool, on_device: bool) -> None:
        self._is_pinned, self._on_device = is_pinned, on_device
        self._is_waited_for = False

    def __call__(self, tensor: torch.Tensor, *, dtype: torch.dtype | None) -> torch.Tensor:
        if self._on_device:
            self._is_waited_for = tensor.is_cuda
            return tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)
        if not (tensor.is_cuda and self._is_pinned):
            return tensor.to("cpu", dtype, copy=True)
        self._is_waited_for = True
        host = torch.empty(tensor.shape, dtype=dtype, pin_memory=True)
        # Rounded on the GPU, so that half of the bytes are transferred.
        return host.copy_(tensor.to(dtype), non_blocking=True)

    def wait(self) -> None:
        if self._is_waited_for:
            torch.cuda.synchronize()


def save_weights(
    model: PreTrainedModel | PeftModel, path: Path, *, model_dir: Path, sync: bool,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> None:  # fmt: skip
    """Write a directory: full weights with config and tokenizer, or only the trained adapter of a
    PEFT model. `weights` is an earlier `snapshot`; None for the current weights."""
    state = dict(snapshot(model) if weights is None else weights)
    with whole_dir(path, sync=sync) as partial:
        if hasattr(model, "peft_config"):
            model.save_pretrained(str(partial), selected_adapters=["default"], state_dict=state)
            _copy_side_files(model_dir, partial, without={*OWN_FILES, "config.json"})
        else:
            model.save_pretrained(str(partial), state_dict=state)
            _copy_side_files(model_dir, partial, without=OWN_FILES)
            if named_dtype(partial / "config.json") is None:
                _name_dtype(partial / "config.json", stored_dtype(model_dir))


def _copy_side_files(model_dir: Path, out: Path, *, without: Set[str]) -> None:
    """Give weights the files of the model that they were trained from.

    So the config is the model's own, without what transformers sets for training (no cache,
    router losses, padding). Its dtype is that of an export; the stored tensors may be of another.
    """
    for path in (*model_dir.iterdir(), *model_dir.glob("additional_chat_templates/*")):
        is_index, target = path.name.endswith(".index.json"), out / path.relative_to(model_dir)
        if path.suffix in SIDE_SUFFIXES and not is_index and path.name not in without:
            target.parent.mkdir(exist_ok=True)
            target.unlink(missing_ok=True)
            link_or_copy(path, target)


def named_dtype(path: Path) -> torch.dtype | None:
    """The dtype that a config names, that of an export; None if it names none."""
    config = json.loads(path.read_text())
    tables = (config, config.get("text_config") or {})
    names = (table.get(key) for table in tables for key in ("dtype", "torch_dtype"))
    return next((getattr(torch, name) for name in names if name), None)


def stored_dtype(model_dir: Path) -> torch.dtype:
    """The dtype of the largest tensor in a model's files."""
    from safetensors import safe_open

    largest, found = 0, "F32"
    for path in model_dir.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            names: list[str] = list(file.keys())
            for part in map(file.get_slice, names):
                if (size := math.prod(part.get_shape())) > largest:
                    largest, found = size, part.get_dtype()
    return DTYPES.get(found, torch.float32)


def _name_dtype(path: Path, dtype: torch.dtype) -> None:
    """Add a dtype to a config that names none: that of the files it came with."""
    config = json.loads(path.read_text())
    path.unlink()  # it may be linked to the model's
    config["dtype"] = str(dtype).removeprefix("torch.")
    path.write_text(json.dumps(config, indent=2) + "\n")


def free_dir(parent: Path, name: str) -> Path:
    """An unused path: a resumed stage publishes a step again while the first directory may still be
    read."""
    path, number = parent / name, 1
    while path.exists():
        number += 1
        path = parent / f"{name}.{number}"
    return path


class Publisher(Background):
    def __init__(self) -> None:
        super().__init__("publish")
        self.version: int | None = None
        """Version of the last publish that has succeeded; None before the first."""

    @property
    def weights_version(self) -> int | None:
        """Version of the weights last handed over, also while their publish runs: versions count up
        by one. None until the first publish has succeeded."""
        return None if self.version is None else self.version + self.is_running

    def publish(self, call: Callable[[], int]) -> None:
        """Wait for the previous publish, then run this one, which returns the version."""

        def run() -> None:
            self.version = call()

        self.start(run)


def write_and_offer(
    policy: Any, weights: dict[str, torch.Tensor], probe: dict[str, Any] | None, *,
    settings: TrainerSettings, client: SupervisorClient, step: int, copied_s: float,
    is_shared: bool = False,
) -> int:  # fmt: skip
    """Write a step's weights and offer them to every replica; returns their version.

    `weights` is a copy, emptied when nobody needs it; of `policy` only the config is read.
    `copied_s` is the time that the copy and the probe took, for the log. `is_shared`: engines read
    the copy itself."""
    started = time.monotonic()
    path = free_dir(settings.weights_dir, f"{settings.stage['kind']}-{step:06d}")
    if is_shared:
        share(path, weights)
    else:
        sync = settings.is_kept(step)
        save_weights(policy, path, model_dir=settings.model_dir, sync=sync, weights=weights)
        weights.clear()
    saved_s = time.monotonic() - started
    version = client.publish(step=step, path=path, probe=probe)
    weights.clear()
    collect_shared()
    logger.info(
        "step %d: version %d, copied in %.3f s, written in %.3f s, published in %.3f s",
        step, version, copied_s, saved_s, time.monotonic() - started + copied_s,
    )  # fmt: skip
    return version
