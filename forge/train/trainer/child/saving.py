"""Checkpoints of a stage, by torch.distributed.checkpoint (DCP).

    step ── copy in host memory ──▶ thread: files ── manifest ── rename ── announced
      └── next step ...                └── at most one; the next save waits for it

A checkpoint has what training changes: weights, the optimizer's moments, the schedule. Frozen
weights come from the model. Ranks of one machine write their shards; a model that every rank has
whole, or whose ranks are on several machines, is written by rank 0. Any number of ranks can load
it.

DCP's own end of a save is the file `.metadata`. Killed before the rename, a save leaves only a
staging directory, which nothing reads and the next save removes.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from forge.process.machine import read_memory
from forge.train.checkpoints import STAGING, put_in_place, write_manifest
from forge.train.trainer.child.parallel import SharedCard, World


class Background:
    """Work of the trainer beside its steps, checkpoints and publishes: one call at a time, in a
    thread. Its error is raised by the next call, and by `check`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, call: Callable[[], object]) -> None:
        self.wait()

        def run() -> None:
            try:
                call()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()

    def check(self) -> None:
        if not self.is_running:
            self.wait()

    def wait(self) -> float:
        """Wait for the running call and raise its error. Returns the seconds waited."""
        began = time.monotonic()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return time.monotonic() - began


logger = logging.getLogger(__name__)

MOMENTS = "moments"
COPY_SHARE = 0.5
WRAPPER = "_checkpoint_wrapped_module."
ALONE = "torch.distributed is disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler

    def state(self, *, with_moments: bool, is_gathered: bool = False) -> dict[str, Any]:
        """State for DCP. `is_gathered`: on the host of rank 0, not in shards; collective."""
        weights = {
            name.replace(WRAPPER, ""): parameter.detach()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }
        if is_gathered:
            weights = {name: _gathered(tensor) for name, tensor in weights.items()}
        state: dict[str, Any] = {"weights": weights, "schedule": self.schedule}
        if with_moments:
            how = StateDictOptions(full_state_dict=is_gathered, cpu_offload=is_gathered)
            state[MOMENTS] = get_optimizer_state_dict(self.model, self.optimizer, options=how)
        return state

    def load(self, path: Path) -> None:
        """Continue from a checkpoint: weights, schedule and, if it has them, moments."""
        found = filesystem.FileSystemReader(path).read_metadata().state_dict_metadata
        has_moments = any(name.startswith(f"{MOMENTS}.") for name in found)
        state = self.state(with_moments=has_moments)
        if has_moments:  # an expert that has seen no token has none
            kept, known = {name.rpartition(".")[0] for name in found}, state[MOMENTS]["state"]
            has = {name for name in known if f"{MOMENTS}.state.{name}" in kept}
            state[MOMENTS]["state"] = {name: known[name] for name in known if name in has}
        warnings.filterwarnings("ignore", message=ALONE)
        state_dict_loader.load(state, checkpoint_id=path, no_dist=True)
        if has_moments:
            how = StateDictOptions(strict=False)
            set_optimizer_state_dict(self.model, self.optimizer, state[MOMENTS], options=how)
        rates = self.schedule.get_last_lr()
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


@cache
def fits_host(num_bytes: int) -> bool:
    """True if copies of so many bytes may be in host memory. Decided once for a size: what is kept
    there counts as used later."""
    memory = read_memory()
    free = None if memory is None else memory.total_bytes - memory.used_bytes
    if free is None or num_bytes <= COPY_SHARE * free:
        return True
    logger.info("not copied to the host at once: %d bytes, %d free", num_bytes, free)
    return False


def _gathered(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor


class Checkpoints(Background):
    """Writes the checkpoints of a stage, one at a time. Make it on every rank."""

    def __init__(self, world: World, card: SharedCard, *, is_sharded: bool) -> None:
        super().__init__("checkpoint")
        self._world, self._card = world, card
        self._is_gathered = is_sharded and world.spans_machines
        self._group = world.new_group() if is_sharded and not self._is_gathered else None

    def save(
        self, path: Path, trained: Trained, *, with_moments: bool,
        add_files: Callable[[Path], object], announce: Callable[[], object],
    ) -> None:  # fmt: skip
        """Begin a checkpoint, once the last one is whole. Collective. On rank 0 `add_files` is
        called with the directory that becomes `path`, and `announce`, in a thread, at the end."""
        self.wait()
        written = path.parent / STAGING / path.name
        if self._world.is_main:
            shutil.rmtree(written.parent, ignore_errors=True)
            written.mkdir(parents=True)
            add_files(written)
        self._world.wait()
        state = trained.state(with_moments=with_moments, is_gathered=self._is_gathered)
        if self._group is None and not self._world.is_main:
            return
        how: dict[str, Any] = {
            "storage_writer": filesystem.FileSystemWriter(written),
            "process_group": self._group,
            "no_dist": self._group is None,
        }
        warnings.filterwarnings("ignore", message=ALONE)
        num_copies = 1 if self._group is None else self._world.size
        if fits_host(_num_bytes(state) * num_copies):
            on_gpu = torch.cuda.is_available()
            stager = DefaultStager(StagingOptions(on_gpu, False, False, on_gpu))
            with self._card.taken(), closing(stager):  # that of torch 2.11 serves one save
                saving: Any = state_dict_saver.async_save(state, **how, async_stager=stager)
            self.start(partial(self._finish, saving.result, written, path, announce))
        else:  # the next step waits
            self._finish(partial(state_dict_saver.save, state, **how), written, path, announce)

    def _finish(
        self, save: Callable[[], object], written: Path, path: Path, announce: Callable[[], object]
    ) -> None:
        """Wait for this rank's save. That of rank 0 ends last, and its directory gets its name."""
        save()
        if self._world.is_main:
            write_manifest(written)
            put_in_place(written, path)
            announce()


def _num_bytes(state: Any) -> int:
    if isinstance(state, dict):
        return sum(map(_num_bytes, state.values()))
    if isinstance(state, DTensor):
        state = state.to_local()
    return state.nbytes if isinstance(state, torch.Tensor) else 0
