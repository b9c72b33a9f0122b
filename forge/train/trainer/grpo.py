"""`python -m forge.train.trainer.grpo CONFIG.json`: the trainer child of an `[[stage]]` of kind
grpo."""

from __future__ import annotations

import sys

from forge.process.lease import hold_lease
from forge.train.trainer.ranks import is_parent_of_ranks, run_ranks


def main() -> None:
    config = hold_lease()
    if is_parent_of_ranks(config):
        run_ranks(
            "forge.train.trainer.grpo", num_ranks=config["num_ranks"], config_path=sys.argv[1]
        )
        return
    # After the lease: these imports take seconds in which our owner may die.
    from forge.train.trainer.grpo_stage import train_turns
    from forge.train.trainer.parallel import end_rank
    from forge.train.trainer.settings import Settings, start_logging

    start_logging()
    train_turns(Settings.load(config))
    end_rank()


if __name__ == "__main__":
    main()
