"""The life of jobs in the daemon, without processes: every transition, and that it is on the disk before it is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mux_daemon_stage import Theatre
from rollweave.mux.daemon.admission import NeverFits
from rollweave.mux.daemon.controller import KILLS, LEASE_SECONDS, Refused, UnknownJob
from rollweave.mux.daemon.store import Store, StoreError
from rollweave.mux.permits import StalePermit


@pytest.fixture
def theatre(tmp_path: Path) -> Theatre:
    return Theatre(tmp_path)


def test_a_job_from_submission_to_its_end(theatre: Theatre) -> None:
    job = theatre.submit("a", steps=1)
    controller = theatre.controller
    assert [record.id for record in controller.to_start()] == [job]
    theatre.profile(job, 3.0, 2.0)
    assert controller.get(job).state == "running" and controller.get(job).process is None
    theatre.launch(job)
    assert theatre.ask(job, "start").visit
    theatre.time += 4.0
    assert theatre.ask(job, "rollout").nodes == ("rollout-0",)
    theatre.time += 2.5
    assert theatre.ask(job, "train").nodes == ("train-0",)
    theatre.time += 1.5
    controller.exited(job, "finished", steps=1)
    record = controller.get(job)
    assert (record.state, record.progress.step) == ("finished", 1)
    assert record.progress.worked.t_roll == pytest.approx(2.5)
    assert record.cold_seconds == pytest.approx(4.0)
    assert controller.permit_table.holder("train-0") is None
    assert not controller.to_start() and not controller.to_end()


def test_two_jobs_alternate(theatre: Theatre) -> None:
    a, b = theatre.running("a"), theatre.running("b")
    assert theatre.ask(a, "rollout") is not None
    assert theatre.ask(b, "rollout", ticket="b1") is None
    assert theatre.ask(a, "train") is not None
    assert theatre.ask(b, "rollout", ticket="b1") is not None
    assert theatre.ask(b, "train", ticket="b2") is None
    assert theatre.ask(a, "rollout", step=1) is not None
    assert theatre.ask(b, "train", ticket="b2") is not None
    assert theatre.controller.get(a).progress.step == 1


def test_the_last_iteration_of_a_job_is_known(theatre: Theatre) -> None:
    job = theatre.running("a")  # five steps
    for step, leaving in ((3, False), (4, True)):
        theatre.ask(job, "rollout", step=step)
        theatre.ask(job, "train", step=step)
        assert theatre.controller.permit_table.tenants[job].leaving == leaving


def test_iterations_are_counted_with_their_waiting(theatre: Theatre) -> None:
    job = theatre.running("a")
    for step in range(3):
        theatre.ask(job, "rollout", step=step)
        theatre.time += 3.0
        theatre.ask(job, "train", step=step)
        theatre.time += 4.0
    theatre.ask(job, "rollout", step=3)
    progress = theatre.controller.get(job).progress
    assert (progress.iterations, progress.seconds, progress.step) == (3, 21.0, 3)


def test_the_death_of_a_holder_frees_its_node_and_the_job_comes_back(theatre: Theatre) -> None:
    a, b = theatre.running("a"), theatre.running("b")
    theatre.ask(a, "rollout")
    theatre.ask(b, "rollout", ticket="b1")
    theatre.controller.exited(a, "killed", "Killed")
    assert theatre.controller.permit_table.holder("rollout-0") == b
    assert [record.id for record in theatre.controller.to_start()] == [a]
    theatre.launch(a)
    assert theatre.ask(a, "start") is not None
    assert theatre.controller.get(a).life == 3


def test_a_job_that_is_killed_again_and_again_fails_and_progress_forgives(theatre: Theatre) -> None:
    job = theatre.running("a")
    for _ in range(KILLS - 1):
        theatre.controller.exited(job, "killed")
        theatre.launch(job)
    theatre.ask(job, "start")
    theatre.ask(job, "rollout")
    theatre.ask(job, "train")
    theatre.ask(job, "rollout", step=1)
    for _ in range(KILLS):
        theatre.controller.exited(job, "killed")
        theatre.launch(job)
    theatre.controller.exited(job, "killed", "Killed by the kernel")
    record = theatre.controller.get(job)
    assert record.state == "failed" and "Killed by the kernel" in record.error
    assert theatre.controller.resubmit(job).state == "running"


def test_its_own_failure_is_not_repeated(theatre: Theatre) -> None:
    job = theatre.running("a")
    theatre.controller.exited(job, "failed", "the environment raised")
    assert theatre.controller.get(job).state == "failed"
    assert not theatre.controller.to_start()


def test_a_cancelled_job_keeps_its_node_until_its_process_is_gone(theatre: Theatre) -> None:
    a, b = theatre.running("a"), theatre.running("b")
    theatre.ask(a, "rollout")
    theatre.ask(b, "rollout", ticket="b1")
    theatre.controller.cancel(a)
    assert theatre.controller.permit_table.holder("rollout-0") == a
    assert [record.id for record in theatre.controller.to_end()] == [a]
    with pytest.raises(StalePermit, match="cancelled"):
        theatre.ask(a, "train")
    with pytest.raises(Refused, match="has not ended yet"):
        theatre.controller.resubmit(a)
    theatre.controller.exited(a, "killed")
    assert theatre.controller.permit_table.holder("rollout-0") == b
    assert theatre.controller.get(a).state == "cancelled"
    with pytest.raises(Refused, match="nothing to cancel"):
        theatre.controller.cancel(a)


def test_a_process_that_was_replaced_has_no_say(theatre: Theatre) -> None:
    job = theatre.running("a")
    old = theatre.controller.get(job).life
    theatre.controller.exited(job, "killed")
    with pytest.raises(StalePermit, match=f"process number {old} .* process number {old + 1}"):
        theatre.ask(job, "rollout")  # a question that was still open when its process died
    theatre.launch(job)
    with pytest.raises(StalePermit, match=f"process number {old} .* no say"):
        theatre.ask(job, "rollout", life=old)


def test_nobody_waits_for_a_start_longer_than_a_phase(theatre: Theatre) -> None:
    a = theatre.running("a", t_roll=3.0, t_train=2.0)
    theatre.ask(a, "rollout")
    b = theatre.submit("b")
    theatre.profile(b)
    theatre.launch(b)
    assert theatre.ask(b, "start").nodes == ("train-0",)
    assert theatre.ask(a, "train", ticket="at") is None
    theatre.time += 2.9
    assert not theatre.controller.tick()
    theatre.time += 0.2
    assert theatre.controller.tick() and theatre.controller.permit_table.permits[a].ticket == "at"
    assert theatre.on_disk() == theatre.in_memory()


def test_a_permit_is_a_lease(theatre: Theatre) -> None:
    job = theatre.running("a")
    theatre.ask(job, "rollout")
    theatre.time += LEASE_SECONDS - 1
    assert not theatre.controller.to_end()
    theatre.time += 2
    assert [record.id for record in theatre.controller.to_end()] == [job]


def test_a_daemon_that_was_away_blames_no_job_for_it(theatre: Theatre) -> None:
    """A job keeps its permit while no daemon runs: it does not hang, and its phase did not take that long."""
    job = theatre.running("a")
    theatre.ask(job, "rollout")
    theatre.time += 3.0
    theatre.ask(job, "train")
    theatre.time += 3.0 + 10 * LEASE_SECONDS
    controller = theatre.open()
    assert not controller.to_end()
    theatre.ask(job, "rollout", step=1)
    record = controller.get(job)
    assert (record.progress.step, record.progress.worked.t_train) == (1, 0.0)
    assert controller.admission.state.jobs[job].seen == ()
    theatre.time += LEASE_SECONDS + 1
    assert [late.id for late in controller.to_end()] == [job]


def test_only_the_load_of_a_profiled_job_counts_as_its_cold_start(theatre: Theatre) -> None:
    job = theatre.submit("a")
    theatre.launch(job)
    for wanted, step, seconds in (("start", 0, 2.0), ("rollout", 0, 5.0), ("train", 0, 7.0), ("rollout", 1, 5.0)):
        theatre.ask(job, wanted, step=step)
        theatre.time += seconds
    theatre.ask(job, "train", step=1)
    assert theatre.controller.get(job).cold_seconds == 2.0


def test_a_job_that_fits_no_more_does_not_wait_for_ever(tmp_path: Path) -> None:
    theatre = Theatre(tmp_path, rollout_nodes=2)
    jobs = [theatre.submit(name, n_roll=2, slo=1.0) for name in ("first", "second", "third")]
    for job in jobs:
        theatre.profile(job)
    theatre.controller.cancel(jobs[0])
    theatre.controller.cancel(jobs[1])
    theatre.controller.stopped(jobs[2])
    theatre.rollout_nodes = 1
    theatre.open().place_waiting()
    with pytest.raises(NeverFits, match="asks for 2 rollout and 1 train nodes"):
        theatre.controller.resubmit(jobs[0])
    assert theatre.controller.get(jobs[2]).state == "failed"
    assert "asks for 2 rollout and 1 train nodes" in theatre.controller.get(jobs[2]).error


def test_who_would_break_a_promise_waits_and_is_told_why(theatre: Theatre) -> None:
    tight = theatre.running("tight", slo=1.2)
    other = theatre.submit("other", slo=1.2)
    theatre.profile(other, 3.0, 3.0)
    late = theatre.submit("late", slo=2.0)
    theatre.profile(late, 3.0, 3.0)
    record = theatre.controller.get(late)
    assert record.state == "waiting"
    assert any("SLO of job" in line for line in record.why), record.why
    theatre.controller.exited(tight, "finished")
    theatre.controller.cancel(other)
    theatre.controller.place_waiting()
    assert theatre.controller.get(late).state == "running"


def test_a_job_that_drifted_out_of_its_place_is_placed_anew(tmp_path: Path) -> None:
    """The paper's rule: a job whose real times saturate its group is stopped and arrives again with them."""
    theatre = Theatre(tmp_path, policy="rollmux")
    a, b = (
        theatre.running("a", t_roll=3.0, t_train=3.0, slo=1.2),
        theatre.running("b", t_roll=2.0, t_train=2.0, slo=2.0),
    )
    assert theatre.controller.get(b).state == "running"
    for step in range(1, 6):
        for wanted, seconds in (("rollout", 4.5), ("train", 2.0)):
            theatre.ask(b, wanted, step=step - 1)
            theatre.time += seconds
        theatre.ask(b, "rollout", step=step)
    record = theatre.controller.get(b)
    assert record.profile is not None and record.profile.t_roll == pytest.approx(4.5)
    assert record.state == "waiting" and any("group 1" in line for line in record.why)
    assert [job.id for job in theatre.controller.to_end()] == [b]
    with pytest.raises(StalePermit, match="waiting"):
        theatre.ask(b, "train")
    theatre.controller.exited(b, "failed", "told to end")
    assert theatre.controller.get(b).state == "waiting" and not theatre.controller.to_end()
    theatre.controller.exited(a, "finished", steps=5)
    assert theatre.controller.get(b).state == "running"


