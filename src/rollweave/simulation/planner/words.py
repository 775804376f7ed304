"""A plan in words: the table of the best candidates, and why the first of them is the first."""

from __future__ import annotations

from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any

from rollweave.config.document import dump
from rollweave.config.planning import PlanConfig
from rollweave.errors import ConfigError
from rollweave.simulation.measure import steps_of_a_period
from rollweave.simulation.planner.candidates import Candidate
from rollweave.simulation.planner.search import Choice, Recommendation

BALANCED = 0.25
"""Idle shares up to which a pool counts as well used."""

ALMOST = 1.05
"""Times the time per token: hardly slower."""

REMEDIES = {
    "training": "More or faster devices that train would shorten the step.",
    "rollout": "More or faster engines would shorten the step.",
    "weights": "Only a faster way for the weights would shorten the step (constants.push_bandwidth, pull_bandwidth), "
    "not more devices.",
    "episodes": "The longest episodes take most of that time: faster engines, shorter episodes or quicker environments "
    "would shorten the step.",
}

LABELS = ("", "train", "rollout", "mode", "redundant")
NUMBERS = ("step s", "tokens/s", "±", "$/h", "$/step", "idle train", "idle rollout")
HEADINGS = (*LABELS, *NUMBERS)


def table(result: Recommendation, shown: int) -> str:
    rows = [HEADINGS, *(_row(place, choice) for place, choice in enumerate(result.choices[:shown], 1))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < len(LABELS) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _row(place: int, choice: Choice) -> tuple[str, ...]:
    candidate, outcome = choice.candidate, choice.outcome
    return (
        str(place),
        f"{candidate.train_count} {candidate.train_device}",
        " + ".join(map(str, candidate.rollout)),
        f"rollart α={candidate.alpha:g}" if candidate.alpha else "sync+",
        f"{candidate.redundancy:.0%}" if candidate.redundancy else "-",
        _figure(outcome.step_seconds),
        f"{outcome.tokens_per_second:,.0f}",
        "brief" if choice.margin is None else f"{choice.margin:.1%}",
        f"{choice.dollars_per_hour:,.2f}",
        _figure(choice.dollars_per_step),
        f"{idle(choice, 'train'):.0%}",
        f"{idle(choice, 'rollout'):.0%}",
    )


def _figure(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"


def why(plan: PlanConfig, result: Recommendation) -> list[str]:
    """Sentences about the best choice."""
    best = result.choices[0]
    found = [
        _bound(best),
        _decode(plan, result, best.candidate),
        _against(best, result, "train_count", "another split"),
        _against(best, result, "alpha", "another staleness bound (alpha)"),
        _against(best, result, "redundancy", "other redundancy"),
        _against(best, result, "rollout", "other engines"),
        _cheaper(best, result),
    ]
    return [sentence for sentence in found if sentence]


def idle(choice: Choice, role: str) -> float:
    """Share of the time that the devices of a role stood still."""
    pools = [pool for pool in choice.outcome.pools if pool.role == role]
    return sum(pool.idle_share * pool.count for pool in pools) / sum(pool.count for pool in pools)


def _bound(best: Choice) -> str:
    """What the step waits for: the part that is nearly always at work, or else the longest part of a chain."""
    outcome = best.outcome
    busy = {
        "training": 1 - idle(best, "train"),
        "rollout": 1 - idle(best, "rollout"),
        "weights": min(1.0, outcome.update_seconds / outcome.step_seconds),
    }
    shares = (
        f"the trainer stands idle {1 - busy['training']:.0%} of the time, the engines {1 - busy['rollout']:.0%}, and "
        f"new weights take {outcome.update_seconds:,.0f} s of a step's {outcome.step_seconds:,.0f} s to reach them"
    )
    if not best.candidate.alpha:
        taking_turns = "Generation and training take turns (staleness bound (alpha) 0), so each waits for the other"
        return f"{taking_turns}: {shares}. {REMEDIES[_longest_part(best)]}"
    if busy["weights"] >= 1 - BALANCED:
        return f"The weight path is the bottleneck: {shares}. {REMEDIES['weights']}"
    well_used = [part for part in ("training", "rollout") if busy[part] >= 1 - BALANCED]
    if len(well_used) == 2:
        return f"Rollout and training are in balance: {shares}."
    if well_used:
        return f"{well_used[0].capitalize()} is the bottleneck: {shares}. {REMEDIES[well_used[0]]}"
    return (
        f"No part is always at work: {shares}. A batch is begun when the one {1 + best.candidate.alpha:g} steps before "
        f"it is trained and its weights have arrived, so episodes, training and weights wait for each other. "
        f"{REMEDIES[_longest_part(best)]}"
    )


def _longest_part(best: Choice) -> str:
    """Of a chain: the episodes of a batch, its training, the way of its weights."""
    outcome = best.outcome
    chain = outcome.step_seconds * (1 + best.candidate.alpha)
    training = outcome.step_seconds * outcome.time_shares["train"]
    parts = {"training": training, "weights": outcome.update_seconds}
    parts["episodes"] = chain - sum(parts.values())
    return max(parts, key=lambda part: parts[part])


def _decode(plan: PlanConfig, result: Recommendation, best: Candidate) -> str:
    """What the engines mostly do, and what their device offers for it."""
    engines = max(best.rollout, key=lambda each: each.count)
    share = result.estimator.decode_share(engines)
    if share >= 0.5:
        what = f"{share:.0%} of an engine's time goes into answers, which want memory bandwidth"
        unit, figure = "TB/s", attrgetter("bandwidth")
    else:
        what = f"{1 - share:.0%} of an engine's time goes into reading context, which wants arithmetic"
        unit, figure = "TFLOPS", attrgetter("tflops")
    names = dict.fromkeys([engines.device, *(offer.device for offer in plan.offers)])
    per_dollar = {name: figure(plan.device(name)) / max(1e-9, plan.price(name)) for name in names}
    offered = ", ".join(f"{name} {value:.3g}" for name, value in per_dollar.items())
    return f"{what}; {unit} per $/h: {offered}."


def _against(best: Choice, result: Recommendation, field: str, what: str) -> str:
    """What the best candidate that differs there would take."""
    mine = getattr(best.candidate, field)
    other = next((c for c in result.choices[1:] if getattr(c.candidate, field) != mine), None)
    if other is None:
        return ""
    ratio = best.outcome.tokens_per_second / other.outcome.tokens_per_second
    change = f"{ratio - 1:+.0%} time per token" if abs(ratio - 1) >= 0.005 else "the same time"
    return (
        f"The best with {what} ({_value(other.candidate, field)} instead of {_value(best.candidate, field)}): {change}."
    )


def _cheaper(best: Choice, result: Recommendation) -> str:
    """What costs clearly less and takes hardly longer."""
    limit = best.outcome.tokens_per_second / ALMOST
    others = [c for c in result.choices[1:] if c.outcome.tokens_per_second >= limit]
    cheapest = min(others, key=lambda choice: choice.dollars_per_hour, default=None)
    if cheapest is None or cheapest.dollars_per_hour > 0.9 * best.dollars_per_hour:
        return ""
    longer = best.outcome.tokens_per_second / cheapest.outcome.tokens_per_second - 1
    saved = 1 - cheapest.dollars_per_hour / best.dollars_per_hour
    place = result.choices.index(cheapest) + 1
    return (
        f"Number {place} costs {saved:.0%} less an hour and takes {longer:.1%} longer per token: {cheapest.candidate}."
    )


def _value(candidate: Candidate, field: str) -> str:
    match field:
        case "train_count":
            return f"{candidate.train_count} {candidate.train_device} training"
        case "rollout":
            return " + ".join(map(str, candidate.rollout))
    return f"{getattr(candidate, field):g}"


def closing(result: Recommendation) -> str:
    """What the figures rest on."""
    long = sum(choice.is_final for choice in result.choices)
    return (
        f"{result.considered:,} candidates estimated, {result.simulated} simulated, {long} of them for longer; "
        "± is half of the 95 % interval of tokens/s."
    )


def as_data(plan: PlanConfig, result: Recommendation, shown: int) -> dict[str, Any]:
    """For a program."""
    return {
        "name": plan.name,
        "model": plan.model,
        "objective": plan.objective,
        "considered": result.considered,
        "simulated": result.simulated,
        "why": why(plan, result),
        "candidates": [_choice_data(choice) for choice in result.choices[:shown]],
    }


def _choice_data(choice: Choice) -> dict[str, Any]:
    candidate, outcome = choice.candidate, choice.outcome
    return {
        "train": {"device": candidate.train_device, "count": candidate.train_count},
        "rollout": [asdict(engines) for engines in candidate.rollout],
        "alpha": candidate.alpha,
        "redundant_groups": candidate.redundancy,
        "step_seconds": outcome.step_seconds,
        "estimated_step_seconds": choice.estimate.step_seconds,
        "tokens_per_second": outcome.tokens_per_second,
        "margin": choice.margin,
        "measured_steps": outcome.periods * steps_of_a_period(candidate.alpha),
        "dollars_per_hour": choice.dollars_per_hour,
        "dollars_per_step": choice.dollars_per_step,
        "idle": {"train": idle(choice, "train"), "rollout": idle(choice, "rollout")},
        "time_shares": outcome.time_shares,
        "staleness_mean": outcome.staleness_mean,
        "wasted_share": outcome.wasted_share,
    }


def write_cluster(plan: PlanConfig, choice: Choice, path: Path) -> Path:
    """The cluster of a choice as a file, with the settings that go with it as a comment."""
    candidate = choice.candidate
    pipeline = ", ".join(f"{key}: {value}" for key, value in candidate.pipeline().items())
    head = [
        f"# Made by `rollweave plan` for {plan.model}: {choice.outcome.step_seconds:.1f} s a step predicted,",
        f"# {choice.dollars_per_hour:,.2f} $/h. It goes with these settings of the job:",
        f"#   pipeline: {{{pipeline}}}",
        f"#   rollout: {{redundant_groups: {candidate.redundancy:g}}}",
    ]
    cluster = plan.cluster(candidate.pools(plan)).model_dump(mode="json", exclude_defaults=True)
    try:
        path.write_text("\n".join(head) + "\n" + dump(cluster), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the cluster to {path}: {error.strerror}; name another file with -o") from error
    return path
