"""The host's side of a reward function: a child that calls it, under a deadline for each call.

    verdict ─▶ score ─▶ POST /score ─▶ the user's function ─▶ terms
                 └── fault, silence or death: one line with file:line, the problem and the turn

Opened by the runner for as long as stages are played, and by `try_function` before a run. Calls run
one after the other; a deadline begins with the call, not with the wait for an earlier one. After
a failed call every later one fails alike: the run ends, and its file can be repaired.

Not covered: the function is the user's own code. It runs without sandbox, with this user's rights;
a process that it starts in a session of its own outlives the child.
"""

from __future__ import annotations

import re
import sys
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio

from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled
from forge.process.ask import error_message, open_client, parse_content, send
from forge.process.child import ChildSpec, open_child
from forge.process.environment import child_env
from forge.process.sockets import open_socket_dir
from forge.records import Reason, Status, Timing, Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    import httpx

    from forge.config.schema import RewardTable
    from forge.process.child import Child, ProcessObserver

CHILD = "reward"
LOAD_TIMEOUT_S = 60.0
"""Maximum time to execute the file: it may import torch."""
STACKS_S = 0.3
"""Time from the signal that dumps a child's stacks until they are in its log."""
DEATH_S = 2.0
"""Maximum wait for the end of a child that hung up."""
LOADING = "loading it"
TRIAL = "trial call before the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFile:
    path: Path
    name: str
    sha256: str

    def to_json(self) -> dict[str, str]:
        return {"file": str(self.path), "function": self.name, "sha256": self.sha256}


class FunctionScorer:
    """Scores verdicts by the user's function. Made by `open_scorer`."""

    def __init__(self, reward: RewardTable, child: Child, client: httpx.AsyncClient) -> None:
        self.per: Literal["turn", "group"] = reward.function_per
        self._timeout_s = reward.function_timeout_s
        self._path, self._name = split_function(reward.function or "")
        self._child, self._client = child, client
        self._line = 1
        self._one = anyio.Lock()
        self._failure: ForgeError | None = None

    async def load(self) -> FunctionFile:
        found = await self._call("/load", {}, where=LOADING, timeout_s=LOAD_TIMEOUT_S)
        self._line = found["line"]
        return FunctionFile(path=self._path, name=self._name, sha256=found["sha256"])

    async def score(self, verdict: Verdict, *, where: str) -> Mapping[str, float]:
        """Terms of one verdict. Raises ConfigError, Stalled, ChildDied. `where`: the turn, for
        messages."""
        body = {"verdict": _sent(verdict)}
        found = await self._call("/score", body, where=where, timeout_s=self._timeout_s)
        return found["terms"]

    async def score_group(
        self, rollouts: Sequence[Sequence[Verdict]], *, where: str
    ) -> list[list[Mapping[str, float]]]:
        """Terms of all verdicts of a group, by rollout and turn. Raises as `score`."""
        body = {"rollouts": [[_sent(verdict) for verdict in row] for row in rollouts]}
        found = await self._call("/score_group", body, where=where, timeout_s=self._timeout_s)
        return found["terms"]

    async def _call(
        self, path: str, body: Mapping[str, Any], *, where: str, timeout_s: float
    ) -> dict[str, Any]:
        async with self._one:
            if self._failure is not None:
                raise self._failure
            try:
                found = await self._ask(path, body, where=where, timeout_s=timeout_s)
            except ForgeError as error:
                self._failure = error
                raise
        return found

    async def _ask(
        self, path: str, body: Mapping[str, Any], *, where: str, timeout_s: float
    ) -> dict[str, Any]:
        try:
            answer = await send(self._client, "POST", path, body, server=CHILD, timeout_s=timeout_s)
        except Stalled as error:
            self._child.dump_stacks()
            await anyio.sleep(STACKS_S)
            line = self._line_in_log()
            await self._child.kill()
            key = "" if where == LOADING else " (reward.function_timeout_s)"
            text = f"did not return within {timeout_s:g} s{key}"
            raise Stalled(self._words(line, text, where)) from error
        except ChildDied as error:
            with anyio.move_on_after(DEATH_S):
                await self._child.wait()
            text = f"ended its process: {self._child.exit_reason or 'it hung up'}"
            raise ChildDied(self._words(self._line_in_log(), text, where)) from error
        if answer.status != 200:
            raise MachineError(f"{CHILD}: status {answer.status}: {error_message(answer.content)}")
        found = await parse_content(answer.content)
        if (fault := found.get("fault")) is not None:
            raise ConfigError(f"{self._path}:{fault['line']}: {fault['text']} ({where})")
        return found

    def _words(self, line: int, text: str, where: str) -> str:
        subject = "the file" if where == LOADING else self._name
        return f"{self._path}:{line}: {subject} {text} ({where})"

    def _line_in_log(self) -> int:
        """The innermost line of the user's file in the stacks at the end of the log; that of the
        function if there are none."""
        frame = re.compile(rf'File "{re.escape(str(self._path))}", line (\d+) in ')
        found = frame.search(self._child.last_log_lines(200))
        return int(found[1]) if found else self._line


@asynccontextmanager
async def open_scorer(
    reward: RewardTable, *, socket_dir: Path, log_dir: Path, observer: ProcessObserver | None = None
) -> AsyncGenerator[tuple[FunctionScorer, FunctionFile]]:
    """The scorer of `reward.function`, which is loaded, and its file. Raises ConfigError, Stalled
    or ChildDied with a line of the file."""
    path, name = split_function(reward.function or "")
    socket_path = socket_dir / f"{CHILD}.sock"
    spec = ChildSpec(
        name=CHILD,
        argv=(sys.executable, "-m", "forge.rollout.rewards.function"),
        log_path=log_dir / f"{CHILD}.log",
        env=child_env(threads=1),
        socket_path=socket_path,
        config={"file": path, "function": name, "socket_path": socket_path},
        stop_grace_s=1.0,
    )
    async with (
        open_child(spec, observer=observer) as child,
        open_client(socket_path, timeout_s=reward.function_timeout_s) as client,
    ):
        scorer = FunctionScorer(reward, child, client)
        yield scorer, await scorer.load()


async def try_function(reward: RewardTable, *, is_timed: bool) -> None:
    """Load the function and call it once on made verdicts: a refused candidate and a correct one.
    Raises ConfigError, Stalled or ChildDied. `is_timed`: correct candidates of the run have a
    time."""
    timing = Timing(
        speedup=1.5, speedup_low=1.4, candidate_us=20.0, baseline_us=30.0,
        candidate_spread_us=0.2, baseline_spread_us=0.3,
    )  # fmt: skip
    made = [
        Verdict(status=Status.REJECTED, reason=Reason.NO_CODE_BLOCK, detail="a trial"),
        Verdict(
            status=Status.CORRECT, reason=Reason.OK, detail="", is_compiled=True, num_launches=1,
            timing=timing if is_timed else None,
        ),
    ]  # fmt: skip
    with open_socket_dir() as socket_dir, tempfile.TemporaryDirectory() as log_dir:
        async with open_scorer(reward, socket_dir=socket_dir, log_dir=Path(log_dir)) as (scorer, _):
            if scorer.per == "group":
                await scorer.score_group([made, made[1:], []], where=TRIAL)
                return
            for verdict in made:
                await scorer.score(verdict, where=TRIAL)


def split_function(value: str) -> tuple[Path, str]:
    file, _, name = value.rpartition(":")
    return Path(file), name


def _sent(verdict: Verdict) -> dict[str, Any]:
    """A verdict as the function gets it: without program and profile, which are bulky."""
    return replace(verdict, program=None, profile=None).to_json()