def test_a_job_that_can_never_fit_is_refused(theatre: Theatre) -> None:
    with pytest.raises(NeverFits, match="asks for 2 rollout and 1 train nodes, but this daemon has 1 and 1"):
        theatre.submit("wide", n_roll=2)
    assert theatre.controller.jobs == {}
    large = theatre.submit("large")
    theatre.launch(large)
    from rollweave.mux.daemon.records import PhaseTimes

    theatre.controller.profiled(large, 1, PhaseTimes(1.0, 1.0), memory_gb=40.0)
    theatre.controller.exited(large, "finished")
    assert theatre.controller.get(large).state == "failed"
    assert "40.0 GB" in theatre.controller.get(large).error


def test_an_unknown_job_is_named_with_the_known_ones(theatre: Theatre) -> None:
    theatre.submit("a")
    with pytest.raises(UnknownJob, match=r"no job 'b' \(known: a-1\)"):
        theatre.controller.cancel("b")


def test_names_are_never_given_twice(theatre: Theatre) -> None:
    assert [theatre.submit("a"), theatre.submit("a")] == ["a-1", "a-2"]
    theatre.open()
    assert theatre.submit("a") == "a-3"


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7)), min_size=5, max_size=40))
def test_whatever_happens_the_disk_knows(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[int, int]]
) -> None:
    """After every transition a daemon that starts anew knows all of it, and goes on as this one would."""
    theatre = Theatre(tmp_path_factory.mktemp("state"))
    for number in range(3):
        theatre.submit("abc"[number])
    for who, what in moves:
        job = list(theatre.controller.jobs)[who]
        theatre.time += 1.0
        _do(theatre, job, what)
        assert theatre.on_disk() == theatre.in_memory()
        if what == 7:
            before = theatre.in_memory()
            theatre.open()
            assert theatre.in_memory() == before


