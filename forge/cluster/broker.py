# pyright: strict
"""`python -m forge.cluster.broker CONFIG.json`: the process that speaks with Ray for a supervisor.

    POST /survey {packages, paths} → {nodes} POST /open {id, order, ...} → {url, pid, devices, ..}
    POST /news {id, offset} → {log, ended}   POST /stop {id}   POST /stacks {id}
    POST /put {path} → {key}                 POST /bring {id, key} → {path}

A child of its own, since Ray ends its process when the cluster is gone, and takes signals and
threads. Promises: when it ends, Ray ends all hosts of the run; a host that is not answered for is
killed; every answer comes within a deadline, errors as {error, kind}.
"""

from __future__ import annotations

import base64
import logging
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from forge.cluster.connection import cause_line, connect, list_nodes
from forge.cluster.node_host import NodeHost
from forge.cluster.survey import NO_FORGE, explain, survey
from forge.cluster.weights import pack, touch, weights_key
from forge.errors import ForgeError, MachineError
from forge.process.lease import hold_lease
from forge.process.server.door import Door, read_object
from forge.process.server.serving import serve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from forge.cluster.weights import Manifest

logger = logging.getLogger(__name__)

NEWS_TIMEOUT_S = 60.0
"""Maximum silence of a host. Longer than an outage of the network from which it returns."""
UNAVAILABLE_PAUSE_S = 1.0
"""Pause before a host is asked again whose connection broke: Ray decides whether it is lost."""
STOP_TIMEOUT_S = 10.0
KEPT_WEIGHTS = 4
"""Directories of weights in the object store: a checkpoint and adapters, with the latest before."""
MAX_BODY_BYTES = 1 << 20


@dataclass(slots=True, eq=False)
class HeldActor:
    """A host and its running call of `hold`."""

    actor: Any
    holding: Any = None


