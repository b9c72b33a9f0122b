"""Rules of a verdict: a protocol, and the policy about torch's work in it.

An entry of `judge.also` is a protocol under its own policy (`kernelbench`) or, after a colon,
under the other one (`kernelbench:own`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

PolicyName = Literal["own", "hybrid"]
POLICIES: Mapping[str, PolicyName] = {"forge": "own", "kernelbench": "hybrid", "drkernel": "hybrid"}
"""The protocols' own policies: KernelBench and Dr.Kernel let torch do any part."""


def join_rules(protocol: str, policy: str) -> str:
    """Protocol and policy in one word."""
    return protocol if policy == POLICIES[protocol] else f"{protocol}:{policy}"


def split_rules(rules: str) -> tuple[str, PolicyName]:
    """Protocol and policy of such a word: the inverse of `join_rules`."""
    protocol, _, policy = rules.partition(":")
    return protocol, "own" if (policy or POLICIES.get(protocol)) == "own" else "hybrid"


def rules_in_words(rules: str) -> str:
    """Protocol and policy, with the protocol's own where that is another one."""
    protocol, policy = split_rules(rules)
    own = POLICIES.get(protocol, policy)
    more = "" if policy == own else f" (the protocol's own is {own})"
    return f"protocol {protocol}, policy {policy}{more}"