def _do(theatre: Theatre, job: str, what: int) -> None:
    """One step of a job's life, if it makes sense for it now."""
    record, controller = theatre.controller.get(job), theatre.controller
    if record.over and what == 0 and record.state != "finished" and record.process is None:
        controller.resubmit(job)
    elif record.over:
        if record.process is not None:
            controller.exited(job, "killed")
    elif record.process is None and record.state != "waiting":
        theatre.launch(job)
    elif record.state == "profiling":
        from rollweave.mux.daemon.records import PhaseTimes

        controller.profiled(job, record.life, PhaseTimes(2.0 + what, 3.0), 1.0)
        controller.exited(job, "finished")
    elif record.state == "running":
        _run(theatre, job, what)
    used = [n for p in controller.permit_table.permits.values() if p.alone_for is None for n in p.nodes]
    assert len(used) == len(set(used))  # a start may share its node once it has taken long


def _run(theatre: Theatre, job: str, what: int) -> None:
    controller = theatre.controller
    held, waiting = controller.permit_table.permits.get(job), controller.permit_table.requests.get(job)
    if what == 5:
        controller.exited(job, "killed")
    elif what == 6:
        controller.cancel(job)
    elif waiting is not None:
        wanted = "start" if waiting.visit else waiting.pool
        theatre.ask(job, wanted, ticket=waiting.ticket)
    elif held is None:
        theatre.ask(job, "start")
    else:
        theatre.ask(job, "train" if held.pool == "rollout" and not held.visit else "rollout", step=1)


