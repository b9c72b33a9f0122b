"""Placement of engines that run without a supervisor. Called by `chat` and `serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.config.schema import EvalStage
from forge.runner.plan.placement import place
from forge.runner.plan.shape import refusal_of
from forge.serve.engines import choose_engine

if TYPE_CHECKING:
    from pathlib import Path

    from forge.config.schema import Experiment
    from forge.runner.plan.machine import Machine
    from forge.runner.plan.placement import Placement


def small(experiment: Experiment) -> Experiment:
    """The experiment with one engine, one judge and no trainer, on GPUs for roles that had some."""
    devices, serve = experiment.devices, experiment.serve
    fewer = devices.model_copy(
        update={
            "train": 0,
            "serve": serve.tensor_parallel if devices.serve else 0,
            "judge": 1 if devices.judge else 0,
            "share": "auto",
        }
    )
    return experiment.model_copy(
        update={
            "devices": fewer,
            "serve": serve.model_copy(update={"replicas": 1, "url": []}),
            "judge": experiment.judge.model_copy(update={"workers": 1}),
            "stage": [EvalStage(kind="eval")],
        }
    )


def place_on(experiment: Experiment, machine: Machine, *, model_dir: Path) -> Placement:
    """Places engine and judge as the run's plan would; on the CPU if the machine has no GPUs."""
    if not machine.gpus:
        devices = experiment.devices.model_copy(update={"gpus": None, "serve": 0, "judge": 0})
        experiment = experiment.model_copy(update={"devices": devices})
    return place_engine(experiment, machine, model_dir=model_dir)


def place_engine(experiment: Experiment, machine: Machine, *, model_dir: Path) -> Placement:
    """Chooses the engine for a model, and places it as `[devices]` asks."""
    gpus = machine.gpus if experiment.devices.serve else ()
    serve = experiment.serve
    refused = refusal_of(model_dir, context_tokens=serve.context_tokens)
    engine, _ = choose_engine(serve, gpus=gpus, installed=machine.engines, no_llama=refused)
    return place(experiment, machine, engine=engine)
