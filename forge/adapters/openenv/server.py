"""The server of an environment: OpenEnv's WebSocket and HTTP, with the routes of a served pool.

    WS /ws                       one connection, one episode at a time
    POST /reset {problem_id, seed, episode_id, reference_code} → {observation, reward, done}
    POST /step {action: {code}, episode_id}                    → the same
    GET /state?episode_id=…                                    → the state of an episode
    GET /metadata /schema, POST /mcp    what OpenEnv's tools look for

OpenEnv's own HTTP server forgets an episode between two requests; here `episode_id` names it.
Promises: a fault of the judge is 503 with Retry-After; a message that is not understood gets an
error and the connection stays; a connection that is idle for `idle_s` is closed; a client beyond
the limit gets CAPACITY_REACHED; a judgement whose client hangs up leaves the queue, or is finished
if a judge has begun it; a fault of the judge is neither a turn nor a reward; the numbers of answers
and of open episodes are bounded; every refusal is a Refusal with OpenEnv's code, the HTTP status of
the same meaning, and one line of text.

    client ──▶ {type: reset, data: {problem_id, seed, episode_id, reference_code}}
               {type: step, data: {code}}      {type: state}      {type: close}
    server ──▶ {type: observation, data: {observation, reward, done}}
               {type: state, data: {...}}      {type: error, data: {message, code}}

Field names, types and defaults follow openenv 0.10 and openenv-core 0.3. An observation has no
field that kernrl has not, since its models forbid others: facts of forge are in `metadata`.

An answer is a source, or a model's reply with the source in a fence; `class Model` in place of
`ModelNew` is accepted, since kernrl asks for that name. `level1/19_ReLU` is `L1_19_ReLU`, as in
kernrl; a client may also give the id, a number, KernelBench's `level=1 problem_id=19`, or part of a
name.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Annotated, Any, TypeVar
from uuid import uuid4

import anyio
import anyio.to_thread
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.websockets import WebSocket

from forge.adapters.answering import answering_on, for_reward, reward_of
from forge.adapters.http.routes import serve
from forge.adapters.pools import JudgeSettings
from forge.adapters.subjects import KnownProblems, find_code, known_problems, problem_from_text
from forge.adapters.verdict import Verdict
from forge.config.schema import PromptTable, RewardTable, RowFormat
from forge.data.answers import fenced_blocks
from forge.data.problem_files import find_problem
from forge.data.prompts.prompt_set import PromptSet
from forge.errors import ConfigError, MachineError, pip_install
from forge.evalpool.pool import Pool
from forge.evalpool.served import PoolApp, error_with_pause, to_json_response
from forge.process.ask import LOOP_BYTES
from forge.process.server.bodies import INVALID, first_mistake
from forge.process.server.door import Refused, read_object, unless_hung_up
from forge.process.strict_json import BadJson, parse_json
from forge.records import Problem, Reason
from forge.records.problem import ReferenceModule
from forge.rollout.rewards.formulas import is_good_enough
from forge.runner.prepare.prompt_facts import prompts_for

MAX_TURNS = 16
"""Maximum of `--turns`, as of rollout.max_turns."""
MAX_SESSIONS = 256
IDLE_S = 900.0
"""Time without a request after which an episode is closed."""
MAX_BODY_BYTES = 16 << 20
RETRY_AFTER_S = 5
API_VERSION = "1.0.0"
TYPES = "reset, step, state, close"
MAX_AHEAD = 4
"""Messages that a client may send before the first of them is answered."""
CLOSE_TIMEOUT_S = 5.0
"""Maximum time to tell a client that its session has ended."""

MAX_ID = 255
"""Maximum length of an episode's id, as in OpenEnv."""
MAX_CODE = 8 << 20
"""Maximum length of an answer in characters; a judge refuses shorter ones too, with a verdict."""
Id = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID)]


