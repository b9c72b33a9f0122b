"""Assumed machines of `forge plan --assume`."""

import pytest

from forge.errors import ConfigError
from forge.process.devices import Vendor
from forge.runner.plan.machine import Machine, assume

HERE = Machine(
    cores=2, memory_bytes=16 << 30, free_disk_bytes=100 << 30, gpus=(), engines=frozenset(),
    hidden_gpus="all of them",
)  # fmt: skip


def test_an_assumed_machine_has_resources_for_each_card():
    machine = assume("8xH100-80GB", here=HERE)
    assert [gpu.index for gpu in machine.gpus] == list(range(8))
    assert {gpu.memory_bytes for gpu in machine.gpus} == {80 << 30}
    assert machine.gpus[0].vendor is Vendor.NVIDIA
    assert machine.gpus[0].name == "H100"
    assert machine.engines == {"llama", "vllm", "hf"}
    assert (machine.assumed, machine.hidden_gpus) == ("8xH100-80GB", "")
    assert machine.cores > HERE.cores
    assert len({gpu.uuid for gpu in machine.gpus}) == 8


def test_an_amd_card_is_recognised_by_its_name():
    card = assume("1xMI300X-192GB", here=HERE).gpus[0]
    assert (card.vendor, card.arch, card.memory_bytes) == (Vendor.AMD, "gfx942", 192 << 30)
    assert assume("1xRTX 4090-24GB", here=HERE).gpus[0].vendor is Vendor.NVIDIA
    assert assume("2xRX 7900-24GB", here=HERE).gpus[1].vendor is Vendor.AMD


@pytest.mark.parametrize("text", ["", "H100", "8xH100", "8xH100-80", "0xH100-80GB", "-1xH100-80GB",
                                  "8xH100-0GB", "8 x H100-80GB", "1x4090-24GB", "0x8xH100-80GB",
                                  "4x0xH100-80GB", "2x2x8xH100-80GB"])  # fmt: skip
def test_an_invalid_machine_is_refused_with_examples(text):
    with pytest.raises(ConfigError) as caught:
        assume(text, here=HERE)
    assert str(caught.value) == (
        f'--assume: found "{text}"; NUMBERxNAME-SIZEGB is allowed, such as "8xH100-80GB", '
        '"1xMI300X-192GB" or "2xRTX4090-24GB", and "4x8xH100-80GB" for four machines'
    )


def test_several_machines_are_a_head_and_nodes():
    machine = assume("3x8xH100-80GB", here=HERE)
    one = assume("8xH100-80GB", here=HERE)
    assert (machine.gpus, machine.cores, machine.memory_bytes) == (
        one.gpus, one.cores, one.memory_bytes,
    )  # fmt: skip
    assert machine.num_nodes == 2
    assert one.num_nodes == assume("1x8xH100-80GB", here=HERE).num_nodes == 0


def test_more_cards_than_any_cluster_has_are_refused():
    with pytest.raises(ConfigError, match=r'found "999x8xH100-80GB", 7992 GPUs; up to 4096 are'):
        assume("999x8xH100-80GB", here=HERE)
