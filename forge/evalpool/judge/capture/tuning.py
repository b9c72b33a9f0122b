"""Autotuners of a candidate become choices.

`triton.autotune` yields every configuration that its pruning leaves as an alternative; the judge
times them and has the candidate captured again with `choices = {key: label}`, which launches the
winner alone.
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources, PTXASError

from forge.evalpool.judge.program.format import Alternative, Choice, Node, Op
from forge.evalpool.judge.program.walk import tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forge.evalpool.judge.capture.recorder import Recorder

SKIPPED = (OutOfResources, CompileTimeAssertionFailure, PTXASError)
"""With these Triton's autotuner skips a configuration."""
MAX_LABEL_CHARACTERS = 300


class Tuning:
    def __init__(self, recorder: Recorder, answers: dict[str, str]) -> None:
        """`answers`: label of the winner, by key of the choice."""
        self.recorder = recorder
        self.answers = answers
        self._settled: dict[str, str] = {}
        """Labels taken in the current call of forward: only a key's first launch chooses."""

    def begin_call(self, winners: dict[str, str] | None = None) -> None:
        """A new call of forward chooses anew, but for choices with a winner: a program must not
        depend on an earlier call."""
        self._settled = dict(winners or {})

    def run(self, tuner: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of `Autotuner.run`: records all configurations as a choice, or launches the one
        that an answer or an earlier launch of this call of forward settles. Those that do not
        compile are skipped."""
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        configs = list(tuner.prune_configs(kwargs) if len(tuner.configs) > 1 else tuner.configs)
        labels = [str(one)[:MAX_LABEL_CHARACTERS] for one in configs]
        key = _key(tuner, kwargs)
        answer = self._settled.get(key, self.answers.get(key))
        number, is_settled = 0, answer is not None or len(configs) == 1
        if answer in labels:
            number = labels.index(answer)
        elif not is_settled:
            found = self._recorded(tuner, configs, args, kwargs)
            number = next(iter(found))
            made = {labels[at]: nodes for at, nodes in found.items()}
            self._add_choice(key, made, lambda: _restored(tuner, configs[0], kwargs))
        with nullcontext() if is_settled else self.recorder.aside():
            # Again: hooks of later configurations have changed what it prepared.
            result = self._launch(tuner, configs[number], args, kwargs)
        tuner.best_config = configs[number]
        tuner.nargs = None
        return result

    def _recorded(
        self, tuner: Any, configs: list[Any], args: Any, kwargs: Any
    ) -> dict[int, tuple[Node, ...]]:
        """Nodes of each configuration that compiles, by its position."""
        found: dict[int, tuple[Node, ...]] = {}
        failure: BaseException | None = None
        for number, config in enumerate(configs):
            try:
                with self.recorder.aside() as nodes:
                    self._launch(tuner, config, args, kwargs)
            except SKIPPED as error:
                failure = error
                continue
            found[number] = tuple(nodes)
        if not found:
            assert failure is not None
            raise failure
        return found

    def _add_choice(
        self, key: str, found: dict[str, tuple[Node, ...]], restored: Callable[[], list[Any]]
    ) -> None:
        """Adds a choice. `restored` gives the tensors that are restored after each benchmark."""
        self._settled[key] = next(iter(found))
        with self.recorder.aside() as nodes:
            tensors = [one for one in restored() if isinstance(one, torch.Tensor)]
        numbers = [self.recorder.tensor(one) for one in tensors]
        for node in nodes:
            numbers += node.results if isinstance(node, Op) else tensors_of(node)
        kept = tuple(dict.fromkeys(numbers))
        alternatives = tuple(
            Alternative(label=label, nodes=nodes, restored=kept) for label, nodes in found.items()
        )
        self.recorder.add(Choice(alternatives=alternatives, key=key, line=self.recorder.line()))

    def _launch(self, tuner: Any, config: Any, args: Any, kwargs: Any) -> Any:
        if config.pre_hook is not None:
            config.pre_hook({**tuner.nargs, **kwargs, **config.all_kwargs()})
        return tuner.fn.run(*args, **kwargs, **config.all_kwargs())


def _key(tuner: Any, kwargs: dict[str, Any]) -> str:
    """Name of a tuner's choice for these arguments, as Triton tells them apart."""
    known = {**tuner.nargs, **kwargs}
    known = {name: value for name, value in known.items() if name in tuner.arg_names}
    parts = [known[name] for name in tuner.keys if name in known]
    parts += [str(value.dtype) for value in known.values() if hasattr(value, "dtype")]
    digest = hashlib.sha256(repr(parts).encode(errors="replace")).hexdigest()[:16]
    line = tuner.base_fn.__code__.co_firstlineno
    return f"{tuner.base_fn.__name__[:60]}.{line}.{digest}"


def _restored(tuner: Any, config: Any, kwargs: Any) -> list[Any]:
    """Arguments that the autotuner restores or zeroes around a benchmark run; runs hooks of the
    candidate's own, which write to others."""
    arguments = {**tuner.nargs, **kwargs, **config.all_kwargs()}
    if getattr(tuner, "user_defined_pre_hook", False):
        tuner.pre_hook(arguments)
    if getattr(tuner, "user_defined_post_hook", False):
        tuner.post_hook(arguments, exception=None)
    return [arguments.get(name) for name in (*tuner.reset_to_zero, *tuner.restore_value)]


def patches(tuning: Tuning) -> Iterator[tuple[Any, str, Any]]:
    """Attributes of Triton to replace: owner, name, value."""

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        return tuning.run(tuner, *args, **kwargs)

    def getitem(tuner: Any, grid: Any) -> Any:
        # Also for a subclass with a `run` of its own, which only caches results.
        return lambda *args, **kwargs: run(tuner, *args, grid=grid, warmup=False, **kwargs)

    yield Autotuner, "run", run
    yield Autotuner, "__getitem__", getitem
