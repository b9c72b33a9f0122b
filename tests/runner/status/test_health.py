"""What makes a component yellow or red, and the figure that says so."""

from __future__ import annotations

import pytest

from forge.runner.status.health import Facts, Fill, Queue, judge_health


@pytest.mark.parametrize(
    ("facts", "health", "why"),
    [
        (Facts(), "green", ""),
        (Facts(queue=Queue(length=255, bound=256)), "green", ""),
        (Facts(queue=Queue(length=256, bound=256)), "yellow", "queue 256 of 256"),
        (Facts(fills=(Fill(share=0.9, of="80 GB"),)), "green", ""),
        (Facts(fills=(Fill(share=0.93, of="80 GB"),)), "yellow", "memory 93 % of 80 GB"),
        (
            Facts(fills=(Fill(share=0.91, of="80 GB"), Fill(share=0.97, of="the KV cache"))),
            "yellow",
            "memory 97 % of the KV cache",
        ),
        (Facts(restarted_s=20.4), "yellow", "restarted 20 s ago"),
        (Facts(restarted_s=121), "green", ""),
        (Facts(late_s=1.25), "yellow", "loop late by 1.2 s"),
        (Facts(late_s=6.0), "red", "loop late by 6.0 s"),
        (Facts(silent_s=119, silent_limit_s=120), "green", ""),
        (Facts(silent_s=130, silent_limit_s=120), "red", "silent 130 s of 120 s"),
        (Facts(silent_s=130), "green", ""),
        (Facts(recovering="killed by signal 9"), "red", "recovering: killed by signal 9"),
        (Facts(failure="quarantined: gpu_fault"), "red", "quarantined: gpu_fault"),
    ],
)
def test_health_has_the_figure_that_decides(facts: Facts, health: str, why: str) -> None:
    found = judge_health(facts)
    assert (found.health, found.why) == (health, why)


def test_red_is_told_before_yellow_and_a_failure_before_a_recovery() -> None:
    strained = {"queue": Queue(length=9, bound=9), "restarted_s": 1.0}
    assert judge_health(Facts(recovering="exit 1", **strained)).why == "recovering: exit 1"
    assert judge_health(Facts(failure="no", recovering="exit 1", **strained)).why == "no"
    assert judge_health(Facts(**strained)).why == "queue 9 of 9"
