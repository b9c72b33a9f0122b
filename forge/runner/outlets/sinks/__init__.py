"""`[sinks]`: the numbers of each step in tensorboard, trackio or wandb as well.

Each is a child process that follows the store, read-only, at its own pace: the store is the queue
between them, which never fills and drops nothing, so a sink that hangs, crashes or has no network
cannot hold the run up by a millisecond. At the end it has `[sinks] close_timeout_s` to write the
rest; a sink that failed or was cut is an event `sink_failed` and a warning line.
"""
