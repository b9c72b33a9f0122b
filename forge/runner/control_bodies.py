"""Bodies of requests to control.sock: what a trainer and `forge stop` send.

Used by `control.py`. Strict: a value of another type, a step out of range, a number that is not
finite are refused in one line, so that nothing impossible reaches the loop or the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from forge.process.server.door import Refused
from forge.runner.weights.sync import Probe

if TYPE_CHECKING:
    from collections.abc import Mapping

Body = TypeVar("Body", bound=BaseModel)

Step = Annotated[int, Field(ge=0, lt=1 << 31)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
MAX_REASON = 200


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class AtStep(_Strict):
    """`/take`: the batch after a step. `/checkpoint`: one of a step is complete."""

    step: Step


class Report(AtStep):
    """`/trained` and `/progress`: a step's metrics."""

    metrics: dict[str, float]


class ProbeBody(_Strict):
    """Fields of `Probe`."""

    prompt_ids: TokenIds
    completion_ids: TokenIds
    logprobs: list[float]
    before: list[float] | None = None


class Publication(AtStep):
    """`/publish`: new weights."""

    path: str
    probe: ProbeBody | None = None

    def to_probe(self) -> Probe | None:
        """The probe, if there is one."""
        return None if self.probe is None else Probe(**self.probe.model_dump())


class MemoryFailure(_Strict):
    """`/failed`: a trainer ends because GPU memory ran out."""

    micro_batch_tokens: int | None
    peak_bytes: int
    free_bytes: int
    rank: int


class StopBody(_Strict):
    """`/stop`: the reason, for people."""

    reason: str = Field(default="forge stop", max_length=MAX_REASON)


def read_body_as(kind: type[Body], body: Mapping[str, Any]) -> Body:
    """A body of this kind. Raises Refused with the first mistake."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Refused(400, f"{where}: {first['msg']}; found {first['input']!r}"[:300]) from error
