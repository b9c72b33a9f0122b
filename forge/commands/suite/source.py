"""The model of `forge eval`, wherever it is: tables of an experiment, and a name for people."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio

from forge.config.load import load_experiment
from forge.config.schema.problems import is_hub_name
from forge.config.schema.serving import SERVE_URL
from forge.errors import ConfigError, MachineError
from forge.runner.weights.resume import find_weights
from forge.serve.remote.teacher import TeacherSettings, open_teacher
from forge.store.layout import find_run

if TYPE_CHECKING:
    from forge.commands.suite.request import EvalRequest
    from forge.config.schema import Experiment

CONTEXT_TOKENS = 24576
"""Default context of a model that has so many positions; a server's is not known."""
ANSWER_TOKENS = 8192
"""Default length of an answer; half of the context of a model that has fewer than twice this."""
CONNECT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model to evaluate."""

    label: str
    """Name in results."""
    model: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keys of `[model]`; empty for a server."""
    serve: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keys of `[serve]`: those of a server, or the context of a model."""
    base: Experiment | None = None
    """The experiment of its run, whose settings the evaluation has; None without a run."""
    answer_tokens: int = ANSWER_TOKENS

    @property
    def is_remote(self) -> bool:
        """True if a server has the model."""
        return bool(self.serve.get("url"))


def find_source(request: EvalRequest) -> ModelSource:
    """The model that `request.source` names.

    Raises:
        ConfigError: there is none; a step without weights; a server without this model.
        MachineError: no server answers, or weights that a run needs are not there.
    """
    text = request.source
    if "://" in text or SERVE_URL.fullmatch(text):
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
    if is_hub_name(text) and not folder.is_dir() and folder.parent != request.store:
        return ModelSource(
            label=text, model={"path": text}, serve={"context_tokens": CONTEXT_TOKENS}
        )
    return _run(request)


def _server(request: EvalRequest) -> ModelSource:
    """A server that answers now, and its model."""
    settings = TeacherSettings(
        url=request.source,
        model=request.model_name,
        api_key_env=request.api_key_env,
        timeout_s=CONNECT_S,
    )
    if not SERVE_URL.fullmatch(settings.url):
        raise ConfigError(f"{settings.url}: a server is http://HOST:PORT[/PATH] or unix:/PATH")
    try:
        model = anyio.run(partial(_ask_for_model, settings))
    except MachineError as error:
        raise MachineError(str(error).removeprefix("--url: ")) from error
    serve = {
        "url": [settings.url],
        "model_name": model,
        "context_tokens": CONTEXT_TOKENS,
        "request_timeout_s": 900.0,
    }
    if settings.api_key_env is not None:
        serve["api_key_env"] = settings.api_key_env
    return ModelSource(label=model, serve=serve)


async def _ask_for_model(settings: TeacherSettings) -> str:
    async with open_teacher(settings) as teacher:
        return teacher.model


def _local(path: Path, *, label: str, model: dict[str, Any]) -> ModelSource:
    """A model whose `config.json` is in `path`."""
    positions = _positions(path / "config.json")
    context = min(CONTEXT_TOKENS, positions or CONTEXT_TOKENS)
    return ModelSource(
        label=label,
        model=model,
        serve={"context_tokens": context},
        answer_tokens=min(ANSWER_TOKENS, context // 2),
    )


def _adapter(path: Path) -> ModelSource:
    """An adapter on the model that its configuration names."""
    file = path / "adapter_config.json"
    base = _read_json(file).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ConfigError(f"{file}: found no base_model_name_or_path; the model of the adapter")
    model = {"path": base, "adapter": str(path), "lora": {"r": _read_json(file).get("r", 16)}}
    return _local(Path(base).expanduser(), label=path.name, model=model)


def _positions(file: Path) -> int | None:
    """Positions that a model knows; None if they are unknown."""
    if not file.is_file():
        return None
    config = _read_json(file)
    inner: dict[str, Any] = config.get("text_config") or {}
    found = config.get("max_position_embeddings") or inner.get("max_position_embeddings")
    return found if isinstance(found, int) else None


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
    name, _, step = request.source.rpartition(":")
    if not name or not step.isdecimal():
        name, step = request.source, ""
    try:
        paths = find_run(name, store_dir=request.store)
    except ConfigError as error:
        raise ConfigError(
            f"{error}; a model is also a directory with config.json, a hub name (owner/name) or "
            "http://HOST:PORT"
        ) from error
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