class ErrorCode(StrEnum):
    """Codes of errors on a WebSocket, as OpenEnv's clients show them."""

    INVALID_JSON = "INVALID_JSON"
    """The message is not a JSON object."""
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    """The message has another type than reset, step, state or close."""
    VALIDATION_ERROR = "VALIDATION_ERROR"
    """A field is missing or has another type, or there is no such problem."""
    EXECUTION_ERROR = "EXECUTION_ERROR"
    """No verdict: the judge failed, the problem cannot be judged, or no episode is open."""
    CAPACITY_REACHED = "CAPACITY_REACHED"
    """As many episodes are open as the server allows."""
    SESSION_ERROR = "SESSION_ERROR"
    """The session ended: it was idle for too long."""


class KernelAction(BaseModel):
    """An answer to the problem of the episode."""

    model_config = ConfigDict(extra="forbid")

    code: str = Field(
        min_length=1,
        max_length=MAX_CODE,
        description="Source of the kernel, or a model's whole reply with the source in a fence.",
    )
    metadata: dict[str, Any] = Field(default_factory=dict, description="Ignored.")


class KernelObservation(BaseModel):
    """A problem, and the verdict on the last answer."""

    model_config = ConfigDict(extra="forbid")

    done: bool = Field(default=False, description="True if the episode has ended.")
    reward: float | None = Field(
        default=None, description="Reward of the last answer; 0 at the start."
    )
    metadata: dict[str, Any] = Field(
        default_factory=dict,
        description="episode_id and solved; of a verdict status, reason and reward_terms, and if it"
        " was timed candidate_us, baseline_us and speedup_low.",
    )
    problem_id: str = Field(description="Name of the problem: L1_19_ReLU.")
    problem_description: str = Field(description="Prompt about the problem.")
    reference_code: str = Field(description="Source of the reference.")
    gpu_info: str = Field(description="Card of the judge, or cpu.")
    turn: int = Field(default=0, ge=0, description="Answers given so far.")
    max_turns: int = Field(default=3, ge=1, description="Maximum answers in an episode.")
    feedback: str = Field(default="", description="Message about the verdict, for the model.")
    compilation_success: bool = Field(
        default=False, description="True if the answer's own kernel compiled and was launched."
    )
    compilation_error: str | None = Field(default=None, description="The reason if it did not.")
    correctness_pass: bool | None = Field(
        default=None, description="True if every check passed; null if nothing was launched."
    )
    max_diff: float | None = Field(default=None, description="Always null: see feedback.")
    speedup: float | None = Field(
        default=None, description="Baseline's time over the answer's; null if nothing was timed."
    )


class KernelState(BaseModel):
    """The state of an episode."""

    model_config = ConfigDict(extra="forbid")

    episode_id: str | None = Field(default=None, description="Id of the episode.")
    step_count: int = Field(default=0, ge=0, description="Answers given so far.")
    problem_id: str | None = Field(default=None, description="Name of the problem.")
    turn: int = Field(default=0, ge=0, description="Answers given so far.")
    max_turns: int = Field(default=3, ge=1, description="Maximum answers in an episode.")
    best_speedup: float = Field(default=0.0, ge=0.0, description="Of correct answers; 0 for none.")
    solved: bool = Field(
        default=False, description="True once an answer was correct and fast enough."
    )


class ResetOptions(BaseModel):
    """Parameters of a reset. Unknown ones are ignored, as OpenEnv's own server does."""

    seed: int | None = Field(
        default=None, ge=0, description="Chooses the problem if none is named."
    )
    episode_id: Id | None = Field(default=None, description="Id of the new episode.")
    problem_id: str | None = Field(
        default=None,
        max_length=1024,
        description="Name, number, or part of the name; absent: one by the seed, or at random.",
    )
    reference_code: str | None = Field(
        default=None,
        max_length=MAX_CODE,
        description="Source of a problem that the server does not have.",
    )


class StepOptions(BaseModel):
    """Body of POST /step."""

    action: KernelAction = Field(description="The answer.")
    episode_id: Id | None = Field(
        default=None, description="Episode of a reset over HTTP; absent: the only one that is open."
    )


