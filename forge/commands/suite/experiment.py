"""The experiment of `forge eval`: one evaluation of a model on a suite, as TOML."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, get_args

import tomli_w

from forge.adapters.settings import JudgeSettings
from forge.commands.suite.problems import Suite, find_suite
from forge.commands.suite.source import find_source
from forge.config.schema import EvalStage
from forge.config.schema.judge import JudgeTable, ProtocolName
from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.commands.suite.request import EvalRequest
    from forge.commands.suite.source import ModelSource
    from forge.process.devices import Gpu

MAX_NAME = 56
BOTH = "both"
"""Value of `--baseline` for eager and compile."""
PRESET = "standard"
"""Prompts of a model without a run: it knows neither our rules nor our format of an answer."""
SLOTS = {"gpu": 64, "cpu": 8, "server": 16}
"""Rollouts in play, by the place of the model."""
KEPT_TABLES = ("problems", "prompt", "devices", "serve", "judge", "reward", "rollout", "eval")
"""Tables of a model's run that its evaluation has. Trackers, notifications and training are not
among them."""


def make_experiment(request: EvalRequest) -> str:
    """The experiment as TOML.

    Raises:
        ConfigError: a model, a suite or an option that cannot be used.
        MachineError: no server answers, or this machine does not have the device.
    """
    _check(request)
    gpus = JudgeSettings(device=request.device).gpus()
    source = find_source(request)
    if request.suite is None and source.base is None:
        raise ConfigError(
            f"--suite is absent, and {request.source} is no run with held-out problems of its own; "
            "kernelbench-l1 to kernelbench-l4, a directory, or an experiment file"
        )
    suite = find_suite(request.suite) if request.suite else Suite(name="heldout")
    values = _base(source, gpus) | suite.tables
    seed = source.base.seed if source.base is not None else 0
    values |= {
        "name": _name(source.label, suite.name),
        "seed": seed if suite.seed is None else suite.seed,  # which generates its problems
        "model": {**values.get("model", {}), **source.model},
        "store": {"dir": str(request.store), **_store(source)},
        "stage": [{**_own_stage(request, source), **_stage(request), "kind": "eval"}],
    }
    if request.device != "auto":
        values["devices"] = _devices(gpus, is_remote=source.is_remote)
    values["judge"] = {**values.get("judge", {}), **_judge(request)}
    values["eval"] = {
        "seed": seed,
        **values.get("eval", {}),
        **({} if request.seed is None else {"seed": request.seed}),
        **({"both_baselines": True} if request.baseline == BOTH else {}),
        "suite": suite.name,
        "label": source.label,
    }
    return tomli_w.dumps(values)


def _check(request: EvalRequest) -> None:
    baselines = (*get_args(JudgeTable.model_fields["baseline"].annotation), BOTH)
    for option, value, allowed in (
        ("protocol", request.protocol, get_args(ProtocolName)),
        ("baseline", request.baseline, baselines),
    ):
        if value is not None and value not in allowed:
            raise ConfigError(f"--{option} {value}: one of {', '.join(allowed)}")


def _base(source: ModelSource, gpus: Sequence[Gpu]) -> dict[str, Any]:
    """The tables of the model's run, or those for any model."""
    if source.base is not None:
        values = source.base.model_dump(mode="json", exclude_none=True)
        lora = {"lora": values["model"]["lora"]} if "lora" in values["model"] else {}
        kept = {name: values[name] for name in KEPT_TABLES}
        kept["devices"]["train"] = 0
        return {**kept, "model": {**lora, "trust_remote_code": source.base.model.trust_remote_code}}
    place = "server" if source.is_remote else "gpu" if gpus else "cpu"
    return {
        "prompt": {"preset": PRESET},
        "devices": _devices(gpus, is_remote=source.is_remote),
        "serve": {"slots": SLOTS[place], "precision": "fast" if gpus else "exact", **source.serve},
        "judge": {"compile_timeout_s": 60.0, "correct_timeout_s": 60.0},
        "rollout": {"max_completion_tokens": source.answer_tokens},
        "eval": {"greedy": False},
    }


def _devices(gpus: Sequence[Gpu], *, is_remote: bool) -> dict[str, Any]:
    if not gpus:
        return {}
    serve = 0 if is_remote else "auto"
    return {"gpus": [gpu.uuid for gpu in gpus], "serve": serve, "judge": "auto", "share": "auto"}


def _store(source: ModelSource) -> dict[str, Any]:
    return {} if source.base is None else {"texts": source.base.store.texts}


def _judge(request: EvalRequest) -> dict[str, Any]:
    baseline = "eager" if request.baseline == BOTH else request.baseline
    options = {"protocol": request.protocol, "baseline": baseline}
    return {name: value for name, value in options.items() if value is not None}


def _own_stage(request: EvalRequest, source: ModelSource) -> dict[str, Any]:
    """Keys of the last evaluation of the model's run, whose figures are then repeated; for another
    suite without the number of problems."""
    stages = source.base.stage if source.base is not None else ()
    found = [stage for stage in stages if isinstance(stage, EvalStage)]
    if not found:
        return {}
    exclude = None if request.suite is None else {"num_problems"}
    return found[-1].model_dump(mode="json", exclude_none=True, exclude=exclude)


def _stage(request: EvalRequest) -> dict[str, Any]:
    options = {
        "samples": request.samples, "max_turns": request.turns, "greedy": request.greedy,
        "num_problems": request.limit,
    }  # fmt: skip
    return {name: value for name, value in options.items() if value is not None}


def _name(label: str, suite: str) -> str:
    """Name of the run: letters, digits, . _ and -."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", f"eval-{label.rpartition('/')[2]}-{suite}")
    return plain[:MAX_NAME].rstrip("-.")