def test_a_damaged_state_says_so(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_text("not a database, but long enough to be read as one" * 50)
    with pytest.raises(StoreError, match=r"state\.db: cannot be used"):
        Store(tmp_path / "state.db")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda facts: facts["groups"][1]["pins"].update({"a-1": [0, 0]}), "2: job a-1 asked for 1 rollout nodes"),
        (lambda facts: facts["rollout"].update(used=2), "7: groups hold 1 nodes, the pool counts 2"),
        (lambda facts: facts["home"].pop("b-2"), "1: job b-2 is in group 1, but the state does not know it there"),
        (lambda facts: facts["home"].update({"a-1": "nowhere"}), "home.a-1"),
        (lambda facts: facts["jobs"]["a-1"].update(slo=0.5), "slo=0.5 must be at least 1"),
        (lambda facts: facts.update(home={}, jobs={}, groups={}), "a-1, b-2 run, but those with a place are: none"),
    ],
)
def test_a_placement_that_contradicts_itself_is_not_gone_on_with(
    theatre: Theatre, damage: Callable[[dict[str, Any]], object], words: str
) -> None:
    for name in "ab":
        theatre.running(name)
    facts = theatre.controller.facts()["scheduler"]
    damage(facts)
    theatre.store.save([], {"scheduler": facts})
    with pytest.raises(StoreError) as refused:
        theatre.open()
    assert words in str(refused.value)
    assert str(theatre.store.path) in str(refused.value)


def test_a_job_that_runs_without_a_place_is_not_gone_on_with(theatre: Theatre) -> None:
    job = theatre.submit("a")
    record = theatre.controller.get(job)
    record.state = "running"
    theatre.store.save([record], theatre.controller.facts())
    with pytest.raises(StoreError, match=r"a-1 run, but those with a place are: none"):
        theatre.open()


def test_a_killed_transaction_leaves_nothing(tmp_path: Path) -> None:
    theatre = Theatre(tmp_path)
    theatre.submit("a")
    before = theatre.on_disk()
    database = theatre.store._db
    database.execute("BEGIN IMMEDIATE")
    database.execute("DELETE FROM jobs")
    database.close()  # as if the process had died here
    assert theatre.on_disk() == before
