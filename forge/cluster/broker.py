"""`python -m forge.cluster.broker CONFIG.json`: the process that speaks with Ray for a supervisor.

    POST /survey {packages, paths} → {nodes} POST /open {id, order, ...} → {url, pid, devices, ..}
    POST /news {id, offset} → {log, ended}   POST /stop {id}   POST /stacks {id}
    POST /bring {id, path} → {path}          POST /address → {ip}

A child of its own, since Ray ends its process when the cluster is gone, and takes signals and
threads. Promises: when it ends, Ray ends all hosts of the run; a host that is not answered for is
killed; every answer comes within a deadline, errors as {error, kind}.
"""

from __future__ import annotations

import base64
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forge.cluster.host import Manifest, NodeHost, pack, touch, weights_key
from forge.cluster.nodes import NO_FORGE, cause_line, connect, explain, list_nodes, survey
from forge.errors import ForgeError, MachineError
from forge.process.lease import hold_lease
from forge.process.server.door import Door, read_object
from forge.process.server.serving import serve

logger = logging.getLogger(__name__)

NEWS_TIMEOUT_S = 60.0
"""Maximum silence of a host. Longer than an outage of the network from which it returns."""
STOP_TIMEOUT_S = 10.0
KEPT_WEIGHTS = 4
"""Directories in the object store: a checkpoint and adapters, with the latest before."""
MAX_BODY_BYTES = 1 << 20
UNAVAILABLE_PAUSE_S = 1.0
"""Pause before a host is asked or placed again whose connection broke: Ray decides whether its node
is lost."""


class Broker:
    """The hosts of one run."""

    def __init__(self, ray: Any) -> None:
        """`ray`: the package, connected."""
        self._ray = ray
        self._here = str(ray.get_runtime_context().get_node_id())
        self._hosts: dict[str, HeldActor] = {}
        self._packed: dict[str, Manifest] = {}
        self._putting = anyio.Lock()

    def app(self) -> Starlette:
        calls = {
            "/survey": self.survey, "/open": self.open, "/news": self.news, "/stop": self.stop,
            "/stacks": self.stacks, "/bring": self.bring, "/address": self.address,
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

    async def address(self, _body: Mapping[str, Any]) -> dict[str, Any]:
        return {"ip": list_nodes(self._ray)[0].ip}

    async def open(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Place a host, copy the files of its order to it, and let it start its child."""
        order, hosted = body["order"], HeldActor()
        self._hosts[body["id"]] = hosted
        if not await self._place(hosted, body):
            self._kill(body["id"])
            return {"kind": "NoRoom", "error": self._no_room(body)}
        actor = hosted.actor
        brought = {name: await self._bring(actor, path) for name, path in order["files"].items()}
        found = next((each for each in brought.values() if "error" in each), None)
        if found is None:
            files = {name: each["path"] for name, each in brought.items()}
            hosted.holding = actor.hold.remote({**order, "files": files})
            found = await actor.opened.remote()
        if "error" in found:
            await self.stop(body)
        return found

    async def _place(self, hosted: HeldActor, body: Mapping[str, Any]) -> bool:
        """Make a host on a node with the resources and labels. False if no node has room in time.
        Raises RayError if its node lacks forge."""
        labels = {"ray.io/node-id": f"!in({self._here})"} | body["labels"]
        num_gpus = gpus_of(body["order"])
        with anyio.move_on_after(body["room_s"]):
            while True:
                hosted.actor = self._new_host(body["num_cpus"], num_gpus, labels)
                try:
                    await hosted.actor.ready.remote()
                    return True
                except self._ray.exceptions.RayError as error:
                    if NO_FORGE in str(error):
                        raise
                    logger.warning("%s was not made: %s", body["id"], cause_line(error))
                # Ray may choose a node whose loss it does not know yet.
                self._ray.kill(hosted.actor)
                await anyio.sleep(UNAVAILABLE_PAUSE_S)
        return False

    def _new_host(self, num_cpus: int, num_gpus: float, labels: dict[str, str]) -> Any:
        host = self._ray.remote(NodeHost).options(
            num_cpus=num_cpus, num_gpus=num_gpus, label_selector=labels, max_restarts=0
        )
        return host.remote(is_on_gpu=num_gpus > 0)

    def _no_room(self, body: Mapping[str, Any]) -> str:
        """Message that a host has no room: its needs, and the nodes."""
        order, nodes = body["order"], list_nodes(self._ray)
        num_gpus = gpus_of(order)
        needs = [f"{num_gpus:g} GPU" if num_gpus else f"{body['num_cpus']:g} CPU"]
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
                    return {**found, "log": base64.b64encode(found["log"]).decode()}
                except self._ray.exceptions.ActorUnavailableError as error:
                    logger.warning("%s does not answer: %s", body["id"], cause_line(error))
                    await anyio.sleep(UNAVAILABLE_PAUSE_S)
        return {"log": "", "ended": f"its node was silent for {NEWS_TIMEOUT_S:.0f} s"}

    async def bring(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._bring(self._hosts[body["id"]].actor, body["path"])

    async def _bring(self, actor: Any, path: str) -> dict[str, Any]:
        """The path on the node. What is brought to several is put into the object store once."""
        source = Path(path)
        key = await anyio.to_thread.run_sync(weights_key, source)
        async with self._putting:
            if key not in self._packed:
                self._packed[key] = await anyio.to_thread.run_sync(pack, source, self._ray.put)
            manifest = self._packed[key]
            touch(self._packed, key, num=KEPT_WEIGHTS)
        return await actor.bring.remote(key, manifest)

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
        hosted = self._hosts.pop(key, None)
        if hosted is not None and hosted.actor is not None:
            self._ray.kill(hosted.actor)


async def _answer(ray: Any, call: Any, request: Request) -> Response:
    """The answer of a call, with the errors of Ray and of hosts as {error, kind}."""
    body = await read_object(request, max_bytes=MAX_BODY_BYTES)
    try:
        return JSONResponse(await call(body))
    except KeyError as error:  # stopped while its news were awaited
        return JSONResponse({"kind": "ChildDied", "error": f"{error} is not open"})
    except MachineError as error:
        return JSONResponse({"kind": "MachineError", "error": str(error)})
    except ray.exceptions.RayError as error:
        kind = "MachineError" if NO_FORGE in str(error) else "HostLost"
        return JSONResponse({"kind": kind, "error": explain(error)})


async def _health(_request: Request) -> Response:
    return JSONResponse({"ok": True})


def main() -> int:
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


@dataclass(slots=True, eq=False)
class HeldActor:
    """A host and its running call of `hold`."""

    actor: Any = None
    holding: Any = None


def gpus_of(order: Mapping[str, Any]) -> float:
    """GPUs that a host asks Ray for: half of a card if it shares one."""
    return order["num_gpus"] / 2 if order["shares_gpu"] else order["num_gpus"]


if __name__ == "__main__":
    sys.exit(main())
