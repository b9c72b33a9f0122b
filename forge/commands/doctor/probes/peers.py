# pyright: standard
"""`python -m forge.commands.doctor.probes.peers CONFIG.json`: copies between all pairs of GPUs.

With a wrong IOMMU or ACS setting such copies arrive damaged, without an error.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any

from forge.commands.doctor.probes.answer import AnswerFile, gpus_held, run_probe

if TYPE_CHECKING:
    from collections.abc import Mapping

NUM_VALUES = 1 << 20


def copy_between_all(config: Mapping[str, Any], answer: AnswerFile) -> None:
    """Copy from each GPU to each other one; report peer access and the comparison."""
    answer.begin("importing torch")
    import torch

    uuids = config["uuids"]
    with gpus_held(uuids):
        expected = torch.arange(NUM_VALUES)
        for source, target in permutations(range(len(uuids)), 2):
            answer.begin(f"copying from {uuids[source]} to {uuids[target]}")
            is_direct = torch.cuda.can_device_access_peer(source, target)
            copied = expected.to(f"cuda:{source}").to(f"cuda:{target}")
            is_right = torch.equal(copied.cpu(), expected)
            answer.say(pair=[source, target], is_direct=is_direct, is_right=is_right)


if __name__ == "__main__":
    run_probe(copy_between_all)
