"""`[sinks]`: the numbers of each step, copied to tensorboard, trackio or wandb.

Each sink is a child process that reads the store at its own pace. The store is the queue between
run and sink: it never fills and drops nothing, so a sink that hangs, crashes or has no network
never delays the run. At the end a sink has `[sinks] close_timeout_s` to write the rest. A sink that
fails or is cut off is an event `sink_failed` and a warning line.
"""
