# pyright: strict
"""The answer of a probe: JSON lines in a file, which survive a crash of the process.

A line with `doing` says what comes next, so that a crash or a hang has a place; a line with `error`
is the exception that ended the probe. Other lines are the probe's own.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from forge.errors import Stalled
from forge.process.gpu_locks import GpuLease
from forge.process.lease import hold_lease

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

LEASE_S = 20.0
"""Maximum wait for a judge that times kernels on the GPU."""
MAX_ERROR = 300
"""Characters of an error that are reported; the log has all."""


class AnswerFile:
    """The open file. Each line is one write, so several processes may share it."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._doing = ""

    def begin(self, doing: str, **values: Any) -> None:
        """Append a line that says what this process does next."""
        self._doing = doing
        self.say(doing=doing, **values)

    def fail(self, error: Exception) -> None:
        """Append a line with the error and what this process was doing."""
        self.say(error=describe(error), doing=self._doing)

    def say(self, **values: Any) -> None:
        """Append a line."""
        os.write(self._fd, f"{json.dumps(values)}\n".encode())


def run_probe(try_it: Callable[[Mapping[str, Any], AnswerFile], None]) -> None:
    """Hold the lease, run `try_it` with the config, and end this process.

    It ends without the interpreter's shutdown, in which CUDA and NCCL sometimes hang or crash: the
    answer is written.
    """
    config = hold_lease()
    end_with(try_it, config, AnswerFile(config["answer_path"]))


def end_with(
    try_it: Callable[[Mapping[str, Any], AnswerFile], None],
    config: Mapping[str, Any],
    answer: AnswerFile,
) -> None:
    """Run `try_it`, report its exception, and end this process."""
    code = 1
    try:
        try_it(config, answer)
        code = 0
    except Stalled as error:
        answer.say(busy=str(error))
    except Exception as error:  # boundary: any failure of the tried thing is the answer
        traceback.print_exc()
        answer.fail(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def describe(error: BaseException) -> str:
    """Class and first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:MAX_ERROR]


@contextmanager
def gpus_held(uuids: Iterable[str]) -> Generator[None]:
    """Share the GPUs with other work, so that no judge times a kernel meanwhile. Raises Stalled."""
    with ExitStack() as held:
        for uuid in uuids:
            held.enter_context(GpuLease(uuid).shared(timeout_s=LEASE_S))
        yield
