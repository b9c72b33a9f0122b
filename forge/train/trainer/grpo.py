"""`python -m forge.train.trainer.grpo CONFIG.json`: the trainer child of an `[[stage]]` of kind
grpo."""

from __future__ import annotations

from forge.process.lease import hold_lease


def main() -> None:
    config = hold_lease()
    # After the lease: these imports take seconds in which our owner may die.
    from forge.train.trainer.grpo_stage import train_turns
    from forge.train.trainer.settings import Settings, start_logging

    start_logging()
    train_turns(Settings.load(config))


if __name__ == "__main__":
    main()
