"""`forge eval`: any checkpoint or server on a suite of problems, as a run of one evaluation.

Makes an experiment of the model and the suite, as TOML, and gives it to the supervisor, so that the
loop, the judge, the store and `forge resume` are those of every run.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import anyio
import tomli_w

from forge.adapters.pools import JudgeSettings
from forge.config import schema
from forge.config.keys import one_of
from forge.config.load import load_experiment
from forge.data.problem_files import find_files
from forge.errors import ChildDied, ConfigError, MachineError, Stalled
from forge.process.devices import Gpu
from forge.records import split_step
from forge.records.verdict import POLICIES, PolicyName
from forge.runner.outlets.summary import RESULTS
from forge.runner.run import run_experiment
from forge.runner.weights.resume import find_weights
from forge.serve.remote import choose_model, open_server
from forge.store.layout import RunPaths, find_run
from forge.store.reader import open_run

MAX_NAME = 56
BOTH = "both"
SLOTS = {"gpu": 64, "cpu": 8, "server": 16}
"""Rollouts in play, by the place of the model."""
KEPT_TABLES = ("problems", "prompt", "devices", "serve", "judge", "reward", "rollout", "eval")
"""Tables of a model's run that its evaluation has. Trackers, notifications and training are not
among them."""
NAMED = re.compile(r"kernelbench-l([1-4])")
CHECKOUTS = (Path("KernelBench/KernelBench"), Path("KernelBench"), Path())
CLONE = "git clone https://github.com/ScalingIntelligence/KernelBench"
TABLES = ("problems", "judge", "prompt")
CONTEXT_TOKENS = 24576
"""Default context of a model that has so many positions; a server's is not known."""
ANSWER_TOKENS = 8192
"""Default length of an answer; half of the context of a model that has fewer than twice this."""
CONNECT_S = 20.0


def evaluate_suite(
    request: EvalRequest, *, quiet: bool, wait_s: float = 0.0
) -> tuple[RunPaths, dict[str, Any]]:
    """Evaluates the model in a new run; returns the run and its `results.json`. Raises ForgeError;
    an interrupted run can be resumed."""
    text = make_experiment(request)
    overrides = request.overrides
    paths = run_text(text, name="eval", overrides=overrides, quiet=quiet, wait_s=wait_s)
    return paths, json.loads((paths.root / RESULTS).read_text())


