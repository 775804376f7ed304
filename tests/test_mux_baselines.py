"""The baselines: Opt is the cheapest partition there is, the bound is below everything, the others do what they say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mux_worlds import plain_job, scenario
from rollweave.errors import ConfigError
from rollweave.mux.decisions.scheduler import Scheduler
from rollweave.mux.model.group import CoGroup, phases_at
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.period import meta_period
from rollweave.mux.model.state import ClusterState
from rollweave.mux.simulation.jobs import JobMix, draw_jobs
from rollweave.mux.simulation.replay import Replay
from rollweave.mux.simulation.simulate import simulate
from rollweave.mux.simulation.trace import TraceJob
from rollweave.seeds import generator
from rollweave_experiments.baselines.bound import lower_bound
from rollweave_experiments.baselines.fits import MostIdle, idle
from rollweave_experiments.baselines.gavel import best_shares
from rollweave_experiments.baselines.opt import Cells, Opt, Regroup, jobs_that_move, pack, partition
from rollweave_experiments.rollmux.reality import Drift, Migration, Reality, RealReplay, migrated_period

ROLLOUT, TRAIN = 14.80, 42.24


def some_jobs(count: int, seed: int, kind: str = "mixed") -> list[MuxJob]:
    return draw_jobs([TraceJob(0, 7200, 1)] * count, JobMix(kind), seed)


def partitions(items: list[MuxJob]) -> Iterator[list[list[MuxJob]]]:
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for parts in partitions(rest):
        yield [[first], *parts]
        for number, part in enumerate(parts):
            yield [*parts[:number], [first, *part], *parts[number + 1 :]]


def cheapest_group(jobs: list[MuxJob]) -> float:
    """Dollars per hour of one group by trying every assignment to rollout nodes; infinity if no SLO is kept."""
    if len(jobs) > 5:
        return float("inf")
    limit = min(job.slo * job.solo_s for job in jobs) if len(jobs) > 1 else float("inf")
    best = float("inf")
    for assignment in partitions(jobs):
        group = CoGroup(1, (0,))
        for node, part in enumerate(assignment):
            for job in part:
                group.add(job.id, phases_at(job.profile, 1), (node,))
        if meta_period(group) <= limit * (1 + 1e-9):
            best = min(best, TRAIN + ROLLOUT * len(assignment))
    return best


@pytest.mark.parametrize("seed", range(6))
def test_opt_is_the_cheapest_partition(seed: int) -> None:
    """Against all partitions of six jobs, each with all ways to share rollout nodes."""
    jobs = some_jobs(6, seed, ["mixed", "bl", "rh"][seed % 3])
    prices = {}
    best = float("inf")
    for parts in partitions(jobs):
        names = [tuple(job.id for job in part) for part in parts]
        for name, part in zip(names, parts, strict=True):
            prices.setdefault(name, cheapest_group(part))
        best = min(best, sum(prices[name] for name in names))
    cells = Cells(5)
    cells.keep_only(jobs)
    found = partition(cells, ClusterState())
    assert sorted(job for part in found for job in part) == sorted(job.id for job in jobs)
    assert sum(TRAIN + ROLLOUT * cells.known[part].bins for part in found) == pytest.approx(best)


def test_opt_keeps_every_slo_and_costs_no_more_than_rollmux() -> None:
    small = scenario(25)
    opt, rollmux = simulate(small, "opt", 0), simulate(small, "rollmux", 0)
    assert opt.slo_attainment == 1.0
    assert opt.ledger.dollars < rollmux.ledger.dollars
    assert opt.moves == 0  # regrouping is free for it


def test_opt_refuses_what_it_cannot_know() -> None:
    with pytest.raises(ConfigError, match="only jobs of one node"):
        Replay(Opt()).run([(0.0, plain_job("a", 60, 40, n_train=2))])


def test_cells_follow_arrivals_and_departures() -> None:
    jobs = some_jobs(9, 1)
    grown = Cells(5)
    for job in jobs:
        grown.add(job)
    grown.keep_only(jobs[3:])
    fresh = Cells(5)
    fresh.keep_only(jobs[3:])
    assert grown.known == fresh.known and len(fresh.known) > 6


def test_packing_is_exact() -> None:
    assert len(pack([6, 5, 5, 4], 10)) == 2
    assert len(pack([6, 6, 6], 10)) == 3
    assert len(pack([4, 3, 3, 3, 3, 2, 2], 10)) == 2
    draw = generator(0, "pack")
    for _ in range(200):
        rolls = [draw.uniform(1, 9) for _ in range(5)]
        bins = pack(rolls, 10)
        assert sorted(item for items in bins for item in items) == list(range(5))
        assert all(sum(rolls[item] for item in items) <= 10 for items in bins)


@pytest.mark.parametrize("kind", ["mixed", "rh"])
def test_the_bound_is_below_every_policy(kind: str) -> None:
    small = scenario(25, kind=kind)
    jobs = draw_jobs(small.trace, small.workload, 0)
    bound = lower_bound([(line.submit_s, job) for line, job in zip(small.trace, jobs, strict=True)])
    costs = {policy: simulate(small, policy, 0).ledger.dollars for policy in ("opt", "default", "rollmux", "gavel+")}
    assert 0.4 * costs["opt"] < bound < min(costs.values())


def test_the_bound_is_exact_for_jobs_that_fill_their_nodes() -> None:
    """Two jobs, each training while the other rolls out, all the time: one pair of nodes, no idle second."""
    jobs = [(0.0, plain_job(name, 100, 100, slo=1.0, n_iters=180)) for name in "ab"]
    assert lower_bound(jobs) == pytest.approx((ROLLOUT + TRAIN) * 10)


def test_solo_and_colocated_differ_by_the_rollout_nodes() -> None:
    small = scenario(30)
    solo, colocated = (simulate(small, policy, 0) for policy in ("solo-d", "colocated"))
    assert colocated.ledger.dollars / solo.ledger.dollars == pytest.approx(TRAIN / (TRAIN + ROLLOUT), rel=1e-6)
    assert colocated.ledger.peak_gpus * 2 == solo.ledger.peak_gpus
    assert colocated.slo_attainment == solo.slo_attainment == 1.0


def test_gavel_finds_the_cheapest_shares() -> None:
    job = plain_job("a", 450, 75, slo=10.0)
    shares = best_shares(job, ClusterState())
    assert shares.rollout == 1 and shares.train == pytest.approx(0.2417, rel=1e-3)

    def dollars(train: float) -> float:
        return (ROLLOUT + TRAIN * train) * (450 + 75 / train)

    assert dollars(shares.train) < min(dollars(shares.train * 1.05), dollars(shares.train * 0.95))
    tight = best_shares(plain_job("a", 450, 75, slo=1.1), ClusterState())
    assert 450 + 75 / tight.train == pytest.approx(1.1 * 525)


def test_random_and_most_idle_pack_without_asking() -> None:
    small = scenario(60)
    for policy in ("random", "most-idle"):
        outcome = simulate(small, policy, 0)
        assert outcome.slo_attainment < 0.9 and outcome.admissions["scaling"] == 0
    group = CoGroup(1, (0,))
    group.add("a", phases_at(plain_job("a", 60, 40).profile, 1), (0,))
    assert idle(group) == pytest.approx(0.5)


def test_most_idle_takes_the_group_with_more_room() -> None:
    jobs = [(0.0, plain_job("full", 100, 1)), (0.0, plain_job("b", 10, 10)), (0.0, plain_job("c", 10, 10))]
    decisions = Replay(MostIdle()).run(jobs).decisions
    assert [decision.steps[0].split(":")[0] for decision in decisions[:3]] == ["open full", "place b", "place c"]


def test_regroup_pays_for_its_moves() -> None:
    """Two pairs lose a partner each; at the next full hour the two that are left are put together."""
    short = {"n_iters": 5}
    jobs = [
        (0.0, plain_job("a", 100, 100, slo=1.2, n_iters=80, move_s=200.0)),
        (0.0, plain_job("b", 95, 95, slo=1.2, **short)),  # type: ignore[arg-type]
        (10.0, plain_job("c", 100, 100, slo=1.2, n_iters=80, move_s=200.0)),
        (10.0, plain_job("d", 95, 95, slo=1.2, **short)),  # type: ignore[arg-type]
    ]
    outcome = Replay(Regroup()).run(jobs)
    assert outcome.moves == 1 and outcome.paused_s == 200.0
    moves = [decision for decision in outcome.decisions if decision.event == "tick"]
    assert [decision.at_s for decision in moves] == [3600.0]


def test_who_moves_is_who_leaves_the_larger_part() -> None:
    home = {"a": 1, "b": 1, "c": 2, "d": 3}
    assert jobs_that_move([frozenset("abc"), frozenset("d")], home) == ["c"]
    assert jobs_that_move([frozenset("ab"), frozenset("c"), frozenset("d")], home) == []
    assert jobs_that_move([frozenset("ac"), frozenset("bd")], home) in (
        ["a", "b"],
        ["b", "c"],
        ["c", "d"],
        ["a", "d"],
        ["b", "d"],
    )


def test_migration_frees_the_node_and_not_the_job() -> None:
    migration = Migration()
    assert 0.4 < migration.busy_share < 0.5
    assert migration.occupancy(156) == pytest.approx(93, abs=1)
    pair = CoGroup(1, (0,))
    for name in "ab":
        pair.add(name, phases_at(plain_job(name, 156, 102).profile, 1), (0,))
    assert meta_period(pair) == 312
    assert migrated_period(pair, migration) == pytest.approx(258 + migration.move_s)


def test_drift_changes_the_pace_as_the_job_goes_on() -> None:
    reality = Reality(drifts={"a": Drift(end=2.0)}, every_s=100.0)
    job = plain_job("a", 60, 40, slo=3.0, n_iters=180)
    outcome = RealReplay(Scheduler(), reality=reality).run([(0.0, job)])
    # Ninety iterations from 100 s to 200 s (d n = dt / (100 (1 + n / 90))), then ninety of 200 s.
    assert outcome.ended[0].finished_s == pytest.approx(90 * 150 + 90 * 200, rel=0.02)