def serve_environment(
    settings: JudgeSettings,
    *,
    problems: Path | None,
    format: RowFormat,
    num_turns: int,
    **where: Any,
) -> None:
    """Serve until a signal ends it. Raises ConfigError: an option, a path or an address that cannot
    be used; MachineError: a missing package or GPU, or no sandbox. Without `problems` clients
    send the sources. `where`: addresses, and other arguments of the served pool."""
    if not 1 <= num_turns <= MAX_TURNS:
        raise ConfigError(f"--turns {num_turns}: 1 to {MAX_TURNS}")
    if find_spec("websockets") is None:
        raise MachineError(
            "--openenv: the package websockets is missing, which WebSockets need;"
            f" install it: {pip_install('openenv')}"
        )
    table, gpus = settings.table(), settings.gpus()
    served = serve_problems(known_problems(problems, format=format))
    prompts = prompts_for(PromptTable(), table, gpus)

    def routes(pool: Pool, _served: PoolApp) -> Sequence[BaseRoute]:
        rules = EpisodeRules(
            judge=answering_on(pool, table).judge, reward=RewardTable(), prompts=prompts,
            max_turns=num_turns, device=gpus[0].name if gpus else "cpu",
        )  # fmt: skip
        sessions = Sessions(limit=MAX_SESSIONS, idle_s=IDLE_S)
        return routes_of(Environment(rules=rules, problems=served, sessions=sessions))

    paths = openapi_paths()
    more = {"more": routes, "more_paths": paths, "has_websockets": True}
    serve(settings, problems=problems, format=format, **more, **where)


def routes_of(environment: Environment) -> Sequence[BaseRoute]:
    from starlette.routing import Route, WebSocketRoute

    def find(episode_id: str | None) -> Episode | None:
        return environment.sessions.find(episode_id, now=environment.now())

    async def reset(request: Request) -> dict[str, Any]:
        episode = await environment.reset(await _body(request))
        environment.sessions.open(episode, now=environment.now())
        return payload(episode.start())

    async def step(request: Request) -> dict[str, Any]:
        options = parse(StepOptions, await _body(request))
        episode = find(options.episode_id)
        if episode is None:
            raise Refused(404, _unknown(options.episode_id))
        return payload(await unless_hung_up(request, partial(episode.step, options.action)))

    async def state(request: Request) -> dict[str, Any]:
        episode_id = request.query_params.get("episode_id")
        found = find(episode_id)
        if episode_id is not None and found is None:
            raise Refused(404, _unknown(episode_id))
        return (KernelState() if found is None else found.state()).model_dump()

    async def socket(websocket: WebSocket) -> None:
        await serve_socket(websocket, environment)

    return [
        WebSocketRoute("/ws", socket),
        Route("/reset", _answering(reset), methods=["POST"]),
        Route("/step", _answering(step), methods=["POST"]),
        Route("/state", _answering(state)),
        Route("/metadata", _answering(_metadata)),
        Route("/schema", _answering(_schema)),
        Route("/mcp", _answering(_mcp), methods=["POST"]),
    ]


def openapi_paths() -> dict[str, Any]:
    return {
        "/reset": {"post": _operation("Start an episode.", ResetOptions)},
        "/step": {"post": _operation("Judge an answer.", StepOptions)},
        "/state": {"get": _operation("State of an episode.", None)},
    }


def _answering(
    handler: Callable[[Request], Awaitable[dict[str, Any]]],
) -> Callable[[Request], Awaitable[Response]]:
    """A handler whose object is the answer; the door answers other refusals."""

    async def answer(request: Request) -> Response:
        try:
            return to_json_response(await handler(request))
        except Refusal as error:
            if error.status != BUSY:
                raise
            return error_with_pause(str(error), pause_s=RETRY_AFTER_S)

    return answer


def _unknown(episode_id: str | None) -> str:
    if episode_id is None:
        return "episode_id: missing; the answer to POST /reset has it in metadata"
    return f"episode_id: {episode_id[:100]}: no such episode is open; POST /reset starts one"


