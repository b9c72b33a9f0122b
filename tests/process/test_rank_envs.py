"""The environment of a trainer's ranks, on one machine and on several."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forge.process.environment import Rendezvous, free_port, rank_envs

if TYPE_CHECKING:
    import pytest

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
HOST = "127.0.0.1"


def test_ranks_of_one_machine_count_from_0_and_meet_at_a_port_that_is_free() -> None:
    first, second = rank_envs(2)
    assert [first[name] for name in NAMES] == ["0", "0", "2", "2"]
    assert [second[name] for name in NAMES] == ["1", "1", "2", "2"]
    assert (second["MASTER_ADDR"], second["MASTER_PORT"]) == (HOST, first["MASTER_PORT"])
    assert first.get("GLOO_SOCKET_IFNAME") == os.environ.get("GLOO_SOCKET_IFNAME")


def test_ranks_of_a_second_machine_count_on_and_listen_at_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "mine")
    meeting = Rendezvous(address="10.1.2.3", port=4711, host=HOST, first=4, num_here=2)
    first, second = rank_envs(6, meeting=meeting)
    assert [first[name] for name in NAMES] == ["4", "0", "6", "2"]
    assert [second[name] for name in NAMES] == ["5", "1", "6", "2"]
    assert (first["MASTER_ADDR"], first["MASTER_PORT"]) == ("10.1.2.3", "4711")
    assert first["GLOO_SOCKET_IFNAME"] == "lo"
    assert first["NCCL_SOCKET_IFNAME"] == "mine", "the user's own choice stays"


def test_an_address_of_no_interface_sets_no_interface() -> None:
    meeting = Rendezvous(
        address=HOST, port=free_port(HOST), host="203.0.113.9", first=0, num_here=1
    )
    (only,) = rank_envs(2, meeting=meeting)
    assert "GLOO_SOCKET_IFNAME" not in only
