"""The page of metrics: names of the numbers that a run records at each training step."""

from __future__ import annotations

from docs.generate.markdown import code, page, table, text

INTRO = """\
Metrics are rows of [`v_metrics`](store.md#v_metrics), by stage and step; sinks (`[sinks]`) get the
same names. A name is area/thing/statistic, and the statistic says how values may be combined: a sum
may be added, a mean may not be averaged without its weights.

```sh
forge sql RUN "SELECT step, value FROM v_metrics WHERE key = 'train/loss/mean' ORDER BY step"
```
"""
METRICS = {
    "train/loss/mean": "Loss of the step's batch.",
    "train/grad_norm/value": "Norm of the gradient before clipping.",
    "train/learning_rate/value": "Learning rate of the step.",
    "train/token_accuracy/mean": "SFT: share of trained tokens that the model ranks first.",
    "train/tokens/per_s": "Tokens of prompts and completions that were trained, a second.",
    "train/peak_bytes/max": "Highest GPU memory of the step, in bytes; on GPUs only.",
    "train/ratio/mean": "GRPO: mean probability ratio between the trained and the sampling policy.",
    "train/ratio/max": "GRPO: largest such ratio.",
    "train/clipped/share": "GRPO: share of tokens whose ratio the loss clips, 0 to 1.",
    "train/left_out/share": "GRPO: share of tokens that the off-policy mask leaves out, 0 to 1.",
    "train/kl_behaviour/mean": "GRPO: estimated divergence from the sampling policy, in nats.",
    "train/kl_reference/mean": "GRPO with `beta` above 0: the same from the reference model.",
    "train/entropy/mean": "GRPO: entropy of the policy at the trained tokens, in nats.",
    "train/logprob_gap/mean": "GRPO: mean absolute difference between the engine's and the "
    "trainer's log-probabilities, of samples of the current weights.",
    "train/tokens/sum": "GRPO: trained tokens.",
    "train/samples/count": "GRPO: samples of the batch.",
    "train/micro_batches/count": "GRPO: forward-backward passes.",
    "train/checkpoint/seconds": "Time that steps waited for a checkpoint since the last report.",
    "train/forward_tokens/sum": "GRPO: tokens that were computed, shared ones once.",
    "train/skipped_updates/count": "GRPO: updates left out, since loss or gradient was not finite.",
    "train/step/seconds": "GRPO: time of the step, without the wait for its batch.",
    "train/wait/seconds": "GRPO: time that the trainer waited for the batch.",
    "train/publish_wait/seconds": "GRPO: time that the trainer waited for publishes.",
    "rollout/reward/mean": "Mean reward of the batch's turns.",
    "rollout/pass_at_1/mean": "Share of scored first turns that are correct.",
    "rollout/groups/count": "Groups that were played for the batch.",
    "rollout/flat_groups/count": "Groups with equal returns among them.",
    "rollout/samples/count": "Samples of the batch.",
    "rollout/tokens/sum": "Tokens of the completions of these groups.",
    "rollout/in_flight_groups/count": "Groups that were being played when the batch was made.",
    "rollout/stale_groups/count": "Groups that were too old when they ended, and dropped.",
    "rollout/replayed_groups/count": "Groups of the batch that were trained before.",
    "weights/publish/seconds": "Time until every replica had the weights and passed its probe.",
    "weights/probe_gap/mean": "Mean absolute difference of log-probabilities on the probe.",
    "step/wall/seconds": "Time from one publish to the next.",
    "idle/trainer/seconds": "Part of it in which the trainer was idle.",
    "idle/serve/seconds": "The same of the replicas, on average.",
    "idle/judge/seconds": "The same of the judges, on average.",
}


def metrics_page() -> str:
    """All names with their meaning."""
    rows = ((code(name), text(meaning)) for name, meaning in METRICS.items())
    return page("Metrics", INTRO, table(("Name", "Meaning"), rows))
