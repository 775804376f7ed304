"""Where tokens, time and episodes went: hand-made event lists with known answers, and the whole control plane."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.world.durations import constant, lognormal
from tests.world.environment import EnvironmentModel
from tests.world.hosts import TransportModel
from tests.world.world import SimulatedRun, World, simulate

from rollweave.clock import run_virtual
from rollweave.config.job import Job
from rollweave.observability import catalogue
from rollweave.observability.accounting import FAILURES, Accountant
from rollweave.observability.bias import DurationBias, survival_mean
from rollweave.observability.events import Event
from rollweave.observability.meters import CAUSES, QueueMeter, SlotMeter, TokenBooks
from rollweave.rollout.ledger import AttemptEnd
from virtual_worlds import make_job, rollart

# ------------------------------------------------------------------------------------------------------ by hand


def test_a_queue_seen_from_its_three_sides():
    queue = QueueMeter()
    queue.put(0, 1.0)
    queue.put(1, 4.0)
    queue.put(2, 5.0)
    queue.leave(2)  # filtered: neither seen nor waited for
    queue.ask(6.0)
    queue.put(3, 9.0)
    queue.serve([0, 1, 3], 9.0)
    queue.answered(9.0)
    assert queue.sample() == {
        "queue/length_seen": 2,
        "queue/wait_seconds": pytest.approx((8 + 5 + 0) / 3),
        "queue/wait_seconds_max": 8,
        "queue/trainer_blocked_seconds": 3,
    }
    assert queue.sample() == {"queue/trainer_blocked_seconds": 0.0}


def test_free_slots_are_back_pressure_only_while_nobody_is_in_line():
    slots = SlotMeter()
    slots.change(0.0, free=0, slots=4, in_line=3)
    slots.change(10.0, free=2, slots=4, in_line=1)  # a batch that waits for its last: not the bound's doing
    slots.change(12.0, free=4, slots=4, in_line=0)
    assert slots.refused_for(15.0) == 3
    row = slots.sample(20.0)
    assert row["queue/backpressure_seconds"] == 8
    assert row["queue/free_slots"] == pytest.approx((2 * 2 + 8 * 4) / 20)
    assert row["idle/environments"] == pytest.approx((2 * 2 + 8 * 4) / (20 * 4))
    assert slots.sample(21.0)["queue/backpressure_seconds"] == 1  # goes on into the next step


def test_tokens_add_up_and_what_is_missing_at_rest_was_lost():
    books = TokenBooks()
    books.sampled(100, thrown_away=7)
    books.finish("a", 30)
    books.finish("b", 20)
    books.book("a", "trained", 30)
    books.evaluation += 10
    assert books.in_flight == 100 - 7 - 30 - 10  # b's 20, and 33 that were not reported yet
    books.settle()
    row = books.sample()
    assert row["tokens/wasted/lost"] == 7 + 33
    assert row["tokens/in_flight"] == 20
    assert row["tokens/wasted_share"] == pytest.approx(40 / 70)
    books.book("b", "stale", 20)
    row = books.sample()
    assert (row["tokens/generated"], row["tokens/wasted/stale"], row["tokens/wasted/lost"]) == (0, 20, 0)
    assert row["tokens/in_flight"] == 0


def test_what_a_dead_engine_delivered_but_never_counted_is_no_negative_waste():
    books = TokenBooks()
    books.sampled(50, thrown_away=0)
    books.finish("a", 60)
    books.settle()
    assert books.booked["lost"] == 0
    assert (books.generated, books.in_flight) == (60, 60)


def test_the_causes_are_the_ledgers_and_one_more():
    assert set(CAUSES) == {end.value for end in AttemptEnd} - {"trained"} | {"lost"}


# --------------------------------------------------------------------------------------------------------- bias


def test_a_lower_limit_counts_as_at_least():
    finished = [(1.0, True), (2.0, True), (3.0, True)]
    assert survival_mean(finished, 3.0) == pytest.approx(2.0)  # nothing cut short: the plain mean
    # One cut short at 1.5 was on its way to 2 or 3: the curve is 1, then 3/4, then 3/8.
    assert survival_mean([*finished, (1.5, False)], 3.0) == pytest.approx(1 + 0.75 + 0.375)
    assert survival_mean([*finished, (9.0, False)], 3.0) == pytest.approx(1 + 0.75 + 0.5)  # not guessed beyond 3


def played(bias: DurationBias, durations: list[float], drop_at: float) -> None:
    for number, seconds in enumerate(durations):
        play(bias, f"0.{number}.0", seconds, drop_at)


def play(bias: DurationBias, attempt: str, seconds: float, stop_at: float = 99.0, began: float = 0.0) -> None:
    lasted, natural = min(seconds, stop_at), seconds <= stop_at
    bias.begin(attempt, began)
    bias.end(attempt, began + lasted, int(10 * lasted), natural)
    if not natural:
        bias.throw_away(attempt)


def test_dropping_what_is_slow_shows_as_a_bias():
    bias = DurationBias()
    played(bias, [1.0, 2.0, 3.0, 4.0], drop_at=3.5)
    # kept: 1, 2, 3. Started: also one of at least 3.5, of which no more than 3 is known to happen.
    assert bias.sample(9.0)["bias/duration"] == pytest.approx(2.0 / 2.25 - 1)
    assert bias.sample(9.0)["bias/tokens"] == pytest.approx(20 / 22.5 - 1)


def test_playing_again_is_a_bias_if_it_was_luck_and_none_if_it_takes_as_long():
    lucky, steady = DurationBias(), DurationBias()
    for bias, second_time in ((lucky, 1.0), (steady, 4.0)):
        played(bias, [1.0, 2.0, 3.0, 4.0], drop_at=3.5)
        play(bias, "0.3.1", second_time, began=5.0)
    # lucky trains 1, 2, 3, 1 where 1, 2, 3 and at least 3.5 were started
    assert lucky.sample(99.0)["bias/duration"] == pytest.approx(1.75 / 2.25 - 1)
    assert steady.sample(99.0)["bias/duration"] == 0.0


def test_a_failure_is_no_length_and_what_is_tried_again_no_bias():
    bias = DurationBias()
    played(bias, [1.0, 2.0], drop_at=9.0)
    bias.begin("0.2.0", 0.0)
    bias.end("0.2.0", 30.0, 5, natural=False, failed=True)  # it hung until its deadline
    bias.throw_away("0.2.0")
    assert bias.sample(31.0)["bias/duration"] == 0.0  # while it waits for its next attempt
    play(bias, "0.2.1", 1.5, began=31.0)
    assert bias.sample(99.0)["bias/duration"] == 0.0


def test_the_late_word_of_an_old_attempt_does_not_throw_the_new_one_away():
    bias = DurationBias()
    played(bias, [4.0, 2.0], drop_at=9.0)
    bias.begin("0.2.0", 0.0)
    bias.begin("0.2.1", 3.0)  # played again before the host has said that it stopped
    bias.end("0.2.0", 3.5, 30, natural=False)
    bias.throw_away("0.2.0")
    bias.end("0.2.1", 7.0, 40, natural=True)
    assert bias.sample(9.0)["bias/duration"] == 0.0


def test_a_new_attempt_may_fail_before_the_cancelled_one_is_reported():
    bias = DurationBias()
    played(bias, [4.0, 2.0], drop_at=9.0)
    bias.begin("0.2.0", 0.0)
    bias.throw_away("0.2.0")  # a requeue cancels it ...
    bias.begin("0.2.1", 3.0)  # ... and plays the member again
    bias.end("0.2.1", 3.5, 5, natural=False, failed=True)
    assert bias.sample(4.0)["bias/tokens"] == 0.0  # what the first attempt sampled is not known yet
    bias.end("0.2.0", 4.5, 35, natural=False)
    # Now it is: at least 35 were started, and what is kept so far is an attempt of at least 5. The curve of what was
    # started is 1 until 20, then 2/3, that of what is kept 1 until 20, then 1/2; both stop at 40.
    assert bias.sample(5.0)["bias/tokens"] == pytest.approx((20 + 20 / 2) / (20 + 20 * 2 / 3) - 1)


def test_whoever_waits_has_no_bias_at_any_moment_though_the_long_ones_still_run():
    draw, bias = random.Random(0), DurationBias()
    ends: list[tuple[float, str]] = []
    for number in range(200):
        begin, seconds = number * 0.1, draw.lognormvariate(0.0, 1.5)
        bias.begin(f"{number}.0.0", begin)
        ends.append((begin + seconds, f"{number}.0.0"))
        over = [end for end in sorted(ends) if end[0] <= begin]
        for time, name in over:
            bias.end(name, time, 1, natural=True)
        if over:
            assert bias.sample(begin)["bias/duration"] == 0.0


def test_a_filter_that_does_not_look_at_time_is_no_bias_though_the_long_ones_still_run():
    """Undecided members are mostly long ones; most of them will be filtered like the others."""
    draw, bias, now = random.Random(1), DurationBias(), 4.0
    ends: list[tuple[float, str]] = []
    for number in range(2000):
        begin = number * 0.002
        bias.begin(f"{number}.0.0", begin)
        ends.append((begin + draw.uniform(0.0, 2.0), f"{number}.0.0"))
    for time, name in sorted(ends):
        if time > now:
            continue
        bias.end(name, time, 1, natural=True)
        if draw.random() < 0.1:
            bias.train(name)
        else:
            bias.throw_away(name, filtered=True)
    assert bias.sample(now)["bias/duration"] == pytest.approx(0.0, abs=0.05)  # 0.4 if all of them counted in full


def test_bias_is_silent_until_it_knows_something_and_forgets_what_is_long_ago():
    bias = DurationBias(window=2)
    bias.begin("0.0.0", 0.0)
    assert bias.sample(5.0) == {}
    played(bias, [1.0, 2.0], drop_at=2.0)
    assert bias.sample(9.0) == {"bias/duration": 0.0, "bias/tokens": 0.0}
    bias.begin("1.0.0", 10.0)
    bias.begin("1.1.0", 10.0)
    assert bias.sample(11.0) == {}  # the two that are left still play


def test_cutting_episodes_short_does_not_shorten_the_estimate_of_what_was_started():
    """Lengths of mean 1, cut at a moment of their own: the mean of what was seen is far too short."""
    draw, bias, seen = random.Random(1), DurationBias(window=4000), []
    for number in range(4000):
        seconds, cancelled = draw.expovariate(1.0), draw.uniform(0.0, 6.0)
        seen.append((min(seconds, cancelled), seconds <= cancelled))
        play(bias, f"{number}.0.0", seconds, cancelled)
    assert sum(seconds for seconds, _ in seen) / len(seen) < 0.9
    assert survival_mean(seen, 6.0) == pytest.approx(1.0, abs=0.05)
    kept = [seconds for seconds, natural in seen if natural]  # true mean 1: so much shorter are they
    assert bias.sample(9.0)["bias/duration"] == pytest.approx(sum(kept) / len(kept) - 1.0, abs=0.05)


# --------------------------------------------------------------------------------------- a schedule known by heart


def job(pipeline: dict[str, Any], steps: int = 3, **rollout: Any) -> Job:
    numbers = {"groups_per_step": 2, "group_size": 2, "environments": 8, "max_turns": 9, **rollout}
    return Job.model_validate(
        {
            "model": {"type": "tiny"},
            "environment": {"type": "frozen_lake"},
            "pipeline": pipeline,
            "rollout": numbers,
            "training": {"steps": steps},
            "evaluation": {"every": 0},
        }
    )


def run(job: Job, world: World) -> SimulatedRun:
    return run_virtual(lambda clock: simulate(job, world, clock))


STEADY = World(
    token_seconds=constant(0.5),
    answer_tokens=lambda rng: 4,
    train_seconds=constant(10.0),
    environment=EnvironmentModel(turns=lambda rng: 1, step_seconds=constant(3.0)),
)
"""Every episode: 2 s of generation (4 tokens), 3 s of environment. Every train step: 10 s."""


def test_a_synchronous_step_of_which_every_second_is_known():
    row = run(job({"type": "sync+"}), STEADY).rows[1]
    assert row["time/step"] == 15
    assert row["queue/trainer_blocked_seconds"] == row["time/get_batch"] == 5
    assert row["queue/length_seen"] == 0
    assert row["queue/wait_seconds"] == 0  # the last member ends together with the others
    assert row["idle/get_batch"] == pytest.approx(5 / 15)
    assert row["idle/trainer"] == pytest.approx(5 / 15)
    assert row["idle/engine"] == pytest.approx(13 / 15)
    # 4 of 8 slots for 5 s, then none while the trainer works. All of it is the bound's doing: 4 are never needed.
    assert row["queue/backpressure_seconds"] == 15
    assert row["idle/environments"] == pytest.approx(1 - 4 * 5 / (8 * 15))
    assert row["queue/free_slots"] == pytest.approx(8 - 4 * 5 / 15)
    assert (row["tokens/generated"], row["tokens/trained"], row["tokens/in_flight"]) == (16, 16, 0)
    assert row["staleness/share/0"] == 1.0


def test_an_overlapped_step_of_which_every_second_is_known():
    row = run(job({"type": "rollart", "alpha": 1}), STEADY).rows[2]
    assert row["time/step"] == 10  # generation is hidden
    assert row["queue/trainer_blocked_seconds"] == 0
    assert row["queue/length_seen"] == 2
    assert row["queue/wait_seconds"] == row["queue/wait_seconds_max"] == 5  # done 5 s into a train step of 10
    assert row["queue/backpressure_seconds"] == 10
    assert row["idle/trainer"] == 0
    assert row["idle/engine"] == pytest.approx(0.8)
    assert row["tokens/in_flight"] == 16  # the next step's groups, complete
    assert (row["staleness/mean"], row["staleness/max"], row["staleness/share/1"]) == (1, 1, 1.0)
    assert row["ledger/task/trained"] == 6 and row["ledger/task/open"] == 2
    assert row["ledger/attempt/trained"] == 12 and row["ledger/attempt/open"] == 4


def test_every_key_is_in_the_catalogue():
    rows = run(job({"type": "rollart", "alpha": 1}), STEADY).rows
    assert all(catalogue.find(key) for row in rows for key in row)


# ------------------------------------------------------------------------------------ the whole, under all policies

HEAVY = World(
    token_seconds=constant(0.2),
    environment=EnvironmentModel(turns=lambda rng: rng.randint(1, 5), step_seconds=lognormal(0.5, 1.5)),
    train_seconds=constant(2.0),
)

MODES: list[dict[str, Any]] = [
    {"type": "sync"},
    {"type": "sync+"},
    {"type": "one_off"},
    {"type": "areal"},
    {"type": "rollart", "alpha": 1},
    {"type": "rollart", "alpha": 1, "in_flight": "restart_turn"},
    {"type": "rollart", "alpha": 1, "policy": "drop"},
    {"type": "rollart", "alpha": 1.5, "policy": "requeue"},
]


def total(result: SimulatedRun, prefix: str) -> int:
    return sum(int(value) for row in result.rows for key, value in row.items() if key.startswith(prefix))  # type: ignore[arg-type]


@pytest.mark.parametrize("pipeline", MODES, ids=lambda mode: "-".join(map(str, mode.values())))
def test_generated_is_trained_and_wasted_and_in_flight(pipeline: dict[str, Any]):
    """Against the witness, who counted at the engines: nothing is in flight but what open attempts really hold."""
    result = run(job(pipeline, steps=12), HEAVY)
    last, witness = result.rows[-1], result.witness
    booked = total(result, "tokens/trained") + total(result, "tokens/wasted/")
    assert total(result, "tokens/generated") == booked + int(last["tokens/in_flight"])  # type: ignore[arg-type]
    assert total(result, "tokens/wasted/lost") == sum(witness.redrawn.values())
    open_attempts = result.loop.scheduler.ledger.open_attempts
    held = sum(len(one.tokens) for id, one in witness.answered.items() if id.split("#")[0] in open_attempts)
    assert last["tokens/in_flight"] == held + sum(witness.abandoned.values())  # cut off when the world ended


def test_waiting_wastes_nothing_and_has_no_bias_and_dropping_does():
    waits = run(job({"type": "rollart", "alpha": 1}, steps=20), HEAVY).rows[-1]
    assert (waits["tokens/wasted_share"], waits["bias/duration"], waits["bias/tokens"]) == (0.0, 0.0, 0.0)
    drops = run(job({"type": "rollart", "alpha": 1, "policy": "drop"}, steps=20), HEAVY)
    last = drops.rows[-1]
    wasted, trained = total(drops, "tokens/wasted/"), total(drops, "tokens/trained")
    assert last["tokens/wasted_share"] == pytest.approx(wasted / (wasted + trained))
    assert wasted > 0
    assert float(last["bias/duration"]) < -0.05  # type: ignore[arg-type]


def failed_before_the_cancelled_one_was_reported(events: list[Event]) -> list[int]:
    """The steps at whose end all that a member's attempts had reported were failures, and one had not reported."""
    outcomes: dict[str, dict[str, str]] = {}
    steps = []
    for event in events:
        if event.name == "episode.begin":
            outcomes.setdefault(event.data["id"].rpartition(".")[0], {})[event.data["id"]] = "none yet"
        elif event.name == "trajectory.end":
            outcomes[event.data["id"].rpartition(".")[0]][event.data["id"]] = event.data["outcome"]
        elif event.name == "phase.end" and event.data["phase"] == "eval":  # a row is written right after
            members = [list(attempts.values()) for attempts in outcomes.values()]
            failed_first = [one for one in members if one[-1] in FAILURES and set(one) - FAILURES == {"none yet"}]
            if failed_first:
                steps.append(event.data["step"])
    return steps