def run_text(
    text: str, *, name: str, overrides: Sequence[str], quiet: bool, wait_s: float
) -> RunPaths:
    """The run of an experiment that was made. Raises ForgeError."""
    with tempfile.TemporaryDirectory(prefix=f"forge-{name}-") as folder:
        file = Path(folder) / f"{name}.toml"
        file.write_text(text, encoding="utf-8")
        return run_experiment(file, overrides=overrides, quiet=quiet, wait_s=wait_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """Options of `forge eval`, whose help describes them; None as in the model's run."""

    source: str
    suite: str | None = None
    protocol: str | None = None
    policy: str | None = None
    baseline: str | None = None
    samples: int | None = None
    budget: int | None = None
    turns: int | None = None
    greedy: bool | None = None
    device: str = "auto"
    seed: int | None = None
    limit: int | None = None
    model_name: str | None = None
    model_name_option: str = "--model"
    """Option that names it, for messages."""
    api_key_env: str | None = None
    overrides: Sequence[str] = ()
    store: Path = Path("runs")


def make_experiment(request: EvalRequest) -> str:
    """The experiment as TOML. Raises ConfigError: a model, a suite or an option that cannot be
    used; MachineError: no server answers, or this machine does not have the device."""
    check_options(request)
    source = find_source(request)
    if request.suite is None and source.base is None:
        raise ConfigError(
            f"--suite is absent, and {request.source} is no run with held-out problems of its own; "
            "kernelbench-l1 to kernelbench-l4, a directory, or an experiment file"
        )
    suite = find_suite(request.suite) if request.suite else Suite(name="heldout")
    stage = _stage(request, source)
    if request.budget is not None:
        stage |= _budgeted(request, stage, source)
    values = experiment_of(request, source, suite, stage=stage)
    values["eval"] |= {"suite": suite.name, "label": source.label}
    return tomli_w.dumps(values)


def experiment_of(
    request: EvalRequest, source: ModelSource, suite: Suite, *, stage: Mapping[str, Any]
) -> dict[str, Any]:
    """The tables of an experiment with one stage, which plays a suite. Raises MachineError if this
    machine does not have the device."""
    gpus = JudgeSettings(device=request.device).gpus()
    values, base = _base(source, gpus) | suite.tables, source.base
    seed = base.seed if base is not None else 0
    kind, label = "eval" if stage["kind"] == "eval" else "solve", source.label.rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{kind}-{label}-{suite.name}")
    values |= {
        "name": name[:MAX_NAME].rstrip("-."),
        "seed": seed if suite.seed is None else suite.seed,  # which generates its problems
        "model": {**values.get("model", {}), **source.model},
        "store": {"dir": str(request.store), **({"texts": base.store.texts} if base else {})},
        "stage": [stage],
    }
    if request.device != "auto":
        values["devices"] = _devices(gpus, source)
    values["judge"] = _judge(request, values.get("judge", {}), suite)
    judge, reward = values["judge"], values.get("reward", {})
    policy = judge.get("policy") or POLICIES[judge.get("protocol", "forge")]
    if policy == "own" and reward.get("own_share"):
        values["reward"] = {**reward, "own_share": 0.0}  # own kernels do all work
    values["eval"] = {
        "seed": seed,
        **values.get("eval", {}),
        **({} if request.seed is None else {"seed": request.seed}),
        **({"both_baselines": True} if request.baseline == BOTH else {}),
    }
    return values


def check_options(request: EvalRequest) -> None:
    """Raises ConfigError: a protocol, policy or baseline that is none."""
    baselines = (*get_args(schema.JudgeTable.model_fields["baseline"].annotation), BOTH)
    for option, allowed in (
        ("protocol", schema.ProtocolName), ("policy", PolicyName), ("baseline", baselines),
    ):  # fmt: skip
        if (value := getattr(request, option)) is not None:
            one_of(f"--{option}", value, allowed)


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
        "devices": _devices(gpus, source),
        "serve": {"slots": SLOTS[place], "precision": "fast" if gpus else "exact", **source.serve},
        "judge": {"compile_timeout_s": 60.0, "correct_timeout_s": 60.0},
        "rollout": {"max_completion_tokens": source.answer_tokens},
        "eval": {"greedy": False},
    }


def _devices(gpus: Sequence[Gpu], source: ModelSource) -> dict[str, Any]:
    if not gpus:
        return {}
    serve = 0 if source.is_remote else "auto"
    return {"gpus": [gpu.uuid for gpu in gpus], "serve": serve, "judge": "auto", "share": "auto"}


def _judge(request: EvalRequest, given: Mapping[str, Any], suite: Suite) -> dict[str, Any]:
    """The given keys with the options. Of a level of KernelBench an evaluation shows the verdicts
    by KernelBench's rules and by forge's, whichever of them count."""
    judge = dict(given)
    if request.protocol is not None:
        judge.pop("policy", None)  # which follows the protocol
    baseline = "eager" if request.baseline == BOTH else request.baseline
    options = {"protocol": request.protocol, "policy": request.policy, "baseline": baseline}
    judge |= {name: value for name, value in options.items() if value is not None}
    if NAMED.fullmatch(suite.name) and not judge.get("also"):
        judge["also"] = ["kernelbench" if judge.get("protocol", "forge") == "forge" else "forge"]
    return judge