async def _body(request: Request) -> dict[str, Any]:
    """The body; an empty one has no fields."""
    if request.headers.get("Content-Length", "") == "0":
        return {}
    return await read_object(request, max_bytes=MAX_BODY_BYTES, invalid=422)


async def _metadata(_request: Request) -> dict[str, Any]:
    return {"name": NAME, "description": DESCRIPTION, "version": API_VERSION}


async def _schema(_request: Request) -> dict[str, Any]:
    models = {"action": KernelAction, "observation": KernelObservation, "state": KernelState}
    return {name: model.model_json_schema() for name, model in models.items()}


async def _mcp(request: Request) -> dict[str, Any]:
    """OpenEnv's tools ask whether the address answers; there are no MCP tools."""
    await _body(request)
    error = {"code": -32601, "message": "no MCP here; play episodes at /ws"}
    return {"jsonrpc": "2.0", "id": None, "error": error}


def _operation(summary: str, body: type[Any] | None) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary, "responses": {"200": {"description": "ok"}}}
    if body is not None:
        schema = body.model_json_schema()
        models = schema.pop("$defs", {})  # a reference to them would not hold in the document
        for name, each in schema["properties"].items():
            model = each.get("$ref", "").rpartition("/")[2]
            schema["properties"][name] = models.get(model, each)
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return operation


async def serve_socket(websocket: WebSocket, environment: Environment) -> None:
    from starlette.websockets import WebSocketDisconnect

    await websocket.accept()
    sessions = environment.sessions
    try:
        try:
            sessions.connect(now=environment.now())
        except Refusal as error:
            await _refuse(websocket, error.code, str(error))
            await websocket.close()
        else:
            try:
                await _play(websocket, environment)
            finally:
                sessions.disconnect()
    except* (WebSocketDisconnect, OSError):
        pass  # the client has left


async def _play(websocket: WebSocket, environment: Environment) -> None:
    messages, received = anyio.create_memory_object_stream[str](MAX_AHEAD)
    async with anyio.create_task_group() as tasks, received:
        tasks.start_soon(_receive, websocket, messages, tasks.cancel_scope)
        await _answer_all(websocket, environment, received)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_TIMEOUT_S):
            await websocket.close()


async def _receive(
    websocket: WebSocket, messages: ObjectSendStream[str], scope: anyio.CancelScope
) -> None:
    """Pass on the messages of a client until it hangs up, then cancel what is done for it."""
    async with messages:
        while (message := await websocket.receive())["type"] == "websocket.receive":
            text = message.get("text")
            if text is None:
                text = message["bytes"].decode(errors="replace")
            await messages.send(text)
        scope.cancel()


async def _answer_all(
    websocket: WebSocket, environment: Environment, messages: ObjectReceiveStream[str]
) -> None:
    """Answer messages until one of them is `close`, or none comes for too long."""
    idle_s, episode = environment.sessions.idle_s, None
    while True:
        text = None
        with anyio.move_on_after(idle_s):
            text = await messages.receive()
        if text is None:
            message = f"no message for {idle_s:.0f} s: the session has ended"
            return await _refuse(websocket, ErrorCode.SESSION_ERROR, message)
        try:
            kind, data = _read(text)
            if kind == "close":
                return
            if kind == "reset":
                episode = await environment.reset(data)
                found = {"type": "observation", "data": payload(episode.start())}
            else:
                found = await _answer(episode, kind, data)
            await websocket.send_json(found)
        except Refusal as error:
            await _refuse(websocket, error.code, str(error))


async def _answer(episode: Episode | None, kind: str, data: Any) -> dict[str, Any]:
    if kind == "state":
        state = KernelState() if episode is None else episode.state()
        return {"type": "state", "data": state.model_dump()}
    if kind != "step":
        found = f"type: found {kind[:40]!r}; one of {TYPES}"
        raise Refusal(ErrorCode.UNKNOWN_TYPE, found, status=422)
    if episode is None:
        message = "step: no episode is open; send reset first"
        raise Refusal(ErrorCode.EXECUTION_ERROR, message, status=409)
    observation = await episode.step(parse(KernelAction, data))
    return {"type": "observation", "data": payload(observation)}


