"""`[cluster]`, `[notify]` and `[sinks]`: every mistake is one line that says what is allowed."""

from pathlib import Path

import pytest

from forge.config.load import load_experiment
from forge.errors import ConfigError

EXPERIMENT = 'name = "x"\n[model]\ninit = "tiny"\n[[stage]]\nkind = "eval"\n'
NODES = ['cluster.address="auto"', "cluster.judges=2"]
URL = "https://hooks.example/services/T0/B0"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.toml"
    path.write_text(EXPERIMENT)
    return path


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["cluster.judges=2"], "found 2 without cluster.address; both or neither"),
        ([*NODES, "cluster.judges=0"], "cluster.address: set, and nothing runs on its nodes"),
        ([*NODES, "cluster.serve=true"], 'serve.engine: found "auto", and engines run'),
        (
            [*NODES, "cluster.serve=true", 'serve.engine="vllm"', 'serve.url=["unix:/s"]'],
            "cluster.serve: found true with serve.url",
        ),
        (
            [
                *NODES,
                "cluster.serve=true",
                'cluster.serve_on="cpu"',
                'devices.gpus="auto"',
                "devices.serve=1",
            ],
            "devices.serve: found 1 with cluster.serve",
        ),
        (
            [*NODES, "cluster.train_nodes=1"],
            "cluster.train_nodes: found 1, and no stage trains; a stage of kind sft or grpo, or 0",
        ),
        ([*NODES, 'cluster.address="head"'], 'found "head"; auto, HOST:PORT or ray://HOST:PORT'),
        (
            [
                *NODES,
                "cluster.serve=true",
                "cluster.share_gpus=true",
                'serve.engine="vllm"',
                "serve.tensor_parallel=2",
            ],
            "cluster.share_gpus: found true with serve.tensor_parallel = 2; false, or 1",
        ),
        ([*NODES, 'judge.url=["unix:/s"]'], "cluster.judges: found 2 with judge.url; one of them"),
        ([*NODES, 'devices.gpus="auto"', "devices.judge=1"], "devices.judge: found 1 with"),
        ([*NODES, "eval.both_baselines=true"], "measured by judges of this machine only"),
        ([*NODES, 'cluster.judge_on="tpu"'], 'found "tpu"; one of "gpu", "cpu"'),
        ([*NODES, 'problems.sizes="gpu"', 'cluster.judge_on="cpu"'], "judges on the CPU"),
        (['notify.webhook="ftp://x"'], 'found "ftp://x"; http(s)://HOST[:PORT][/PATH]'),
        (['notify.webhook="https://a b"'], 'found "https://a b"; http(s)://HOST[:PORT][/PATH]'),
        (['notify.on=["dead"]'], 'found "dead"; a list of "done", "failed", "stalled", "stopped"'),
        (['notify.on=["done"]'], "set without command or webhook; set one of them"),
        (['notify.webhook_env="NO_SUCH_HOOK"'], 'found "NO_SUCH_HOOK", which is not set;'),
        (['notify.webhook_env="EMPTY_HOOK"'], 'found "EMPTY_HOOK", which is not http(s)://HOST'),
        (["notify.timeout_s=0"], "found 0; a number, above 0, 300 or less"),
        (['notify.comand="x"'], "unknown key; did you mean command?"),
        (['sinks.to=["wandbb"]'], 'found "wandbb"; a list of "tensorboard", "trackio", "wandb"'),
        (['sinks.wandb_mode="offline"'], 'set without "wandb" in sinks.to; both or neither'),
        (['sinks.project="a/b"'], 'found "a/b"; 1 to 64 letters'),
    ],
)
def test_a_mistake_is_one_line(file, given, expected, monkeypatch):
    monkeypatch.setenv("EMPTY_HOOK", "")
    monkeypatch.delenv("NO_SUCH_HOOK", raising=False)
    with pytest.raises(ConfigError) as raised:
        load_experiment(file, overrides=given)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "ray://head:10001", "[::1]:6379"])
def test_an_address_may_name_the_head(file, address):
    experiment = load_experiment(file, overrides=[*NODES, f'cluster.address="{address}"'])
    assert experiment.cluster.address == address


def test_a_webhook_and_a_variable_for_it_exclude_each_other(file, monkeypatch):
    monkeypatch.setenv("OUR_HOOK", URL)
    with pytest.raises(ConfigError, match=r"set together with notify\.webhook; exactly one"):
        load_experiment(
            file, overrides=[f'notify.webhook="{URL}"', 'notify.webhook_env="OUR_HOOK"']
        )


def test_a_variable_is_not_required_for_another_machine(file):
    overrides = ['notify.webhook_env="NO_SUCH_HOOK"']
    elsewhere = load_experiment(file, overrides=overrides, is_here=False)
    assert elsewhere.notify.webhook_env == "NO_SUCH_HOOK"
    with pytest.raises(ConfigError, match="NO_SUCH_HOOK"):
        load_experiment(file, overrides=overrides)