def _stage(request: EvalRequest, source: ModelSource) -> dict[str, Any]:
    """Keys of the last evaluation of the model's run, whose figures are then repeated (for another
    suite without the number of problems), with the options."""
    stages = source.base.stage if source.base is not None else ()
    found = [stage for stage in stages if isinstance(stage, schema.EvalStage)]
    exclude = {"round"} if request.suite is None else {"round", "num_problems"}
    own = found[-1].model_dump(mode="json", exclude_none=True, exclude=exclude) if found else {}
    options = {
        "samples": request.samples, "max_turns": request.turns, "greedy": request.greedy,
        "num_problems": request.limit,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    return {**own, **given, "kind": "eval"}


def _budgeted(
    request: EvalRequest, stage: Mapping[str, Any], source: ModelSource
) -> dict[str, Any]:
    """Keys of a stage whose rollouts have a budget of answers. Raises ConfigError."""
    table = source.base.eval if source.base is not None else schema.EvalTable()
    turns, budget = stage.get("max_turns") or table.max_turns, request.budget or 0
    if request.samples is not None:
        raise ConfigError(f"--samples {request.samples} with --budget {budget}: one of them")
    if budget < turns:
        raise ConfigError(f"--budget {budget}: at least {turns}, the turns of a rollout (--turns)")
    return {"samples": budget // turns, "greedy": bool(request.greedy)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    name: str
    tables: dict[str, Any] = field(default_factory=dict[str, Any])
    """Tables that replace those of the experiment."""
    seed: int | None = None
    """Seed that generates the problems; None if none are generated."""


def find_suite(text: str) -> Suite:
    """The suite of a name, a directory or an experiment file. Raises ConfigError if there is none,
    or no problem in it."""
    if found := NAMED.fullmatch(text):
        level = f"level{found[1]}"
        there = next((each / level for each in CHECKOUTS if (each / level).is_dir()), None)
        if there is None:
            raise ConfigError(
                f"--suite {text}: found no KernelBench/KernelBench/{level} in {Path.cwd()}; {CLONE}"
            )
        return _directory(there, name=text)
    path = Path(text).expanduser()
    if path.is_dir():
        return _directory(path, name=path.resolve().name)
    if path.suffix == ".toml" and path.is_file():
        experiment = load_experiment(path, is_here=False)
        values = experiment.model_dump(mode="json", exclude_none=True)
        tables = {name: values[name] for name in TABLES}
        return Suite(name=experiment.name, tables=tables, seed=experiment.seed)
    raise ConfigError(
        f"--suite {text}: no such suite; kernelbench-l1 to kernelbench-l4, a directory of "
        "problems, or an experiment file"
    )


def _directory(path: Path, *, name: str) -> Suite:
    """All files below a directory, every one held out. Ids are relative to its parent for a level,
    as in `level1/19_ReLU`."""
    path = path.resolve()
    is_level = re.fullmatch(r"level\d+", path.name) is not None
    root, include = (path.parent, [f"{path.name}/*.py"]) if is_level else (path, [])
    files = find_files(root, include=include)
    if not files:
        raise ConfigError(
            f"--suite {path}: found no *.py below it; problems in KernelBench's layout"
        )
    problems = {"source": "dir", "path": str(root), "include": include, "num_heldout": len(files)}
    return Suite(name=name, tables={"problems": problems})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    label: str
    model: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keys of `[model]`; empty for a server."""
    serve: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keys of `[serve]`: those of a server, or the context of a model."""
    base: schema.Experiment | None = None
    """The experiment of its run, whose settings the evaluation has; None without a run."""
    answer_tokens: int = ANSWER_TOKENS

    @property
    def is_remote(self) -> bool:
        return bool(self.serve.get("url"))


def find_source(request: EvalRequest) -> ModelSource:
    """The model that `request.source` names. Raises ConfigError: there is none; a step without
    weights; a server without this model; MachineError: no server answers, or weights that a run
    needs are not there."""
    text = request.source
    if "://" in text or schema.SERVE_URL.fullmatch(text):
        return _server(request)
    for option, value in (("model", request.model_name), ("api-key-env", request.api_key_env)):
        if value is not None:
            raise ConfigError(
                f"--{option} {value}: for a server (http://HOST:PORT), and {text} is none"
            )
    folder = Path(text).expanduser()
    if (folder / "adapter_config.json").is_file():
        return _adapter(folder.resolve())
    if (folder / "config.json").is_file():
        path = folder.resolve()
        return _local(path, label=text, model={"path": str(path)})
    if schema.is_hub_name(text) and not folder.is_dir() and folder.parent != request.store:
        return ModelSource(
            label=text, model={"path": text}, serve={"context_tokens": CONTEXT_TOKENS}
        )
    return _run(request)


def _server(request: EvalRequest) -> ModelSource:
    """A server that answers now, and its model."""
    if not schema.SERVE_URL.fullmatch(request.source):
        raise ConfigError(f"{request.source}: a server is http://HOST:PORT[/PATH] or unix:/PATH")
    model = anyio.run(_ask_for_model, request)
    serve = {
        "url": [request.source],
        "model_name": model,
        "context_tokens": CONTEXT_TOKENS,
        "request_timeout_s": 900.0,
    }
    if request.api_key_env is not None:
        serve["api_key_env"] = request.api_key_env
    return ModelSource(label=model, serve=serve)


async def _ask_for_model(request: EvalRequest) -> str:
    """The model of a server. Raises ConfigError, MachineError."""
    url = request.source
    async with open_server(
        url, timeout_s=CONNECT_S, key_env=request.api_key_env, key_setting="--api-key-env"
    ) as client:
        try:
            there = [each["id"] for each in await client.models()]
        except (ChildDied, Stalled) as error:
            raise MachineError(f"no server answers: {error}") from error
    return choose_model(url, there, request.model_name, setting=request.model_name_option)


def _local(path: Path, *, label: str, model: dict[str, Any]) -> ModelSource:
    """A model whose `config.json` is in `path`."""
    file = path / "config.json"
    config = _read_json(file) if file.is_file() else {}
    inner: dict[str, Any] = config.get("text_config") or {}
    positions = config.get("max_position_embeddings") or inner.get("max_position_embeddings")
    context = min(CONTEXT_TOKENS, positions if isinstance(positions, int) else CONTEXT_TOKENS)
    return ModelSource(
        label=label,
        model=model,
        serve={"context_tokens": context},
        answer_tokens=min(ANSWER_TOKENS, context // 2),
    )


def _adapter(path: Path) -> ModelSource:
    file = path / "adapter_config.json"
    base = _read_json(file).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ConfigError(f"{file}: found no base_model_name_or_path; the model of the adapter")
    model = {"path": base, "adapter": str(path), "lora": {"r": _read_json(file).get("r", 16)}}
    return _local(Path(base).expanduser(), label=path.name, model=model)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: found no JSON object")
    return cast("dict[str, Any]", found)


def _run(request: EvalRequest) -> ModelSource:
    """A run's model: its newest weights, or those of a step."""
    name, step = split_step(request.source)
    try:
        paths = find_run(name, store_dir=request.store)
    except ConfigError as error:
        raise ConfigError(
            f"{error}; a model is also a directory with config.json, a hub name (owner/name) or "
            "http://HOST:PORT"
        ) from error
    open_run(paths).close()  # first: of another version, its keys may be unknown too
    base = load_experiment(paths.experiment, is_here=False)
    if base.serve.url:
        raise ConfigError(
            f"{paths.name}: a server has its model; forge eval {base.serve.url[0]} evaluates it"
        )
    weights = find_weights(paths, step)
    model = {"path": str(weights.full)}
    if weights.adapter is not None:
        model["adapter"] = str(weights.adapter)
    label = f"{paths.name}:{step}" if step else paths.name
    return ModelSource(label=label, model=model, base=base)