def _read(text: str) -> tuple[str, Any]:
    """Type and data of a message. Raises Refusal."""
    try:
        message = parse_json(text.encode(errors="replace"))
    except BadJson as error:
        raise Refusal(ErrorCode.INVALID_JSON, f"message: {error}", status=422) from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):  # pyright: ignore[reportUnknownMemberType]
        text = f"message: a JSON object with a type is needed: {TYPES}"
        raise Refusal(ErrorCode.VALIDATION_ERROR, text, status=422)
    return message["type"], message.get("data", {})  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


async def _refuse(websocket: WebSocket, code: ErrorCode, message: str) -> None:
    await websocket.send_json({"type": "error", "data": {"message": message, "code": str(code)}})


ModelT = TypeVar("ModelT", bound=BaseModel)
NAME = "forge"
DESCRIPTION = (
    "Write Triton kernels that replace a PyTorch module. Every answer is compiled, run and compared"
    " in a sandbox; the reward and the feedback come from the verdict."
)
BUSY = 503
"""Status of a refusal after which the same request may succeed."""
TIMES = ("candidate_us", "baseline_us", "speedup_low")
_LEVEL = re.compile(r"level[_-]?\d+", re.IGNORECASE)
MAX_NAMES = 5


class Refusal(Refused):
    """A request without an observation."""

    def __init__(self, code: ErrorCode, message: str, *, status: int) -> None:
        super().__init__(status, message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRules:
    judge: Callable[[ReferenceModule, str], Awaitable[Verdict]]
    """Judges an answer; a fault is a verdict too."""
    reward: RewardTable
    prompts: PromptSet
    max_turns: int
    device: str


@dataclass(slots=True, kw_only=True)
class Episode:
    rules: EpisodeRules
    episode_id: str
    name: str
    problem: ReferenceModule
    turn: int = 0
    before: Verdict | None = None
    best_speedup: float = 0.0
    is_solved: bool = False
    is_judging: bool = False
    used_at: float = 0.0
    """Time of its last request over HTTP, in seconds."""

    @property
    def is_done(self) -> bool:
        return self.is_solved or self.turn >= self.rules.max_turns

    def start(self) -> KernelObservation:
        return self._observe(reward=0.0, compilation_success=True)

    async def step(self, action: KernelAction) -> KernelObservation:
        """Judge an answer. Raises Refusal for one that is out of order or has no verdict."""
        if self.is_done or self.is_judging:
            ended = f"the episode ended after {self.turn} answers; reset starts another"
            judged = "a step of this episode is being judged; wait for its answer"
            why = ended if self.is_done else judged
            raise Refusal(ErrorCode.EXECUTION_ERROR, why, status=409)
        self.is_judging = True
        try:
            answer = answer_in(action.code, entry_point=self.problem.entry_point)
            verdict = await self.rules.judge(self.problem, answer)
        finally:
            self.is_judging = False
        reward = reward_of(verdict, self.rules.reward, before=self.before)
        if reward.value is None:
            raise _no_verdict(verdict)
        self.before = verdict
        self.turn += 1
        self.is_solved = is_good_enough(for_reward(verdict), self.rules.reward)
        if verdict.correct:
            self.best_speedup = max(self.best_speedup, verdict.speedup or 0.0)
        shown = ("status", "reason", *(TIMES if verdict.speedup is not None else ()))
        return self._observe(
            reward=reward.value,
            feedback=verdict.feedback,
            compilation_success=verdict.compiled,
            compilation_error=None if verdict.compiled else verdict.detail,
            correctness_pass=verdict.correct if verdict.compiled else None,
            speedup=verdict.speedup,
            metadata={
                **{name: getattr(verdict, name) for name in shown},
                "reward_terms": dict(reward.terms),
            },
        )

    def state(self) -> KernelState:
        return KernelState(
            episode_id=self.episode_id, step_count=self.turn, problem_id=self.name,
            turn=self.turn, max_turns=self.rules.max_turns, best_speedup=self.best_speedup,
            solved=self.is_solved,
        )  # fmt: skip

    def _observe(
        self, *, metadata: dict[str, Any] | None = None, **fields: Any
    ) -> KernelObservation:
        messages = self.rules.prompts.first_messages(self.problem)
        return KernelObservation(
            problem_id=self.name,
            problem_description="\n\n".join(message.content for message in messages),
            reference_code=self.problem.source,
            gpu_info=self.rules.device,
            turn=self.turn,
            max_turns=self.rules.max_turns,
            done=self.is_done,
            metadata={"episode_id": self.episode_id, "solved": self.is_solved, **(metadata or {})},
            **fields,
        )


def _no_verdict(verdict: Verdict) -> Refusal:
    """The judge failed, and the same step may succeed later, or the problem cannot be judged."""
    what = "the judge failed" if verdict.infra else "the problem cannot be judged"
    advice = "send the step again" if verdict.infra else "reset with another problem"
    text = f"{what}, not the answer: {verdict.reason}: {verdict.detail}; {advice}"
    return Refusal(ErrorCode.EXECUTION_ERROR, text, status=BUSY if verdict.infra else 422)


def answer_in(text: str, *, entry_point: str) -> str:
    """The source in an answer, which may have the name of the reference alone; the answer itself
    without one."""
    found = find_code(text, entry_point=entry_point)
    if found.is_ok:
        return _renamed(found.code, entry_point)
    if found.reason is Reason.NO_ENTRY_POINT:
        for block in reversed(fenced_blocks(text)):
            if (renamed := _renamed(block.code, entry_point)) != block.code:
                return renamed
    return text


def _renamed(code: str, entry_point: str) -> str:
    """The source with the name that the judge asks for, if it has the reference's alone."""
    named = re.compile(rf"^class[ \t]+{re.escape(entry_point)}\b", re.MULTILINE)
    if f"{entry_point}New" in code or not named.search(code):
        return code
    return f"{code.rstrip()}\n\n\n{entry_point}New = {entry_point}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    rules: EpisodeRules
    problems: ServedProblems
    sessions: Sessions
    now: Callable[[], float] = time.monotonic

    async def reset(self, data: Any) -> Episode:
        """A new episode. Raises Refusal."""
        options = parse(ResetOptions, data)
        if options.reference_code is not None:
            problem = await given_problem(options.reference_code)
            name = options.problem_id or problem.problem_id
        elif options.problem_id is not None:
            name, problem = self.problems.find(options.problem_id)
        else:
            name, problem = self.problems.choose(options.seed)
        episode_id = options.episode_id or str(uuid4())
        return Episode(rules=self.rules, episode_id=episode_id, name=name, problem=problem)


def parse(model: type[ModelT], data: Any) -> ModelT:
    """A message's data as a model. Raises Refusal, which names the first field that is wrong."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise Refusal(
            ErrorCode.VALIDATION_ERROR, first_mistake(error, model), status=INVALID
        ) from None


def payload(observation: KernelObservation) -> dict[str, Any]:
    """An observation as clients of OpenEnv read it: reward and end next to it. Its metadata is in
    both places, since clients of different versions look into one or the other."""
    inner = observation.model_dump(exclude={"reward", "done"})
    return {
        "observation": inner,
        "reward": observation.reward,
        "done": observation.done,
        "metadata": observation.metadata,
    }


@dataclass(slots=True, kw_only=True)
class Sessions:
    """Open connections, and episodes over HTTP by their ids."""

    limit: int
    """Maximum of both together."""
    idle_s: float
    """Seconds without a request after which an episode over HTTP is closed."""
    num_connections: int = 0
    _episodes: dict[str, Episode] = field(default_factory=dict[str, "Episode"])

    @property
    def num_open(self) -> int:
        return self.num_connections + len(self._episodes)

    def connect(self, *, now: float) -> None:
        """Take a place for a connection. Raises Refusal."""
        self._make_place(now)
        self.num_connections += 1

    def disconnect(self) -> None:
        self.num_connections -= 1

    def open(self, episode: Episode, *, now: float) -> None:
        """Keep an episode over HTTP, in place of one with the same id. Raises Refusal."""
        if episode.episode_id not in self._episodes:
            self._make_place(now)
        self._episodes[episode.episode_id] = episode
        episode.used_at = now

    def find(self, episode_id: str | None, *, now: float) -> Episode | None:
        """An open episode; without an id, the only one. None if there is no such episode."""
        self._expire(now)
        if episode_id is None and len(self._episodes) == 1:
            episode_id = next(iter(self._episodes))
        found = None if episode_id is None else self._episodes.get(episode_id)
        if found is not None:
            found.used_at = now
        return found

    def _make_place(self, now: float) -> None:
        if self.num_open < self.limit:
            return
        self._expire(now)
        ended = [episode for episode in self._episodes.values() if episode.is_done]
        if self.num_open >= self.limit and ended:
            del self._episodes[min(ended, key=lambda episode: episode.used_at).episode_id]
        if self.num_open >= self.limit:
            text = f"{self.limit} episodes are open, the maximum; try again later"
            raise Refusal(ErrorCode.CAPACITY_REACHED, text, status=BUSY)

    def _expire(self, now: float) -> None:
        self._episodes = {
            key: episode
            for key, episode in self._episodes.items()
            if now - episode.used_at <= self.idle_s or episode.is_judging
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedProblems:
    by_name: Mapping[str, Problem]

    @property
    def names(self) -> Sequence[str]:
        return tuple(self.by_name)

    def find(self, name: str) -> tuple[str, Problem]:
        """The name and the problem that a client means. Raises Refusal."""
        by_id = {problem.problem_id: known for known, problem in self.by_name.items()}
        found = name if name in self.by_name else by_id.get(find_problem(name, list(by_id)) or "")
        found = found or next((each for each in self.names if name and name in each), None)
        if found is None:
            listed = ", ".join(self.names[:MAX_NAMES])
            more = len(self.names) - MAX_NAMES
            rest = f" and {more} more" if more > 0 else ""
            raise _no_problem(
                f"problem_id: {name[:100]}: no such problem; there are {listed}{rest}"
            )
        return found, self.by_name[found]

    def choose(self, seed: int | None) -> tuple[str, Problem]:
        """A problem at random; the same for the same seed. Raises Refusal if there is none."""
        if not self.names:
            raise _no_problem("the server has no problems of its own; send reference_code")
        name = random.Random(seed).choice(self.names)
        return name, self.by_name[name]


def serve_problems(known: KnownProblems | None) -> ServedProblems:
    """All known problems: `L1_19_ReLU` for a file in a folder of a level, else by their ids. Raises
    ConfigError for a file that has no problem."""
    by_name: dict[str, Problem] = {}
    for problem in () if known is None else (known.problem(known.file(n)) for n in known.names):
        name = problem.problem_id
        if _LEVEL.fullmatch(problem.family):
            name = f"L{problem.level}_{PurePath(name).name}"
        by_name[problem.problem_id if name in by_name else name] = problem
    return ServedProblems(by_name=by_name)


async def given_problem(source: str) -> ReferenceModule:
    """The problem in a source that a client sends. Raises Refusal."""
    try:
        if len(source) > LOOP_BYTES:
            return await anyio.to_thread.run_sync(problem_from_text, source)
        return problem_from_text(source)
    except ConfigError as error:
        raise _no_problem(f"reference_code: {' '.join(str(error).split())}") from error


def _no_problem(text: str) -> Refusal:
    return Refusal(ErrorCode.VALIDATION_ERROR, text, status=422)
