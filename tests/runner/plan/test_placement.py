"""Placement of roles on cards, and the check of their memory."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.config.load import load_experiment
from forge.errors import ConfigError, MachineError
from forge.process.devices import GpuUser
from forge.runner.plan.machine import Machine, assume
from forge.runner.plan.memory import ASLEEP_BYTES
from forge.runner.plan.placement import Placement, place
from tests.examples import examples
from tests.gpus import make_machine

QUICKSTART = Path(__file__).parents[3] / "experiments" / "quickstart.toml"
HERE = make_machine(engines=frozenset())
ALL_AUTO = ("devices.gpus=auto", "devices.train=auto", "devices.serve=auto", "devices.judge=auto")


def place_on(machine: Machine | str, *overrides: str, engine: str = "vllm", model: str = ""):
    if isinstance(machine, str):
        machine = assume(machine, here=HERE)
    experiment = load_experiment(QUICKSTART, overrides=overrides)
    if model:
        table = experiment.model.model_copy(update={"init": None, "path": model})
        experiment = experiment.model_copy(update={"model": table})
    return place(experiment, machine, engine=engine)


def indices(placement: Placement) -> dict[str, list[int]]:
    return {
        "serve": [gpu.index for one in placement.serve for gpu in one],
        "judge": [gpu.index for gpu in placement.judge],
        "train": [gpu.index for gpu in placement.train],
    }


@pytest.mark.parametrize(
    ("machine", "overrides", "expected"),
    [
        ("8xH100-80GB", ["serve.replicas=2"], ([0, 1], [2, 3], [4, 5, 6, 7])),
        ("4xH100-80GB", [], ([0], [1], [2, 3])),
        ("3xH100-80GB", [], ([0], [1], [2])),
        ("2xH100-80GB", ["devices.share=auto"], ([0], [0], [1])),
        ("1xH200-141GB", ["devices.share=auto"], ([0], [0], [0])),
        ("4xH100-80GB", ["devices.share=always"], ([0], [0, 1, 2, 3], [0, 1, 2, 3])),
        ("4xH100-80GB", ["devices.train=2", "serve.tensor_parallel=1"], ([0], [1], [2, 3])),
        ("4xH100-80GB", ["devices.judge=2"], ([0], [1, 2], [3])),
        ("8xH100-80GB", ["stage.1.batch_size=9"], ([0], [1, 2, 3, 4], [5, 6, 7])),
        ("4xH100-80GB", ["devices.judge=0", "stage.1.batch_size=2"], ([0], [], [1, 2])),
        ("2xH100-80GB", ["serve.replicas=2", "devices.share=auto"], ([0, 1], [0], [1])),
    ],
)
def test_auto_divides_the_cards_and_gives_reasons(machine, overrides, expected):
    placement = place_on(machine, *ALL_AUTO, *overrides)
    assert indices(placement) == dict(zip(("serve", "judge", "train"), expected, strict=True))
    assert any(reason.startswith("devices.serve = auto: ") for reason in placement.reasons)


def test_a_shared_card_is_named_and_its_engine_limited():
    placement = place_on("1xH200-141GB", *ALL_AUTO, "devices.share=auto")
    assert placement.shared == placement.shared_by_engines == {"GPU-assumed-0"}
    (held,) = placement.bytes_by_gpu.values()
    assert sum(held.values()) <= 141 << 30
    assert placement.memory_share is not None
    assert placement.memory_share < 0.85
    assert any("the engine takes 8" in reason for reason in placement.reasons)


def test_too_few_cards_are_refused_with_the_split_and_advice():
    with pytest.raises(MachineError) as caught:
        place_on("2xH100-80GB", *ALL_AUTO, "devices.share=never")
    assert str(caught.value) == (
        "quickstart needs 3 GPUs (serve 1, judge 1, train 1); the assumed machine has 2. "
        '[devices] share = "auto" lets roles share a GPU if its memory suffices.'
    )


def test_roles_that_may_share_need_one_card():
    with pytest.raises(MachineError, match=r"needs 1 GPU \(serve 1, judge 1, train 1, which may "):
        place_on(HERE, *ALL_AUTO, "devices.share=auto")


def test_an_engine_sleeps_if_it_does_not_fit_beside_a_step():
    asked = (
        *ALL_AUTO, "devices.share=auto", "stage.3.micro_batch_tokens=65536",
        "model.tiny.max_context_tokens=40960", "serve.context_tokens=40960",
        "serve.precision=fast",
    )  # fmt: skip
    beside = place_on("1xH200-141GB", *asked, model="Qwen/Qwen3-0.6B")
    assert not beside.sleeps
    tight = place_on("1xA100-56GB", *asked, model="Qwen/Qwen3-0.6B")
    assert tight.sleeps
    assert any("the engine sleeps while the trainer steps" in each for each in tight.reasons)


def test_too_little_memory_is_refused_with_the_sums_and_what_would_fit():
    asked = (*ALL_AUTO, "serve.precision=fast", "devices.share=never")
    with pytest.raises(MachineError) as caught:
        place_on("3xA100-40GB", *asked, model="Qwen/Qwen3-8B")
    message = str(caught.value)
    assert message.startswith("quickstart: GPU 2 (A100) needs ")
    assert "train " in message
    assert "it has 42.9 GB. Would fit: devices.train = 4 (fsdp2); [model.lora]; " in message


def test_a_row_too_long_for_a_card_is_refused_with_a_length_that_fits_and_why():
    asked = (*ALL_AUTO, "devices.share=never", "model.dtype=bfloat16", "serve.precision=fast")
    rows = ("stage.1.max_length=262144", "model.tiny.max_context_tokens=262144")
    with pytest.raises(MachineError) as caught:
        place_on("4xH100-80GB", *asked, *rows, model="Qwen/Qwen3-8B")
    found = re.search(r"rows of (\d+) tokens; .*\(a row is not split over GPUs", str(caught.value))
    assert found, caught.value
    num = int(found[1])
    assert num >= 8192
    assert place_on(
        "4xH100-80GB", *asked, f"stage.1.max_length={num}", rows[1],
        "stage.1.micro_batch_tokens=1024",
        "stage.3.micro_batch_tokens=1024", model="Qwen/Qwen3-8B",
    ).train  # fmt: skip


@pytest.mark.parametrize(
    ("card", "asked", "has", "has_not"),
    [
        ("1xA100-80GB", ["devices.train=auto"], "[model.lora]", "[model.quantize]"),
        ("1xA100-60GB", ["devices.train=auto", "model.lora.r=16"], "[model.quantize]", "lora"),
        (
            "1xA100-12GB",
            ["devices.train=auto", "model.lora.r=16", "model.quantize.bits=4"],
            "GPUs of 40 GB",
            "model",
        ),
        ("1xA100-80GB", ["devices.serve=1", "serve.precision=exact"], '= "fast"', "train"),
        ("1xA100-60GB", ["devices.serve=1", "serve.precision=fast"], "tensor_parallel = 2", "role"),
        ("1xA100-6GB", ["devices.judge=1", "problems.sizes=gpu"], '"small"', "serve"),
    ],
)
def test_a_refusal_names_the_keys_that_would_fit_and_no_others(card, asked, has, has_not):
    with pytest.raises(MachineError) as caught:
        place_on(card, "devices.gpus=auto", *asked, model="Qwen/Qwen3-32B")
    advice = str(caught.value).partition("Would fit: ")[2]
    assert has in advice
    assert has_not not in advice


@settings(max_examples=examples(30), deadline=None)
@given(
    size=st.integers(4, 100),
    num=st.sampled_from([1, 2, 4]),
    model=st.sampled_from(["0.6B", "1.7B", "8B", "30B-A3B"]),
    asked=st.lists(
        st.sampled_from([
            "serve.precision=fast", "model.lora.r=16", "stage.3.micro_batch_tokens=32768",
            "stage.1.optimizer=adamw_8bit", "problems.sizes=gpu", "serve.slots=256",
        ])
    ),
)  # fmt: skip
def test_a_plan_never_exceeds_a_card_and_a_refusal_names_cards_that_fit(size, num, model, asked):
    asked, model = (*ALL_AUTO, "stage.1.batch_size=8", *asked), f"Qwen/Qwen3-{model}"
    try:
        placement = place_on(f"{num}xCard-{size}GB", *asked, model=model)
    except MachineError as error:
        if share := re.search(r"; (0\.\d+) would fit", str(error)):
            place_on(f"{num}xCard-{size}GB", *asked, f"serve.memory_share={share[1]}", model=model)
        else:
            (larger,) = re.findall(r"GPUs of (\d+) GB", str(error))
            place_on(f"{num}xCard-{larger}GB", *asked, model=model)
        return
    for gpu in placement.gpus:
        held = dict(placement.bytes_by_gpu[gpu.uuid])
        if placement.sleeps and "train" in held:
            held["serve"] = ASLEEP_BYTES if "serve" in held else 0
        assert sum(held.values()) <= gpu.memory_bytes


def test_activations_are_kept_where_that_costs_no_other_role_anything():
    asked = ("devices.gpus=auto", "devices.train=1")
    roomy = place_on("1xH100-80GB", *asked, model="Qwen/Qwen3-0.6B")
    assert not roomy.recomputes
    assert any("activations of all blocks are kept" in reason for reason in roomy.reasons)
    long = (*asked, "stage.3.micro_batch_tokens=32768")
    some = place_on("1xL40S-48GB", *long, model="Qwen/Qwen3-0.6B")
    assert some.recomputes in (7, 14, 21)
    tight = place_on("1xRTX4090-13GB", *asked, model="Qwen/Qwen3-0.6B")
    assert tight.recomputes is True
    shared = place_on("1xH100-80GB", *ALL_AUTO, model="Qwen/Qwen3-1.7B")
    assert shared.recomputes is True, "the engine would get less"
    key = "gradient_checkpointing=true"
    both = (f"stage.1.{key}", f"stage.3.{key}")
    assert place_on("1xH100-80GB", *asked, *both, model="Qwen/Qwen3-0.6B").recomputes is True


def test_a_large_model_is_trained_with_fsdp2_and_a_small_one_with_ddp():
    large = place_on("8xH100-80GB", *ALL_AUTO, model="Qwen/Qwen3-8B")
    assert large.parallel == "fsdp2"
    assert any("fsdp2, since ddp needs" in reason for reason in large.reasons)
    assert place_on("8xH100-80GB", *ALL_AUTO, model="Qwen/Qwen3-0.6B").parallel == "ddp"
    demanded = (*ALL_AUTO, "stage.1.parallel=fsdp2", "stage.3.parallel=fsdp2")
    assert place_on("8xH100-80GB", *demanded, model="Qwen/Qwen3-0.6B").parallel == "fsdp2"


def test_a_memory_share_too_small_for_the_model_is_refused():
    with pytest.raises(MachineError, match=r"0\.15 of the GPU is 12\.9 GB; 0\.24 would fit"):
        place_on(
            "8xH100-80GB", *ALL_AUTO, "serve.memory_share=0.15", "devices.train=4",
            model="Qwen/Qwen3-8B",
        )  # fmt: skip


def test_a_card_full_of_other_processes_is_refused_with_their_pids_and_bytes():
    machine = assume("3xH100-80GB", here=HERE)
    cards = list(machine.gpus)
    cards[0] = replace(cards[0], free_bytes=3 << 30)
    user = GpuUser(pid=4711, name="python", memory_bytes=77 << 30)
    busy = replace(machine, gpus=tuple(cards), gpu_users={cards[0].uuid: (user,)})
    with pytest.raises(MachineError) as caught:
        place_on(busy, *ALL_AUTO, model="Qwen/Qwen3-0.6B")
    message = str(caught.value)
    assert "3.2 GB of 85.9 GB are free: pid 4711 (python) holds 82.7 GB" in message
    assert "name other GPUs in devices.gpus" in message
    spared = place_on(
        busy, *ALL_AUTO, "devices.gpus=['1', '2']", "devices.share=auto", model="Qwen/Qwen3-0.6B"
    )
    assert indices(spared)["serve"] == [1]


def test_auto_takes_cards_in_use_last_and_gives_the_reason():
    machine = replace(assume("4xH100-80GB", here=HERE), busy=frozenset({"GPU-assumed-0"}))
    two = (*ALL_AUTO, "devices.train=1", "devices.judge=0")
    placement = place_on(machine, *two)
    assert indices(placement) == {"serve": [1], "judge": [], "train": [2]}
    assert "devices.gpus = auto: GPU 0 last, since other processes use it" in placement.reasons
    named = place_on(machine, *two, "devices.gpus=['0', '1']")
    assert indices(named) == {"serve": [0], "judge": [], "train": [1]}
    all_busy = replace(machine, busy=frozenset(gpu.uuid for gpu in machine.gpus))
    for other in (all_busy, replace(machine, busy=frozenset())):
        placement = place_on(other, *two)
        assert indices(placement)["serve"] == [0]
        assert not any("other processes use it" in reason for reason in placement.reasons)


def test_an_engine_takes_no_more_than_other_processes_leave():
    machine = assume("3xH100-80GB", here=HERE)
    cards = list(machine.gpus)
    cards[0] = replace(cards[0], free_bytes=40 << 30)
    user = GpuUser(memory_bytes=40 << 30)
    busy = replace(machine, gpus=tuple(cards), gpu_users={cards[0].uuid: (user,)})
    placement = place_on(busy, *ALL_AUTO, model="Qwen/Qwen3-0.6B")
    assert placement.memory_share == 0.5


def test_ranks_of_an_engine_share_no_card_with_other_roles():
    asked = ("devices.share=always", "serve.tensor_parallel=2", "serve.precision=fast")
    with pytest.raises(MachineError, match=r"serve\.tensor_parallel = 2: the engine shares GPUs"):
        place_on("2xH100-80GB", *ALL_AUTO, *asked)


def test_replicas_are_spread_over_tensor_parallel_cards():
    asked = ("devices.gpus=auto", "devices.serve=4", "serve.replicas=2")
    placement = place_on("4xH100-80GB", *asked, "serve.tensor_parallel=2")
    assert [[gpu.index for gpu in one] for one in placement.serve] == [[0, 1], [2, 3]]
    with pytest.raises(MachineError, match=r"tensor_parallel = 1: 2 replicas on 4 GPUs have 2"):
        place_on("4xH100-80GB", *asked)
    two = place_on("1xH100-80GB", "devices.gpus=auto", "devices.serve=1", "serve.replicas=2")
    assert two.serve_uuids == (("GPU-assumed-0",), ("GPU-assumed-0",))
    assert two.memory_share == 0.85 / 2
    assert two.shared == {"GPU-assumed-0"}
    assert two.shared_by_engines == set()  # no judge times kernels there


def test_unneeded_roles_get_no_card(tmp_path):
    (tmp_path / "x.toml").write_text(
        'name = "x"\nmodel.path = "Qwen/Qwen3-0.6B"\n[devices]\ngpus = "auto"\ntrain = 2\n'
        'serve = 1\njudge = 1\n[[stage]]\nkind = "eval"\n'
    )
    machine = assume("2xH100-80GB", here=HERE)
    placement = place(load_experiment(tmp_path / "x.toml"), machine, engine="vllm")
    assert indices(placement) == {"serve": [0], "judge": [1], "train": []}
    assert "train gets no GPU: no stage needs it, or a URL provides it" in placement.reasons


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        ("['9']", 'found "9"; the GPUs of the assumed machine are: 0 (GPU-assumed-0)'),
        ("['']", 'found ""; the GPUs of the assumed machine are'),
        ("['MIG-1a2b']", "only whole GPUs can be used"),
        ("['0', 'GPU-assumed-0']", "GPU-assumed-0 is GPU 0 again; each GPU is allowed once"),
    ],
)
def test_an_unusable_card_is_named(gpus, message):
    with pytest.raises(MachineError) as caught:
        place_on("1xH100-80GB", f"devices.gpus={gpus}", "devices.serve=1")
    assert message in str(caught.value)


def test_a_card_is_found_by_a_unique_prefix_of_its_uuid():
    shown = place_on("2xH100-80GB", "devices.gpus=['GPU-assumed-1']", "devices.serve=1")
    assert indices(shown)["serve"] == [1]
    one = place_on("1xH100-80GB", "devices.gpus=['GPU-ass']", "devices.serve=1")
    assert indices(one)["serve"] == [0]
    with pytest.raises(
        MachineError, match=r'found "GPU-ass"; the GPUs of the assumed machine are: 0'
    ):
        place_on("2xH100-80GB", "devices.gpus=['GPU-ass']", "devices.serve=1")


def test_a_refusal_for_missing_cards_says_why_cards_are_hidden():
    here = replace(HERE, hidden_gpus="CUDA_VISIBLE_DEVICES names MIG-1, a slice of a card")
    with pytest.raises(MachineError, match=r"has 0 \(CUDA_VISIBLE_DEVICES names MIG-1"):
        place_on(here, "devices.gpus=auto", "devices.serve=1")


@settings(max_examples=examples(200), deadline=None)
@given(
    num=st.integers(1, 9),
    roles=st.tuples(*[st.sampled_from(["auto", "0", "1", "2"])] * 3),
    share=st.sampled_from(["never", "auto", "always"]),
    replicas=st.integers(1, 3),
)
def test_every_request_is_placed_completely_or_refused(num, roles, share, replicas):
    asked = [
        f"devices.{role}={n}" for role, n in zip(("serve", "judge", "train"), roles, strict=True)
    ]
    try:
        placement = place_on(
            f"{num}xH100-80GB", "devices.gpus=auto", *asked, f"devices.share={share}",
            f"serve.replicas={replicas}",
        )  # fmt: skip
    except (MachineError, ConfigError):
        return
    found = indices(placement)
    for role, n in zip(("serve", "judge", "train"), roles, strict=True):
        assert n == "auto" or len(set(found[role])) == int(n)
        assert len(set(found[role])) == len(found[role]) or role == "serve"
    assert len(placement.serve) in (0, replicas)
    if share == "never":
        used = [*dict.fromkeys(found["serve"]), *found["judge"], *found["train"]]
        assert len(used) == len(set(used))
        assert all(len(placement.roles_of(gpu.uuid)) == 1 for gpu in placement.gpus)
    for gpu in placement.gpus:
        assert sum(placement.bytes_by_gpu[gpu.uuid].values()) <= gpu.memory_bytes