def test_a_requeue_run_outlives_a_failure_that_is_reported_before_the_cancelled_attempt():
    """Messages of half a second, a fifth of them lost: a cancelled episode may be reported seconds later."""
    world = World(
        token_seconds=constant(0.2),
        environment=EnvironmentModel(
            turns=lambda rng: rng.randint(1, 5), step_seconds=lognormal(0.5, 2.0), failure_rate=0.02
        ),
        train_seconds=constant(2.0),
        transport=TransportModel(lognormal(0.5, 1.0), drop_rate=0.2),
        hosts=2,
    )
    result = run(make_job(rollart(1, policy="requeue"), seed=156, steps=8), world)  # found by a search over seeds
    assert failed_before_the_cancelled_one_was_reported(result.recorder.events), "the seed no longer meets the case"
    assert len(result.rows) == 8
    assert all(-1.0 < float(row["bias/tokens"]) < 1.0 for row in result.rows[1:])  # type: ignore[arg-type]


def test_evaluations_stand_beside_the_books():
    evaluating = job({"type": "sync+"}, steps=4)
    evaluating = evaluating.model_copy(
        update={"evaluation": evaluating.evaluation.model_copy(update={"every": 2, "tasks": 3})}
    )
    result = run(evaluating, STEADY)
    rows = [row for row in result.rows if "tokens/generated" in row]
    assert [row["tokens/evaluation"] for row in rows] == [12, 0, 12, 0]
    assert [row["tokens/generated"] for row in rows] == [28, 16, 28, 16]
    assert all(row["tokens/wasted/lost"] == 0 and row["tokens/in_flight"] == 0 for row in rows)


