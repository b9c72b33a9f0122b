"""`python -m forge.train.trainer.sft CONFIG.json`: the trainer child of an `[[stage]]` of kind
sft."""

from __future__ import annotations

import sys

from forge.process.lease import hold_lease
from forge.train.trainer.ranks import is_parent_of_ranks, run_ranks


def main() -> None:
    config = hold_lease()
    if is_parent_of_ranks(config):
        module, num_ranks = "forge.train.trainer.sft", config["num_ranks"]
        run_ranks(module, num_ranks=num_ranks, config_path=sys.argv[1])
        return
    # After the lease: these imports take seconds in which our owner may die.
    from forge.train.trainer.answers import train_answers
    from forge.train.trainer.parallel import end_rank
    from forge.train.trainer.settings import Settings, start_logging

    start_logging()
    train_answers(Settings.load(config))
    end_rank()


if __name__ == "__main__":
    main()
