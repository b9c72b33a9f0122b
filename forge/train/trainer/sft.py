"""`python -m forge.train.trainer.sft CONFIG.json`: the trainer child of an `[[stage]]` of kind
sft."""

from __future__ import annotations

from forge.process.lease import hold_lease


def main() -> None:
    config = hold_lease()
    # After the lease: these imports take seconds in which our owner may die.
    from forge.train.trainer.answers import train_answers
    from forge.train.trainer.settings import Settings, start_logging

    start_logging()
    train_answers(Settings.load(config))


if __name__ == "__main__":
    main()
