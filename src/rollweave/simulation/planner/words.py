"""A plan in words: the table of the best candidates, and why the first of them is the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollweave.config.document import dump
from rollweave.config.planning import PlanConfig
from rollweave.errors import ConfigError
from rollweave.simulation.planner.candidates import Candidate, Engines
from rollweave.simulation.planner.search import Choice, Recommendation

BALANCED = 0.25
"""Idle shares up to which a pool counts as well used."""

ALMOST = 1.05
"""Times the time per token: hardly slower."""

LABELS = ("", "train", "rollout", "mode", "redundant")
NUMBERS = ("step s", "tokens/s", "$/h", "$/step", "idle train", "idle rollout")
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
        " + ".join(f"{e.count} {e.device} TP {e.tensor_parallel}" for e in candidate.rollout),
        f"rollart α={candidate.alpha:g}" if candidate.alpha else "sync+",
        f"{candidate.redundancy:.0%}" if candidate.redundancy else "-",
        _figure(outcome.step_seconds),
        f"{outcome.tokens_per_second:,.0f}",
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
    found = [_bound(best), _decode(plan, result, best.candidate)]
    found += [
        _against(best, result, "train_count", "another split"),
        _against(best, result, "alpha", "another staleness bound (alpha)"),
        _against(best, result, "redundancy", "other redundancy"),
        _against(best, result, "rollout", "other engines"),
    ]
    found.append(_cheaper(best, result))
    return [sentence for sentence in found if sentence]


def idle(choice: Choice, role: str) -> float:
    """Share of the time that the devices of a role stood still."""
    pools = [pool for pool in choice.outcome.pools if pool.role == role]
    return sum(pool.idle_share * pool.count for pool in pools) / sum(pool.count for pool in pools)


def _bound(best: Choice) -> str:
    train, rollout = idle(best, "train"), idle(best, "rollout")
    shares = f"the trainer stands idle {train:.0%} of the time, the engines {rollout:.0%}"
    if not best.candidate.alpha:
        return f"Generation and training take turns (staleness bound (alpha) 0), so each waits for the other: {shares}."
    if train > BALANCED and train > rollout:
        return f"Rollout is the bottleneck: {shares}. More or faster engines would shorten the step."
    if rollout > BALANCED:
        return f"Training, or the longest episodes, are the bottleneck: {shares}."
    return f"Rollout and training are in balance: {shares}."


def _decode(plan: PlanConfig, result: Recommendation, best: Candidate) -> str:
    """What the engines mostly do, and what their device offers for it."""
    engines = max(best.rollout, key=lambda each: each.count)
    share = result.estimator.decode_share(engines)
    others = [offer.device for offer in plan.offers if offer.device != engines.device]
    if share >= 0.5:
        what = f"{share:.0%} of an engine's time goes into answers, which want memory bandwidth"
        per_dollar = {name: _bandwidth_per_dollar(plan, name) for name in (engines.device, *others)}
        unit = "TB/s per $/h"
    else:
        what = f"{1 - share:.0%} of an engine's time goes into reading context, which wants arithmetic"
        per_dollar = {name: _flops_per_dollar(plan, name) for name in (engines.device, *others)}
        unit = "TFLOPS per $/h"
    offered = ", ".join(f"{name} {value:.3g}" for name, value in per_dollar.items())
    return f"{what}; {unit}: {offered}."


def _bandwidth_per_dollar(plan: PlanConfig, device: str) -> float:
    return plan.device(device).bandwidth / max(1e-9, plan.price(device))


def _flops_per_dollar(plan: PlanConfig, device: str) -> float:
    return plan.device(device).tflops / max(1e-9, plan.price(device))


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
            return " + ".join(_engines(each) for each in candidate.rollout)
    return f"{getattr(candidate, field):g}"


def _engines(each: Engines) -> str:
    return f"{each.count} {each.device} TP {each.tensor_parallel}"


def as_data(plan: PlanConfig, result: Recommendation, shown: int) -> dict[str, Any]:
    """For a program."""
    return {
        "name": plan.name,
        "model": plan.model,
        "objective": plan.objective,
        "considered": result.considered,
        "simulated": len(result.choices),
        "why": why(plan, result),
        "candidates": [_choice_data(choice) for choice in result.choices[:shown]],
    }


def _choice_data(choice: Choice) -> dict[str, Any]:
    candidate, outcome = choice.candidate, choice.outcome
    return {
        "train": {"device": candidate.train_device, "count": candidate.train_count},
        "rollout": [
            {"device": e.device, "count": e.count, "tensor_parallel": e.tensor_parallel} for e in candidate.rollout
        ],
        "alpha": candidate.alpha,
        "redundant_groups": candidate.redundancy,
        "step_seconds": outcome.step_seconds,
        "estimated_step_seconds": choice.estimate.step_seconds,
        "tokens_per_second": outcome.tokens_per_second,
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
