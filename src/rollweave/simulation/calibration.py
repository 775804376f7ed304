"""Finds what cannot be timed by itself: what passing a turn through hosts, links and driver costs, and how much longer
everything takes while generation and training share the machine.

It asks what these must be for the simulation of a real sample to take as long as the sample took. The times of engine
and trainer are brought to what they took in the sample, too: alone on the machine they are a little quicker.
"""

from __future__ import annotations

from collections.abc import Callable

from rollweave.config.hardware import Contention, EngineTimes, Measured, Observed, TrainerTimes
from rollweave.config.scenario import Scenario
from rollweave.simulation.outcome import SimulationResult
from rollweave.simulation.prediction import Prediction
from rollweave.simulation.simulate import scenario, simulate

STEPS, WARMUP = 8, 2
"""Of each simulation."""
WORTH_FITTING = 0.1
"""Share of a step that waits for data: below it the hosts' speed does not show, and is taken to be the engine's."""
ROUNDS = 6
"""Of halving the interval in which a time must lie: to less than a fiftieth of it."""


def calibrate(profile: Scenario, in_turns: Observed, overlapped: Observed | None) -> Scenario:
    """First with generation and training in turns: engine, trainer, host. Then what changes when both are at work."""
    profile = _fit_in_turns(profile, in_turns)
    return profile if overlapped is None else _fit_overlap(profile, overlapped)


def _fit_in_turns(profile: Scenario, seen: Observed) -> Scenario:
    outcome = _simulated(profile, "sync+")
    slower = seen.train_seconds / Prediction.of(outcome).train_seconds
    profile = _with(profile, trainer=_scaled_trainer(found(profile).trainer, slower))
    most_per_turn = seen.get_batch_seconds / (outcome.turns / outcome.steps)  # if only the host's work were in it
    for _ in range(2):  # how the engine batches depends on the host, and the other way round
        slower = seen.engine_busy_seconds / _predicted(profile, "sync+").engine_busy_seconds
        profile = _with(profile, engine=_scaled_engine(found(profile).engine, slower))
        profile = _fit_host(profile, seen.get_batch_seconds, most_per_turn)
    return profile


def _fit_host(profile: Scenario, get_batch_seconds: float, most_per_turn: float) -> Scenario:
    def hosted(turn: float) -> Scenario:
        return _with(profile, host=found(profile).host.model_copy(update={"turn": turn}))

    def get_batch(turn: float) -> float:
        return _predicted(hosted(turn), "sync+").get_batch_seconds

    return hosted(solve(get_batch, get_batch_seconds, most_per_turn))


def _fit_overlap(profile: Scenario, seen: Observed) -> Scenario:
    alone = _predicted(profile, "rollart")
    engine = max(1.0, seen.engine_busy_seconds / alone.engine_busy_seconds)
    trainer = max(1.0, seen.train_seconds / alone.train_seconds)

    def step(host: float) -> float:
        contention = Contention(engine=engine, trainer=trainer, host=host)
        return _predicted(_with(profile, contention=contention), "rollart").step_seconds

    waits_for_data = seen.get_batch_seconds > WORTH_FITTING * seen.step_seconds
    host = max(1.0, solve(step, seen.step_seconds, 4.0)) if waits_for_data else engine
    return _with(profile, contention=Contention(engine=engine, trainer=trainer, host=host))


def solve(function: Callable[[float], float], wanted: float, most: float) -> float:
    """Where a rising function reaches `wanted`, between 0 and `most`; the nearer end if it does not."""
    low, high = 0.0, most
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        if function(middle) < wanted:
            low = middle
        else:
            high = middle
    return round((low + high) / 2, 6)


def found(profile: Scenario) -> Measured:
    """What was measured of the profile's device."""
    measured = profile.cluster.devices[0].measured
    assert measured is not None, "a profile has a measured device"
    return measured


def _with(profile: Scenario, **changes: object) -> Scenario:
    measured = found(profile).model_copy(update=changes)
    device = profile.cluster.devices[0].model_copy(update={"measured": measured})
    cluster = profile.cluster.model_copy(update={"devices": (device, *profile.cluster.devices[1:])})
    return profile.model_copy(update={"cluster": cluster})


def _simulated(profile: Scenario, pipeline: str) -> SimulationResult:
    alpha = {"alpha": 1.0} if pipeline == "rollart" else {}
    changes = {"pipeline": {"type": pipeline, **alpha}, "training": {"steps": STEPS}, "warmup": WARMUP}
    return simulate(scenario(profile.model_dump(mode="json") | changes))


def _predicted(profile: Scenario, pipeline: str) -> Prediction:
    return Prediction.of(_simulated(profile, pipeline))


def _scaled_engine(times: EngineTimes, factor: float) -> EngineTimes:
    return times.model_copy(
        update={
            "seconds": tuple(round(each * factor, 7) for each in times.seconds),
            "cached_token": times.cached_token * factor,
            "prefill_token": times.prefill_token * factor,
            "wake": times.wake * factor,
        }
    )


def _scaled_trainer(times: TrainerTimes, factor: float) -> TrainerTimes:
    return TrainerTimes(step=round(times.step * factor, 6), token=times.token * factor)


def summary(profile: Scenario) -> str:
    """What the machine takes, for a person."""
    times = found(profile)
    engine, weights, host, slower = times.engine, times.weights, times.host, times.contention
    update = f"{weights.publish * 1e3:.0f}, {weights.prepare * 1e3:.0f}, {weights.commit * 1e3:.0f} ms"
    rows = [
        ("engine step, 1 request", f"{engine.seconds[0] * 1e3:.2f} ms"),
        (f"engine step, {engine.batches[-1]} requests", f"{engine.seconds[-1] * 1e3:.2f} ms"),
        ("  per 1,000 tokens in caches", f"{engine.cached_token * 1e6:.2f} ms"),
        ("  per 1,000 tokens of context", f"{engine.prefill_token * 1e6:.2f} ms"),
        ("  the first after a pause", f"{engine.wake * 1e3:+.2f} ms"),
        ("train step, whatever the batch", f"{times.trainer.step * 1e3:.0f} ms"),
        ("  per 1,000 tokens", f"{times.trainer.token * 1e6:.0f} ms"),
        ("weights: publish, prepare, commit", update),
        ("hosts, per message and per turn", f"{host.message * 1e3:.2f}, {host.turn * 1e3:.2f} ms"),
        ("slower while both are at work", f"engine {slower.engine:.2f}x, trainer {slower.trainer:.2f}x"),
        ("", f"hosts {slower.host:.2f}x"),
    ]
    return "\n".join(f"{name:34} {value}" for name, value in rows)
