# pyright: strict
"""The broker's process as the supervisor keeps it: started again when it ends."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from forge.errors import ChildDied, ConfigError, MachineError, Stalled
from forge.process.child import ChildSpec, open_child
from forge.process.environment import child_env
from forge.process.logtail import logged_error

if TYPE_CHECKING:
    from pathlib import Path

    from forge.process.child import ProcessObserver

logger = logging.getLogger(__name__)

BROKER = "cluster"
"""Name of the broker in messages, logs and the store."""
CONNECT_S = 90.0
"""Maximum time until the broker is connected: importing Ray takes seconds."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
"""Pauses before a broker that ended is started again."""


def broker_spec(address: str, *, socket_dir: Path, log_dir: Path) -> ChildSpec:
    """The broker of a cluster."""
    socket_path = socket_dir / f"{BROKER}.sock"
    return ChildSpec(
        name=BROKER,
        argv=(sys.executable, "-m", "forge.cluster.broker"),
        log_path=log_dir / f"{BROKER}.log",
        env=child_env(threads=1),
        socket_path=socket_path,
        config={"address": address, "socket_path": str(socket_path)},
        ready_timeout_s=CONNECT_S,
    )


async def keep_broker(
    spec: ChildSpec,
    observer: ProcessObserver | None,
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    """Keep the broker running. The first start must succeed; later ones are repeated: the head of
    the cluster may come back."""
    is_first, pause_s = True, FIRST_PAUSE_S
    while True:
        try:
            async with open_child(spec, observer=observer) as child:
                if is_first:
                    task_status.started()
                is_first, pause_s = False, FIRST_PAUSE_S
                reason = await child.wait()
                logger.error("%s ended: %s; its hosts ended with it", BROKER, reason)
        except (ChildDied, Stalled) as error:
            if is_first:
                raise logged_error(error, MachineError, ConfigError) or error from error
            logger.error("%s cannot be started: %s", BROKER, error)
        await anyio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
