"""Autotuners and hand-made benchmarks of a candidate become choices.

`triton.autotune` yields every configuration that its pruning leaves as an alternative; the judge
times them and has the candidate captured again with `choices = {key: label or position}`, which
launches the winner alone. Calls of `do_bench` without another launch between them are a choice too.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch
import triton.testing
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources, PTXASError

from forge.evalpool.judge.program.format import BENCHMARK, Alternative, Choice, Node, Op
from forge.evalpool.judge.program.walk import tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forge.evalpool.judge.capture.recorder import Recorder

SKIPPED = (OutOfResources, CompileTimeAssertionFailure, PTXASError)
"""With these Triton's autotuner skips a configuration."""
MAX_LABEL_CHARACTERS = 300
BENCH_MS = 1.0
"""Claimed time of the first of several benchmarks; the chosen one is faster, later ones slower."""


class Tuning:
    """The choices of one candidate.

    Args:
        answers: Label or position of the winner, by key of the choice.
    """

    def __init__(self, recorder: Recorder, answers: dict[str, int | str]) -> None:
        self.recorder = recorder
        self.answers = answers
        self._settled: dict[str, str] = {}
        """Labels taken in the current call of forward: only a key's first launch chooses."""
        self._benches: list[Alternative] = []
        self._position: tuple[int, int] | None = None
        """Place in the program of the benchmarks that wait for more of their kind."""
        self._num_groups = 0
        self.is_first_call = False
        """True where the first call is the program."""
        self.benched: dict[str, Choice] = {}
        """Choices between benchmarks of the candidate's own, by key."""

    def begin_call(self, winners: dict[str, str] | None = None) -> None:
        """A new call of forward chooses anew, but for choices with a winner: a program must not
        depend on an earlier call."""
        self._settled = dict(winners or {})
        self.end_benches()

    # triton.autotune

    def run(self, tuner: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of `Autotuner.run`."""
        if kwargs.get("warmup"):
            return self._launch(tuner, tuner.configs[0], args, kwargs)
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        configs = list(tuner.prune_configs(kwargs) if len(tuner.configs) > 1 else tuner.configs)
        key = _key(tuner, kwargs)
        alternatives = [
            (str(one), lambda one=one: self._launch(tuner, one, args, kwargs)) for one in configs
        ]
        result, number = self.choose(
            key, alternatives, lambda: _restored(tuner, configs[0], kwargs)
        )
        chosen = configs[number]
        tuner.best_config = chosen
        tuner.cache[key] = chosen
        tuner.configs_timings = {one: [BENCH_MS] * 3 for one in configs}
        tuner.bench_time = 0.0
        tuner.nargs = None
        return result

    def choose(
        self,
        key: str,
        alternatives: list[tuple[str, Callable[[], Any]]],
        restored: Callable[[], list[Any]],
    ) -> tuple[Any, int]:
        """Records all alternatives as a choice, or the one that an answer or an earlier launch of
        this call of forward settles.

        Args:
            key: The choice's name.
            alternatives: A label each, and a call that launches. Those that do not compile are
                skipped.
            restored: The tensors that are restored after each benchmark run.

        Returns:
            The result of the launch that counts, and its position among all alternatives.
        """
        labels = [label[:MAX_LABEL_CHARACTERS] for label, _ in alternatives]
        answer = self._settled.get(key, self.answers.get(key))
        if isinstance(answer, str) or len(alternatives) == 1:
            number = labels.index(answer) if answer in labels else 0
            return alternatives[number][1](), number
        found: dict[int, tuple[Any, tuple[Node, ...]]] = {}
        failure: BaseException | None = None
        for number, (_, launch) in enumerate(alternatives):
            try:
                with self.recorder.aside() as nodes:
                    result = launch()
            except SKIPPED as error:
                failure = error
                continue
            found[number] = (result, tuple(nodes))
            if answer is not None and len(found) > answer:
                self.recorder.take(nodes)
                return result, number
        if not found:
            assert failure is not None
            raise failure
        self._add_choice(
            key, {labels[number]: nodes for number, (_, nodes) in found.items()}, restored
        )
        first = next(iter(found))
        with self.recorder.aside():  # hooks of later configurations have changed what it prepared
            alternatives[first][1]()
        return found[first][0], first

    def _add_choice(
        self, key: str, found: dict[str, tuple[Node, ...]], restored: Callable[[], list[Any]]
    ) -> None:
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

    # do_bench

    def bench(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of `triton.testing.do_bench`: records what would be measured; as a part of the
        program where that is the first call."""
        position = self.recorder.position()
        if position != self._position:
            self.end_benches()
            self._position = position
        with self.recorder.aside() as nodes:
            call()
        if self.is_first_call:
            self.recorder.take(nodes)
        number = len(self._benches)
        label = f"benchmark {number} at line {self.recorder.line()}"
        self._benches.append(Alternative(label=label, nodes=tuple(nodes)))
        answer = self.answers.get(self._bench_key(), 0)
        chosen = number == answer or label == answer
        time = BENCH_MS / 2 if chosen else BENCH_MS + number / 1000
        quantiles = kwargs.get("quantiles")
        if quantiles is not None:
            return [time] * len(quantiles)
        return [time] if kwargs.get("return_mode") == "all" else time

    def end_benches(self) -> None:
        """Closes the choice between the last benchmarks, if there were several."""
        key = self._bench_key()
        if len(self._benches) > 1 and key not in self.answers and not self.is_first_call:
            line = self.recorder.line()
            choice = Choice(alternatives=tuple(self._benches), key=key, line=line)
            self.benched[key] = choice
        if self._benches:
            self._num_groups += 1
        self._benches, self._position = [], None

    def _bench_key(self) -> str:
        return f"{BENCHMARK}{self._num_groups}"


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
    for name in ("do_bench", "do_bench_cudagraph"):
        yield triton.testing, name, tuning.bench
