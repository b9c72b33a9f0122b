"""A GRPO stage, from its settings to the end of its last step.

Called by `__main__`. Ends when the last step is trained, when the supervisor answers `take` with
`done` or `stop`, or after a SIGTERM; always with a checkpoint of the last step.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import torch

from forge.train.checkpoints import require_whole
from forge.train.trainer.child.card import reported_when_full
from forge.train.trainer.child.control import StopFlag, SupervisorClient
from forge.train.trainer.child.parallel import join_process_group
from forge.train.trainer.child.settings import trainer_arguments
from forge.train.trainer.child.trainer import Reporter
from forge.train.trainer.grpo.trainer import TurnTrainer
from forge.train.trainer.model.load import load_base, load_model

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from forge.train.trainer.child.settings import TrainerSettings

logger = logging.getLogger(__name__)


def train_turns(settings: TrainerSettings) -> None:
    """Train the stage, from a checkpoint if there is one."""
    stop = StopFlag()
    stop.install()
    rank, budget = int(os.environ.get("RANK", "0")), settings.micro_batch_tokens
    client = SupervisorClient(settings, stop=stop)
    last = settings.checkpoint
    if last is not None and rank == 0:
        require_whole(last)
    full = reported_when_full(client, rank=rank, micro_batch_tokens=budget)
    with client.refusals(), full:
        join_process_group()
        trainer = make_trainer(settings, client=client)
        client.before_poll = trainer.publisher.check
        trainer.add_callback(GrpoReporter(trainer, stop=stop))
        logger.info("training from %s, layout: %s", last or settings.model_dir, settings.layout)
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
        trainer.publisher.wait()
    logger.info("ended after step %d of %d", trainer.step, settings.stage["steps"])


def make_trainer(settings: TrainerSettings, *, client: SupervisorClient) -> TurnTrainer:
    """The trainer of a stage, with its reference model if there is a KL term."""
    model, reference = load_model(settings), None
    if settings.stage["beta"] and not hasattr(model, "peft_config"):
        reference = load_base(settings)
    elif settings.stage["beta"] and settings.adapter is not None:
        hold_reference(model)
    for module in model.modules():  # an adapter's: the engine that played the samples has none
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return TurnTrainer(
        settings=settings,
        client=client,
        model=model,
        reference=reference,
        arguments=trainer_arguments(settings, updates_per_step=settings.stage["updates_per_batch"]),
    )


def hold_reference(model: Any) -> None:
    """Keep a copy of the adapter that is trained further, as the adapter "ref"."""
    model.add_adapter("ref", model.peft_config["default"])
    for name, parameter in model.named_parameters():
        if ".default." in name:
            model.get_parameter(name.replace(".default.", ".ref.")).data.copy_(parameter.data)


class GrpoReporter(Reporter):
    """Also ends the trainer's steps, and the stage after SIGTERM."""

    def __init__(self, trainer: TurnTrainer, *, stop: StopFlag) -> None:
        super().__init__(trainer, client=trainer.client, stop=stop)
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Publish first after a resume: the replicas may serve weights of a step that is lost."""
        super().on_train_begin(args, state, control, **kwargs)
        if state.global_step > 0 and self._trainer.settings.publishes:
            self._trainer.publish()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """After the last update of a batch: report it, save and stop if asked to."""
        if state.global_step % self._trainer.updates_per_step:
            return
        if self._trainer.finish_step().save:
            control.should_save = True
        if self._trainer.world.from_main(lambda: self._stop.is_set):
            control.should_save = control.should_training_stop = True
