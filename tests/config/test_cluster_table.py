"""`[cluster]`: every mistake is one line that says what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.config.load import load_experiment
from forge.errors import ConfigError

EXPERIMENT = """\
name = "x"
[model]
init = "tiny"
[cluster]
address = "auto"
judges = 2
[[stage]]
kind = "eval"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.toml"
    path.write_text(EXPERIMENT)
    return path


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["cluster.judges=0"], "cluster.address: set, and nothing runs on its nodes"),
        (["cluster.serve=true"], 'serve.engine: found "auto", and engines run on other nodes'),
        (
            ["cluster.serve=true", 'serve.engine="vllm"', 'serve.url=["unix:/s"]'],
            "cluster.serve: found true with serve.url",
        ),
        (
            [
                "cluster.serve=true",
                'cluster.serve_on="cpu"',
                'devices.gpus="auto"',
                "devices.serve=1",
            ],
            "devices.serve: found 1 with cluster.serve",
        ),
        (
            ["cluster.train_nodes=1"],
            "cluster.train_nodes: found 1, and no stage trains; a stage of kind sft or grpo, or 0",
        ),
        (['cluster.address="head"'], 'found "head"; auto, HOST:PORT or ray://HOST:PORT'),
        (
            [
                "cluster.serve=true",
                "cluster.share_gpus=true",
                'serve.engine="vllm"',
                "serve.tensor_parallel=2",
            ],
            "cluster.share_gpus: found true with serve.tensor_parallel = 2; false, or 1",
        ),
        (['judge.url=["unix:/s"]'], "cluster.judges: found 2 with judge.url; one of them"),
        (['devices.gpus="auto"', "devices.judge=1"], "devices.judge: found 1 with cluster.judges"),
        (["eval.both_baselines=true"], "measured by judges of this machine only"),
        (['cluster.judge_on="tpu"'], 'found "tpu"; one of "gpu", "cpu"'),
    ],
)
def test_a_mistake_is_one_line(file: Path, given: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_experiment(file, overrides=given)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_judges_elsewhere_need_an_address(file: Path) -> None:
    file.write_text(EXPERIMENT.replace('address = "auto"\n', ""))
    with pytest.raises(ConfigError, match=r"found 2 without cluster\.address; both or neither"):
        load_experiment(file)


def test_problems_for_gpus_may_be_judged_on_gpus_of_other_nodes(file: Path) -> None:
    load_experiment(file, overrides=['problems.sizes="gpu"'])
    with pytest.raises(ConfigError, match=r"judges on the CPU"):
        load_experiment(file, overrides=['problems.sizes="gpu"', 'cluster.judge_on="cpu"'])


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "ray://head:10001", "[::1]:6379"])
def test_an_address_may_name_the_head(file: Path, address: str) -> None:
    experiment = load_experiment(file, overrides=[f'cluster.address="{address}"'])
    assert experiment.cluster.address == address