def test_a_recorded_run_gives_the_same_numbers():
    """The accountant knows nothing but events: played again, they give the rows again."""
    result = run(job({"type": "rollart", "alpha": 1, "policy": "requeue"}, steps=6), HEAVY)
    again, rows = Accountant(), []
    for event in result.recorder.events:
        again(Event(event.time, event.name, event.data))
        if event.name == "phase.end" and event.data["phase"] == "eval":  # a row is written right after
            rows.append(again.sample(event.time))
    recorded = [key for key in rows[-1] if key.startswith(("queue/", "bias/", "idle/", "tokens/wasted/stale"))]
    assert len(recorded) > 8
    for live, replayed in zip(result.rows, rows, strict=True):
        assert {key: live.get(key) for key in recorded} == {key: replayed.get(key) for key in recorded}


def test_what_was_being_played_when_a_driver_died_is_lost_in_the_first_row_of_its_successor():
    result = run(job({"type": "rollart", "alpha": 1}, steps=6), HEAVY)
    written = result.rows[:4]
    ends = [i for i, e in enumerate(result.recorder.events) if e.name == "phase.end" and e.data["phase"] == "eval"]
    events = result.recorder.events[: ends[3] + 1]
    resumed = Accountant()
    resumed.resume(events, written)
    assert resumed.quiet
    first = resumed.sample(events[-1].time)
    finished = {e.data["id"]: e.data["tokens"] for e in events if e.name == "trajectory.end"}
    for event in events:
        if event.name == "attempt.end":
            finished.pop(event.data["id"], None)
    assert first["tokens/in_flight"] == sum(finished.values())  # complete or nearly so: kept by the checkpoint
    assert first["tokens/wasted/lost"] == written[-1]["tokens/in_flight"] - sum(finished.values()) > 0
    assert first["tokens/generated"] == 0
    assert first["bias/duration"] == 0.0  # they will be played again


