"""Conditions for yellow and red, and the figure that decides."""

from __future__ import annotations

import pytest

from forge.runner.status.observed import Fill, HealthFacts, Queue, judge_health


@pytest.mark.parametrize(
    ("facts", "health", "why"),
    [
        (HealthFacts(), "green", ""),
        (HealthFacts(queue=Queue(length=255, bound=256)), "green", ""),
        (HealthFacts(queue=Queue(length=256, bound=256)), "yellow", "queue 256 of 256"),
        (HealthFacts(fills=(Fill(share=0.9, of="80 GB"),)), "green", ""),
        (HealthFacts(fills=(Fill(share=0.93, of="80 GB"),)), "yellow", "memory 93 % of 80 GB"),
        (
            HealthFacts(fills=(Fill(share=0.91, of="80 GB"), Fill(share=0.97, of="the KV cache"))),
            "yellow",
            "memory 97 % of the KV cache",
        ),
        (HealthFacts(restarted_s=20.4), "yellow", "restarted 20 s ago"),
        (HealthFacts(restarted_s=121), "green", ""),
        (HealthFacts(late_s=1.25), "yellow", "loop late by 1.2 s"),
        (HealthFacts(late_s=6.0), "red", "loop late by 6.0 s"),
        (HealthFacts(silent_s=119, silent_limit_s=120), "green", ""),
        (HealthFacts(silent_s=130, silent_limit_s=120), "red", "silent 130 s of 120 s"),
        (HealthFacts(silent_s=130), "green", ""),
        (HealthFacts(recovering="killed by signal 9"), "red", "recovering: killed by signal 9"),
        (HealthFacts(failure="quarantined: gpu_fault"), "red", "quarantined: gpu_fault"),
    ],
)
def test_health_has_the_figure_that_decides(facts: HealthFacts, health: str, why: str) -> None:
    assert judge_health(facts) == (health, why)


def test_red_precedes_yellow_and_a_failure_precedes_a_recovery() -> None:
    strained = {"queue": Queue(length=9, bound=9), "restarted_s": 1.0}
    assert judge_health(HealthFacts(recovering="exit 1", **strained))[1] == "recovering: exit 1"
    assert judge_health(HealthFacts(failure="no", recovering="exit 1", **strained))[1] == "no"
    assert judge_health(HealthFacts(**strained))[1] == "queue 9 of 9"
