"""Engines stepped in the tests' own process, and their distance to transformers."""

from typing import Any

import numpy as np

from forge.serve.engine.worker import StepEngine
from forge.serve.port import Request
from tests.serve.conftest import Reference


def request(num_prompt: int, *, n: int = 1, max_tokens: int = 20, **fields: Any) -> Request:
    """A request with random tokens, which depend on `num_prompt` alone."""
    prompt = np.random.default_rng(num_prompt).integers(0, 512, num_prompt)
    values = {"temperature": 1.0, "seed": num_prompt, **fields}
    return Request(prompt=prompt, n=n, max_tokens=max_tokens, **values)


def run(engine: StepEngine, *requests: Request, steps: int | None = None) -> None:
    """Add the requests and step until all are finished, or so many times."""
    for one in requests:
        engine.add(one)
    while engine.is_active and steps != 0:
        engine.step()
        steps = None if steps is None else steps - 1


def gap(reference: Reference, one: Request) -> float:
    """Largest mean |Δ logprob| of a request's samples against transformers."""
    prompt, worst = one.prompt.tolist(), 0.0
    for sample in one.samples:
        tokens = sample.tokens.tolist()
        sampled = reference.logprobs(prompt, tokens, temperature=one.temperature or 1.0)
        worst = max(worst, float(np.abs(sampled - sample.logprobs).mean()))
    return worst