def test_a_group_that_is_filtered_is_not_in_the_queue_and_a_failure_is_no_length():
    accountant = Accountant()

    def say(time: float, name: str, **data: Any) -> None:
        accountant(Event(time, name, data))

    for group in (0, 1):
        say(0.0, "group.admit", group=group, version=0)
        say(0.0, "episode.begin", id=f"{group}.0.0", group=group, free=0, slots=2, in_line=0)
        say(4.0, "episode.end", id=f"{group}.0.0", group=group, free=1, slots=2, in_line=0)
    say(2.0, "episode.begin", id="2.0.0", group=2, free=0, slots=2, in_line=0)
    say(4.0, "trajectory.end", id="2.0.0", outcome="truncated", tokens=2)  # half as long as the other
    say(4.0, "trajectory.end", id="0.0.0", outcome="finished", tokens=8)
    say(9.0, "trajectory.end", id="1.0.0", outcome="timed_out", tokens=8)
    for group in (0, 1):
        say(4.0, "group.complete", group=group, members=1)
    say(9.0, "task.end", group=1, end="filtered")
    say(9.0, "attempt.end", id="1.0.0", end="infra-failed", tokens=8)
    say(9.0, "phase.begin", phase="get_batch", step=0)
    row = accountant.sample(9.0)
    assert row["queue/length_seen"] == 1
    assert row["bias/duration"] == 0.0
    assert row["bias/tokens"] == 0.0


def test_restarts_of_workers_are_counted():
    accountant = Accountant()
    for _ in range(2):
        accountant(Event(1.0, "worker.restarted", {"worker": "engine", "seconds": 2.0, "cause": "killed"}))
    assert accountant.sample(2.0)["restarts/engine"] == 2