class Broker:
    """The hosts of one run."""

    def __init__(self, ray: Any) -> None:
        """`ray`: the package, connected."""
        self._ray = ray
        self._here = str(ray.get_runtime_context().get_node_id())
        self._hosts: dict[str, HeldActor] = {}
        self._weights: dict[str, Manifest] = {}
        self._putting = anyio.Lock()

    def app(self) -> Starlette:
        """The application with all routes."""
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.routing import Route

        calls = {
            "/survey": self.survey, "/open": self.open, "/news": self.news, "/stop": self.stop,
            "/stacks": self.stacks, "/put": self.put, "/bring": self.bring,
        }  # fmt: skip
        routes = [
            Route(path, partial(_answer, self._ray, call), methods=["POST"])
            for path, call in calls.items()
        ]
        return Starlette(routes=[*routes, Route("/health", _health)], middleware=[Middleware(Door)])

    async def survey(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The living nodes, and what a host on each but this one reports about it."""
        new_host = partial(self._new_host, 0, 0)
        return {"nodes": await survey(self._ray, new_host, body)}

    async def open(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Place a host, and let it start its child."""
        actor = self._place(body)
        hosted = self._hosts[body["id"]] = HeldActor(actor)
        if not await self._is_placed(actor, within_s=body["room_s"]):
            self._kill(body["id"])
            return {"kind": "NoRoom", "error": self._no_room(body)}
        if key := body["order"]["weights"]:
            brought = await actor.bring.remote(key, self._weights[key])
            if "error" in brought:
                await self.stop(body)
                return brought
        hosted.holding = actor.hold.remote(body["order"])
        found = await actor.opened.remote()
        if error := found.get("error"):
            await self.stop(body)
            return {"kind": error["kind"], "error": error["message"]}
        return found

    def _place(self, body: Mapping[str, Any]) -> Any:
        """A host on any node but this one with the resources and labels."""
        not_here = {"ray.io/node-id": f"!in({self._here})"}
        num_gpus = body["order"]["num_gpus"]
        return self._new_host(body["num_cpus"], num_gpus, not_here | body["labels"])

    def _new_host(self, num_cpus: int, num_gpus: int, labels: dict[str, str]) -> Any:
        host = self._ray.remote(NodeHost).options(
            num_cpus=num_cpus, num_gpus=num_gpus, label_selector=labels, max_restarts=0
        )
        return host.remote(is_on_gpu=num_gpus > 0)

    async def _is_placed(self, actor: Any, *, within_s: float) -> bool:
        """True once a node has made the host; False if none does, or the node is lost meanwhile."""
        with anyio.move_on_after(within_s):
            try:
                await actor.ready.remote()
                return True
            except self._ray.exceptions.ActorDiedError as error:
                if NO_FORGE in str(error):
                    raise
                logger.warning("a host was not made: %s", cause_line(error))
        return False

    def _no_room(self, body: Mapping[str, Any]) -> str:
        order, nodes = body["order"], list_nodes(self._ray)
        needs = [f"{order['num_gpus']} GPU" if order["num_gpus"] else f"{body['num_cpus']:g} CPU"]
        needs += [f"{key}={value}" for key, value in body["labels"].items()]
        return (
            f"{order['name']}: no node has room within {body['room_s']:g} s (needs "
            f"{', '.join(needs)}); the nodes are {'; '.join(map(str, nodes))}"
        )

    async def news(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """News of a host. A host that is silent or lost has ended."""
        hosted = self._hosts[body["id"]]
        with anyio.move_on_after(NEWS_TIMEOUT_S):
            while True:
                try:
                    found = await hosted.actor.news.remote(body["offset"])
                    return {"log": base64.b64encode(found["log"]).decode(), "ended": found["ended"]}
                except self._ray.exceptions.ActorUnavailableError as error:
                    logger.warning("%s does not answer: %s", body["id"], cause_line(error))
                    await anyio.sleep(UNAVAILABLE_PAUSE_S)
        return {"log": "", "ended": f"its node was silent for {NEWS_TIMEOUT_S:.0f} s"}

    async def put(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Put a directory of weights into the object store, once."""
        folder = Path(body["path"])
        key = await anyio.to_thread.run_sync(weights_key, folder)
        async with self._putting:
            if key not in self._weights:
                packed = await anyio.to_thread.run_sync(pack, folder, self._ray.put)
                self._weights[key] = packed
            touch(self._weights, key, num=KEPT_WEIGHTS)
        return {"key": key}

    async def bring(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Copy weights to the node of a host."""
        actor = self._hosts[body["id"]].actor
        return await actor.bring.remote(body["key"], self._weights[body["key"]])

    async def stacks(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Ask a host for its child's stacks; its log will have them."""
        self._hosts[body["id"]].actor.dump_stacks.remote()
        return {}

    async def stop(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """End a host with its child, in order if it answers."""
        hosted = self._hosts.get(body["id"])
        if hosted is None:
            return {}
        with anyio.move_on_after(STOP_TIMEOUT_S if hosted.holding is not None else 0):
            try:
                await hosted.actor.stop.remote()
            except self._ray.exceptions.RayError as error:
                logger.info("%s is gone: %s", body["id"], cause_line(error))
        self._kill(body["id"])
        return {}

    def _kill(self, key: str) -> None:
        if (hosted := self._hosts.pop(key, None)) is not None:
            self._ray.kill(hosted.actor)


async def _answer(ray: Any, call: Any, request: Request) -> Response:
    """The answer of a call, with the errors of Ray and of hosts as {error, kind}."""
    from starlette.responses import JSONResponse

    body = await read_object(request, max_bytes=MAX_BODY_BYTES)
    try:
        return JSONResponse(await call(body))
    except KeyError as error:  # stopped while its news were awaited
        return JSONResponse({"kind": "ChildDied", "error": f"{error} is not open"})
    except MachineError as error:
        return JSONResponse({"kind": "MachineError", "error": str(error)})
    except ray.exceptions.RayError as error:
        return JSONResponse({"kind": "ChildDied", "error": explain(error)})


async def _health(_request: Request) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"ok": True})


def main() -> int:
    """Serve until SIGTERM."""
    config = hold_lease()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        ray = connect(config["address"])
    except ForgeError as error:
        logger.error("%s: %s", type(error).__name__, error)
        return error.exit_code
    serve(Broker(ray).app(), Path(config["socket_path"]))
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
