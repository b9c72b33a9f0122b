"""The common part of both trainers on transformers' Trainer: a batch's micro-batches, checkpoints
that are complete or absent, the ranks, the hold on a shared GPU; and their callback.

    next batch ──▶ sequences ──▶ micro-batches ──▶ scores ──▶ loss of each ──▶ optimizer step

transformers has the loop, optimizers, schedules, accelerate's DDP and FSDP2. A stage gives batches
of any number of sequences and the loss of a micro-batch, whose tokens have their weights in the
whole batch: so the sum over micro-batches and ranks does not depend on the cut. Between two steps
the host waits for the GPU only where a metric is read.

AdamW for weights in bf16 rounds by chance. A bf16 number has 8 bits: an update below 1/256 of a
weight is lost if it is rounded to the nearest, and so is the decay of a second moment with beta2 =
0.999. Here the arithmetic is in f32, and a result is rounded up or down in proportion to its
distance: right in expectation, at 6 bytes a parameter with both moments, where f32 takes 12.

Of a stock checkpoint only `trainer_state.json` and the random states are left: `saving` writes the
rest beside the next steps. The supervisor removes old checkpoints.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from forge.errors import ConfigError
from forge.train.checkpoints import checkpoint_dir
from forge.train.trainer.child.control import StopFlag, SupervisorClient
from forge.train.trainer.child.parallel import SharedCard, World
from forge.train.trainer.child.saving import Checkpoints, Trained
from forge.train.trainer.child.settings import TrainerSettings, uses_fsdp
from forge.train.trainer.packed import sequences
from forge.train.trainer.packed.head import Scores, add_head, router_weight, score
from forge.train.trainer.packed.sequences import MicroBatch, cut_batch


def with_exact_sums(policy: Any) -> Any:
    """accelerate's policy of shards with gradients that are summed over the ranks in f32, not in
    bf16, and with outputs as they are: in bf16 a log-probability of -4 is 0.03 off."""
    return replace(policy, reduce_dtype=torch.float32, output_dtype=None)


class StageTrainer(Trainer):
    """Trains the micro-batches of each batch. Make it after `join_process_group`."""

    saved: Path | None
    """The newest checkpoint, begun or whole; at first the one that is continued."""

    def __init__(self, *, settings: TrainerSettings, model: Any, arguments: dict[str, Any]) -> None:
        self.settings = settings
        self.saved = settings.checkpoint
        self.announce: Callable[..., object] = lambda **checkpoint: None
        """Called on rank 0 with `step` and `path` of a whole checkpoint, in a thread."""
        self._checkpoint_s = 0.0
        self.world = World()
        self.card = SharedCard(settings.shared_card)
        self._threads, self._counting = ThreadPoolExecutor(settings.beside), threading.Lock()
        if settings.beside > 1:
            torch.set_num_threads(1)
        add_head(model, temperature=settings.temperature)
        super().__init__(
            model=model,
            args=TrainingArguments(**arguments),
            optimizer_cls_and_kwargs=rounding_optimizer(settings, model),
        )
        if self.is_fsdp_enabled:
            plugin: Any = self.accelerator.state.fsdp_plugin
            plugin.mixed_precision_policy = with_exact_sums(plugin.mixed_precision_policy)
        self.router_weight = router_weight(model)
        self.checkpoints = Checkpoints(self.world, self.card, is_sharded=self.is_fsdp_enabled)

    def cut(self, batch: Sequence[sequences.Sequence]) -> list[MicroBatch]:
        """This rank's micro-batches; for threads those of as many ranks, which are even."""
        settings, rank, num = self.settings, self.world.rank, self.settings.beside
        cut = partial(
            cut_batch, batch, max_tokens=settings.micro_batch_tokens, layout=settings.layout,
            num_ranks=self.world.size * num,
        )  # fmt: skip
        return [each for thread in range(num) for each in cut(rank=rank * num + thread)]

    def next_batch(self) -> list[MicroBatch] | None:
        """The micro-batches of the next optimizer step; None if there are none to come."""
        raise NotImplementedError

    def prepared(self, micro_batch: MicroBatch) -> MicroBatch:
        return micro_batch

    def loss_of(self, micro_batch: MicroBatch, scores: Scores) -> torch.Tensor:
        """The loss of a micro-batch, as its part of the whole batch's."""
        raise NotImplementedError

    def get_train_dataloader(self) -> DataLoader:
        """Only counts updates; the batches come from `next_batch`."""
        updates: Any = range(self.args.max_steps)
        return DataLoader(updates, batch_size=1)

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, None]:
        """One batch for one update. An empty list after the last: the loop saves and ends."""
        self.checkpoints.check()
        micro_batches = self.next_batch()
        if micro_batches is None:
            self.control.should_training_stop = True
            is_saved = self.saved == checkpoint_dir(self.settings.work_dir, self.step)
            self.control.should_save = self.step > 0 and not is_saved
            return [], None
        return [micro_batches], None

    def training_step(
        self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Forward and backward of every micro-batch; returns this rank's part of the batch's loss,
        times the number of ranks, whose gradients are averaged."""
        loss = torch.zeros((), device=self.args.device)
        model.train()
        if self.settings.beside > 1:
            return loss + self._train_beside(model, inputs)
        for micro_batch in inputs:
            # FSDP2 sums its shards each time: waiting would take memory for all gradients whole.
            is_last = micro_batch is inputs[-1] or self.is_fsdp_enabled
            self.card.take()
            with nullcontext() if is_last else self.accelerator.no_sync(model):
                part = self._loss(model, self.prepared(micro_batch.on(self.args.device)))
                self.accelerator.backward(part)
                loss += part.detach()
            if micro_batch is not inputs[-1]:
                self.card.give()  # after the last one the optimizer steps
        return loss

    def _train_beside(self, model: torch.nn.Module, inputs: Sequence[MicroBatch]) -> torch.Tensor:
        """The same with a thread for each of several micro-batches. Gradients are added in the
        order of these, whichever is ready first."""
        trained = [each for each in model.parameters() if each.requires_grad]

        def train(micro_batch: MicroBatch) -> tuple[torch.Tensor, Sequence[torch.Tensor | None]]:
            part = self._loss(model, micro_batch)
            return part.detach(), torch.autograd.grad(part, trained, allow_unused=True)

        loss = torch.zeros(())
        for part, gradients in self._threads.map(train, [self.prepared(each) for each in inputs]):
            loss += part
            for weight, gradient in zip(trained, gradients, strict=True):
                if gradient is not None:
                    weight.grad = gradient if weight.grad is None else weight.grad + gradient
        return loss

    def _loss(self, model: torch.nn.Module, micro_batch: MicroBatch) -> torch.Tensor:
        scores = score(model, micro_batch, router_weight=self.router_weight)
        with self._counting:
            loss = self.loss_of(micro_batch, scores)
        if scores.router_loss is not None:
            loss = loss + scores.router_loss * (self.router_weight * micro_batch.share)
        return loss * self.world.size

    @property
    def step(self) -> int:
        return self.state.global_step

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """0: nothing reads the number, and computing it walks all parameters."""
        return 0

    def require_disk(self) -> None:
        trained = [p for p in self.model.parameters() if p.requires_grad]  # type: ignore[union-attr]
        weights = sum(p.numel() * p.itemsize for p in trained)
        small = self.settings.stage["optimizer"] == "adamw_8bit"
        moments = 2 * (sum(p.numel() for p in trained) if small else weights)
        needed = weights + moments * (self.settings.stage["save"] == "all")
        work_dir = self.settings.work_dir
        work_dir.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(work_dir).free
        if self.world.is_main and needed > free:
            raise ConfigError(
                f"save: found {free / 1e9:.1f} GB free in {work_dir}, and a checkpoint takes "
                f'{needed / 1e9:.1f} GB; free space, or "weights" ({weights / 1e9:.1f} GB)'
            )

    def take_checkpoint_s(self) -> float:
        """Seconds for which steps have waited for checkpoints since the last call."""
        found, self._checkpoint_s = self._checkpoint_s, 0.0
        return found

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train to the end of the stage, or until it is stopped; the last checkpoint is whole."""
        found = super().train(*args, **kwargs)
        self.checkpoints.wait()
        return found

    @property
    def _progress(self) -> Trained:
        model, optimizer, schedule = cast("Any", (self.model, self.optimizer, self.lr_scheduler))
        # accelerate has wrapped the optimizer.
        return Trained(model=model, optimizer=optimizer.optimizer, schedule=schedule)

    def _load_from_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the weights are loaded with the optimizer, once both are placed."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self._progress.load(Path(checkpoint))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        began = time.monotonic()
        self.saved = checkpoint_dir(self.settings.work_dir, self.step)
        with tempfile.TemporaryDirectory() as own:
            self._save_rng_state(own)
            (state,) = ((path.name, path.read_bytes()) for path in Path(own).iterdir())
        states = self.world.to_main(state)  # a rank killed here leaves no directory behind

        def add_files(folder: Path) -> None:
            self.state.save_to_json(str(folder / TRAINER_STATE_NAME))
            for name, random_state in states:
                (folder / name).write_bytes(random_state)

        self.checkpoints.save(
            self.saved, self._progress, with_moments=self.settings.stage["save"] == "all",
            add_files=add_files, announce=partial(self.announce, step=self.step, path=self.saved),
        )  # fmt: skip
        self._checkpoint_s += time.monotonic() - began


AnyTrainer = TypeVar("AnyTrainer", bound=StageTrainer)


class Reporter(TrainerCallback, Generic[AnyTrainer]):
    """Releases a shared GPU after the optimizer's step, and passes checkpoints on."""

    def __init__(self, trainer: AnyTrainer, *, client: SupervisorClient, stop: StopFlag) -> None:
        self._trainer, self._client, self._stop = trainer, client, stop
        self._is_save_ordered = False

    def save(self, control: TrainerControl) -> None:
        """Save after this step, and go on once the checkpoint is whole."""
        control.should_save = self._is_save_ordered = True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ask the disk before the first checkpoint."""
        self._trainer.require_disk()
        self._trainer.announce = self._client.checkpoint

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The last micro-batch took the GPU; the step is done with it."""
        self._trainer.card.give()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Wait for a checkpoint that somebody waits for."""
        if self._is_save_ordered:
            self._is_save_ordered = False
            self._trainer.checkpoints.wait()


CHUNK = 1 << 24
"""Numbers that are updated at a time on a CPU, in four copies in f32 (268 MB)."""
SEEDS = 1 << 31


def rounding_optimizer(settings: TrainerSettings, model: Any) -> tuple[Any, dict[str, Any]] | None:
    """Class and arguments for transformers' Trainer, if plain AdamW trains weights in bf16; None
    for the stage's own choice. accelerate makes trained shards f32 (`fsdp2_prepare_model`)."""
    trained = {p.dtype for p in model.parameters() if p.requires_grad}
    is_other = settings.model["quantize"] is not None or uses_fsdp(settings)
    if settings.stage["optimizer"] != "adamw" or trained != {torch.bfloat16} or is_other:
        return None
    betas = settings.stage["adam_beta1"], settings.stage["adam_beta2"]
    return RoundingAdamW, {"lr": settings.stage["learning_rate"], "betas": betas}


class RoundingAdamW(torch.optim.Optimizer):
    """AdamW (arXiv 1711.05101) whose weights and moments are bf16."""

    def __init__(
        self, params: Any, *, lr: float, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        rates = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, rates)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        groups = ((group, p) for group in self.param_groups for p in group["params"])
        for number, (group, p) in enumerate(groups):
            if p.grad is None:
                continue
            state = self.state[p]
            if not state:
                state["step"] = 0
                state["exp_avg"] = torch.zeros_like(p)
                state["exp_avg_sq"] = torch.zeros_like(p)
            state["step"] += 1
            whole = (p, p.grad, state["exp_avg"], state["exp_avg_sq"])
            tensors = [each.view(-1) for each in whole]
            factors = _factors(state["step"], **group)
            if tensors[0].is_cuda:
                from forge.train.trainer.child.rounding_kernel import update

                update(*tensors, seed=(state["step"] << 12 ^ number) % SEEDS, **factors)
                continue
            for part in zip(*(each.split(CHUNK) for each in tensors), strict=True):
                _update(*part, **factors)


def _factors(
    step: int, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, **_: Any
) -> dict[str, Any]:
    """Numbers of a step: its rate, the factor of weights that decay, the moments' corrections."""
    corrections = 1 - betas[0] ** step, 1 - betas[1] ** step
    decay = 1 - lr * weight_decay
    return {"rate": lr, "decay": decay, "betas": betas, "corrections": corrections, "eps": eps}


def _update(
    p: torch.Tensor, grad: torch.Tensor, first: torch.Tensor, second: torch.Tensor, *, rate: float,
    decay: float, betas: tuple[float, float], corrections: tuple[float, float], eps: float,
) -> None:  # fmt: skip
    g = grad.float()
    m = first.float().lerp_(g, 1 - betas[0])
    v = second.float().mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
    _store(m, first)
    _store(v, second)
    scale = v.div_(corrections[1]).sqrt_().add_(eps)
    _store(p.float().mul_(decay).addcdiv_(m, scale, value=-rate / corrections[0]), p)


def _store(value: torch.Tensor, target: torch.Tensor) -> None:
    """Round to one of the two nearest bf16 numbers: a bf16 number is the upper half of an f32."""
    bits = value.view(torch.int32)
    noise = torch.randint_like(bits, 1 << 16)
    target.copy_((bits + noise).bitwise_and_(-(1 << 16)).view(torch.float32))
