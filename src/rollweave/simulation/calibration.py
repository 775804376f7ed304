"""Finds what cannot be timed by itself: what passing a turn through hosts, links and driver costs, and how much longer
everything takes while generation and training share the machine.

It asks what these must be for the simulation of a real sample to take as long as the sample took. The times of engine
and trainer are brought to what they took in the sample, too: alone on the machine they are a little quicker.
"""

from __future__ import annotations

from collections.abc import Callable

from rollweave.config.hardware import Contention, EngineTimes, Measured, Observed, TrainerTimes, WeightTimes
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
    host = found(profile).host
    outcome = _simulated(profile, "sync+")
    profile = _with(profile, trainer=_scaled_trainer(found(profile).trainer, seen.train_seconds / _train(outcome)))
    for _ in range(2):  # how the engine batches depends on the host, and the other way round
        busy = _engine_busy(_simulated(profile, "sync+"))
        profile = _with(profile, engine=_scaled_engine(found(profile).engine, seen.engine_busy_seconds / busy))
        start = profile

        def get_batch(turn: float, start: Scenario = start) -> float:
            changed = _with(start, host=host.model_copy(update={"turn": turn}))
            return Prediction.of(_simulated(changed, "sync+")).get_batch_seconds

        turn = solve(get_batch, seen.get_batch_seconds, _most_per_turn(seen, outcome))
        profile = _with(profile, host=host.model_copy(update={"turn": turn}))
    return profile


def _fit_overlap(profile: Scenario, seen: Observed) -> Scenario:
    outcome = _simulated(profile, "rollart")
    engine = max(1.0, seen.engine_busy_seconds / _engine_busy(outcome))
    trainer = max(1.0, seen.train_seconds / _train(outcome))

    def step(host: float) -> float:
        contention = Contention(engine=engine, trainer=trainer, host=host)
        return Prediction.of(_simulated(_with(profile, contention=contention), "rollart")).step_seconds

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


def _engine_busy(outcome: SimulationResult) -> float:
    prediction = Prediction.of(outcome)
    return (1.0 - prediction.engine_idle) * prediction.step_seconds


def _train(outcome: SimulationResult) -> float:
    return Prediction.of(outcome).train_seconds


def _most_per_turn(seen: Observed, outcome: SimulationResult) -> float:
    """All of the rollout's time, if nothing but the host's work were in it."""
    return seen.get_batch_seconds / (outcome.turns / outcome.steps)


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
    engine, host, slower = times.engine, times.host, times.contention
    rows = [
        ("engine step, 1 request", f"{engine.seconds[0] * 1e3:.2f} ms"),
        (f"engine step, {engine.batches[-1]} requests", f"{engine.seconds[-1] * 1e3:.2f} ms"),
        ("  per 1,000 tokens in caches", f"{engine.cached_token * 1e6:.2f} ms"),
        ("  per 1,000 tokens of context", f"{engine.prefill_token * 1e6:.2f} ms"),
        ("  the first after a pause", f"{engine.wake * 1e3:+.2f} ms"),
        ("train step, whatever the batch", f"{times.trainer.step * 1e3:.0f} ms"),
        ("  per 1,000 tokens", f"{times.trainer.token * 1e6:.0f} ms"),
        ("weights: publish, prepare, commit", _milliseconds(times.weights)),
        ("hosts, per message and per turn", f"{host.message * 1e3:.2f}, {host.turn * 1e3:.2f} ms"),
        ("slower while both are at work", f"engine {slower.engine:.2f}x, trainer {slower.trainer:.2f}x"),
        ("", f"hosts {slower.host:.2f}x"),
    ]
    return "\n".join(f"{name:34} {value}" for name, value in rows)


def _milliseconds(weights: WeightTimes) -> str:
    return f"{weights.publish * 1e3:.0f}, {weights.prepare * 1e3:.0f}, {weights.commit * 1e3:.0f} ms"
