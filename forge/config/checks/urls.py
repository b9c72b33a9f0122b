"""Checks of `serve.url` and `judge.url`: servers that a run uses instead of starting its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.config.checks.mistake import mistake
from forge.config.schema import JUDGE_URL, SERVE_URL, EvalStage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.config.checks.mistake import Mistake
    from forge.config.schema import Experiment


def check_judge_url(experiment: Experiment) -> Iterator[Mistake]:
    """Addresses of judge pools in a form that can be connected to."""
    for index, url in enumerate(experiment.judge.url):
        if not JUDGE_URL.fullmatch(url):
            yield mistake(f'found "{url}"; http://HOST:PORT or unix:/PATH', "judge", "url", index)


def check_serve_url(experiment: Experiment) -> Iterator[Mistake]:
    """Addresses of model servers, the keys that need one, and stages that they cannot serve."""
    serve = experiment.serve
    for index, url in enumerate(serve.url):
        if not SERVE_URL.fullmatch(url):
            text = f'found "{url}"; http://HOST:PORT[/PATH] or unix:/PATH'
            yield mistake(text, "serve", "url", index)
    for name in ("api_key_env", "model_name"):
        if getattr(serve, name) and not serve.url:
            yield mistake("set without serve.url; it applies to that server", "serve", name)
    for index, stage in enumerate(experiment.stage):
        if serve.url and not isinstance(stage, EvalStage):
            yield mistake(
                f'found "{stage.kind}" with serve.url, whose servers take no new weights; eval '
                "stages only, or remove serve.url to start engines",
                *("stage", index, "kind"),
            )
