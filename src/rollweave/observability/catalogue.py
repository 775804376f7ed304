"""Lists every key of metrics.jsonl with its unit and meaning. A key that is not listed cannot be written.

`docs/metrics.md` is made from this file: `python -m rollweave.observability.catalogue > docs/metrics.md`.
A part in angle brackets stands for any one name (`reward/<name>` allows `reward/format`).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Metric:
    """One key, or one pattern of keys."""

    key: str
    unit: str
    description: str


SECTIONS: dict[str, tuple[Metric, ...]] = {
    "The step": (
        Metric("step", "count", "Train step n, counted from 0: it starts from policy version n and makes n + 1."),
        Metric("policy/version", "count", "The policy version this step made."),
        Metric("time/elapsed", "s", "Time since the run began, including earlier processes of a resumed run."),
        Metric("lr", "", "Learning rate of this step."),
        Metric("weights/checksum", "text", "Digest of the weights made by this step, as every engine confirmed it."),
    ),
    "Reward": (
        Metric("reward/mean", "", "Mean reward of the trajectories this step trained on."),
        Metric("reward/std", "", "Their standard deviation."),
        Metric("reward/<name>", "", "Mean of one named part of the reward, already weighted."),
        Metric("eval/reward", "", "Mean reward of greedy episodes on held-out tasks, in steps that evaluate."),
        Metric("eval/turns_mean", "turns", "Mean length of those episodes."),
        Metric("eval/version", "count", "The policy version that was evaluated."),
        Metric("advantage/zero_share", "share", "Groups whose members all got the same reward, which teach nothing."),
    ),
    "Episodes": (
        Metric("episode/turns_mean", "turns", "Mean turns of the trained trajectories."),
        Metric("episode/tokens_mean", "tokens", "Their mean length in tokens, given and sampled."),
        Metric("episode/truncated_share", "share", "Those that ended at the turn or token limit; they are trained."),
    ),
    "Tokens": (
        Metric("tokens/generated", "tokens", "Sampled by the engines during this step. The sum over the run is trained "
               "+ wasted + evaluation + in flight."),
        Metric("tokens/trained", "tokens", "Sampled tokens this step trained on."),
        Metric("tokens/wasted/<cause>", "tokens", "Sampled tokens that ended untrained during this step, by cause: "
               "filtered, surplus, stale, aborted, infra-failed, reward-failed (the end of their attempt), and lost: "
               "those that reached no attempt (restarted turns, answers after their deadline, dead workers)."),
        Metric("tokens/wasted_share", "share", "Wasted / (trained + wasted), since the run began."),
        Metric("tokens/evaluation", "tokens", "Sampled by evaluations that ended during this step."),
        Metric("tokens/in_flight", "tokens", "In running episodes and unconsumed groups at the end of the step."),
        Metric("tokens_per_second/generated", "tokens/s", "tokens/generated over time/step."),
        Metric("tokens_per_second/trained", "tokens/s", "tokens/trained over time/step."),
    ),
    "Staleness": (
        Metric("staleness/mean", "versions", "Step minus the version of a trajectory's oldest sampled token, mean "
               "over the batch."),
        Metric("staleness/max", "versions", "The same for the stalest trajectory. Never above the staleness bound "
               "(alpha), rounded up, except with `areal`, which does not enforce it."),
        Metric("staleness/share/<versions>", "share", "Trajectories of the batch that are that many versions old."),
        Metric("bias/duration", "share", "By how much trained episodes last longer (shorter: negative) than started "
               "ones, over the last 2,048 started; 0 if no episode is stopped. See observing.md."),
        Metric("bias/tokens", "share", "The same for the tokens sampled in an episode."),
    ),
    "Queue": (
        Metric("queue/length_seen", "groups", "Complete groups in the buffer when the trainer asked for its batch."),
        Metric("queue/wait_seconds", "s", "How long the groups of this batch had been complete in the buffer, mean."),
        Metric("queue/wait_seconds_max", "s", "The same for the group that was there longest."),
        Metric("queue/trainer_blocked_seconds", "s", "How long the trainer waited for its batch."),
        Metric("queue/backpressure_seconds", "s", "Time in which environment slots were free but the staleness bound "
               "did not admit another group."),
        Metric("queue/free_slots", "slots", "Free environment slots, mean over the step."),
        Metric("queue/groups_buffered", "groups", "Complete groups waiting for the trainer at the end of the step."),
        Metric("queue/groups_running", "groups", "Groups admitted and not complete at the end of the step."),
    ),
    "Time": (
        Metric("time/step", "s", "From the end of the previous step to the end of this one."),
        Metric("time/get_batch", "s", "The trainer waits for complete groups."),
        Metric("time/train", "s", "The train step itself."),
        Metric("time/sync", "s", "Weight synchronisation, hidden or not: publishing, staging, verifying, swapping."),
        Metric("time/sync_exposed", "s", "The part of time/sync that the loop had to wait for."),
        Metric("time/recompute", "s", "Engines compute KV caches again after a weight update; overlaps the others."),
        Metric("time/eval", "s", "Evaluation on held-out tasks."),
        Metric("time/permit", "s", "The loop waits for a permit to use a pool that is shared with other jobs."),
        Metric("idle/<pool>", "share", "Share of the step in which a pool had nothing to do: engine, trainer, "
               "environments (slots without an episode); get_batch: the share in which the loop waited for data."),
    ),
    "Off-policy": (
        Metric("offpolicy/ess", "share", "Effective sample size of the importance ratios over the batch's tokens; 1: "
               "on-policy."),
        Metric("offpolicy/ratio_p50", "", "Median ratio of the policy before the step to the engine's."),
        Metric("offpolicy/ratio_p99", "", "Its 99th percentile."),
        Metric("offpolicy/ratio_max", "", "Its maximum."),
        Metric("offpolicy/clip_fraction", "share", "Tokens whose gradient the loss's bound cut off, or whose weight "
               "it cut down."),
        Metric("mismatch/logprob_gap", "nats", "Mean absolute difference between the engine's and the trainer's "
               "log-probs on tokens of the version being trained; absent if the batch has none."),
        Metric("mismatch/logprob_gap_max", "nats", "The largest of those differences."),
        Metric("mismatch/factor_mean", "", "Mean factor of `training.mismatch` on a token's policy loss."),
        Metric("mismatch/cut_share", "share", "Tokens whose mismatch weight was truncated, or which it masked."),
        Metric("offpolicy/uncorrected", "0 or 1", "1: every ratio is exactly 1 on stale data: no correction."),
    ),
    "Optimisation": (
        Metric("loss/<part>", "", "Parts of the loss: policy, kl, entropy; value: of the value head, with gae."),
        Metric("value/explained_variance", "share", "How much of the returns the value head predicted: 1 all, 0 none."),
        Metric("grad/<name>", "", "norm: of the gradient, before clipping; skipped: updates that were not finite."),
    ),
    "Ledger and machine": (
        Metric("ledger/task/<state>", "groups", "Tasks (a group each) so far, by how they ended: trained, filtered, "
               "dropped-stale, failed; open: not ended yet. The sum is the number of admitted tasks."),
        Metric("ledger/attempt/<state>", "attempts", "Attempts (an episode each) so far, by how they ended: "
               "trained, filtered, surplus, stale, aborted, infra-failed, reward-failed; open: not ended yet."),
        Metric("restarts/<worker>", "count", "Times a worker process was started again, since the run began."),
        Metric("memory/<worker>_mb", "MB", "Resident memory of a worker process."),
    ),
}  # fmt: skip

CATALOGUE: tuple[Metric, ...] = tuple(metric for section in SECTIONS.values() for metric in section)


@cache
def find(key: str) -> Metric | None:
    """The entry of the catalogue for a key; an exact key comes before a pattern."""
    exact = next((metric for metric in CATALOGUE if metric.key == key), None)
    return exact or next((metric for metric in CATALOGUE if _pattern(metric.key).fullmatch(key)), None)


def check(key: str) -> None:
    """Refuse a key that is not in the catalogue, because no reader could look it up."""
    if find(key) is None:
        near = difflib.get_close_matches(key, [metric.key for metric in CATALOGUE], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown metric {key!r}{hint} New metrics are declared in observability/catalogue.py")


@cache
def _pattern(key: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"<\w+>", lambda _: r"[\w.+-]+", key.replace(".", r"\.")))


def markdown() -> str:
    """Write the page docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "One JSON object per train step in `metrics.jsonl`, the same numbers in `tensorboard/`. Tokens are counted per",
        "step, attempts (`ledger/`) since the run began. A number that is not finite is written as null.",
        "",
        "This page is made by `python -m rollweave.observability.catalogue > docs/metrics.md`.",
    ]
    for title, metrics in SECTIONS.items():
        lines += ["", f"## {title}", "", "| key | unit | meaning |", "|---|---|---|"]
        lines += [f"| `{metric.key}` | {metric.unit} | {metric.description} |" for metric in metrics]
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
