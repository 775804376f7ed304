"""What must hold of every run on the virtual clock, judged from outside.

Each oracle takes a job and what is left of its run, and compares what was trained and what was booked with what the
modelled machinery witnessed. None of them asks the scheduler for its own opinion, but to see that it agrees.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from math import ceil, floor
from typing import Any

from tests.world.witness import Witness
from tests.world.world import SimulatedRun, World

from rollweave.config.control import RollArtPipeline
from rollweave.config.job import Job
from rollweave.observability.events import MemoryRecorder, surviving
from rollweave.seeds import generator
from rollweave.trajectory import Group, Outcome, Trajectory
from rollweave.versions import Version


def trained(run: SimulatedRun) -> Iterator[Trajectory]:
    for batch in run.trainer.batches:
        yield from batch.trajectories()


def data(run: SimulatedRun, name: str) -> list[dict[str, Any]]:
    return [event.data for event in run.recorder.named(name)]


def check_everything(job: Job, world: World, run: SimulatedRun) -> None:
    batches_are_whole(job, run)
    trained_tokens_are_the_sampled_ones(job, run)
    staleness_is_bounded(job, run)
    no_task_is_forgotten(job, run)
    admission_follows_the_rule(job, run)
    tasks_end_once(run)
    attempts_end_once(run)
    rewards_come_once(job, run)
    tokens_are_booked(job, world, run)
    waste_is_reported(run)
    failures_are_no_rewards(job, world, run)
    weights_change_when_all_have_them(run)
    policy_is_kept(job, run)


# ------------------------------------------------------------------------------------------------ what is trained


def batches_are_whole(job: Job, run: SimulatedRun) -> None:
    """Every step trains N groups of one task each, nothing twice."""
    batches = run.trainer.batches
    assert [batch.step for batch in batches] == list(range(job.training.steps))
    groups = [group for batch in batches for group in batch.groups]
    assert all(len(batch.groups) == job.rollout.groups_per_step for batch in batches)
    assert len({group.id for group in groups}) == len(groups), "a group was trained twice"
    assert len({group.task.id for group in groups}) == len(groups), "a task was trained twice"
    for group in groups:
        assert min(2, job.rollout.group_size) <= len(group.members) <= job.rollout.group_size
        assert len({member.member for member in group.members}) == len(group.members)
        assert all(member.task == group.task for member in group.members)


def trained_tokens_are_the_sampled_ones(job: Job, run: SimulatedRun) -> None:
    """Id for id what an engine answered, to the context it was given, under the version it had."""
    for trajectory in trained(run):
        context: list[int] = []
        for number, turn in enumerate(trajectory.turns, start=1):
            context += turn.observation.tokens.tolist()
            answered = run.witness.answered[f"{trajectory.id}#{number}"]
            answer = [token for span in turn.answer for token in span.tokens.tolist()]
            assert answered.context == tuple(context)
            assert answered.tokens == tuple(answer)
            assert answered.versions == tuple(span.version for span in turn.answer for _ in span.tokens)
            context += answer
            _marked_as_drawn(job, [span.version for span in turn.answer], [span.kv_version for span in turn.answer])
        assert all(span.problem() is None for span in trajectory.spans())
    assert not run.witness.answered_twice


def _marked_as_drawn(job: Job, versions: list[int | None], caches: list[int | None]) -> None:
    if job.pipeline.in_flight == "restart_turn":
        assert len(set(versions)) == 1, "an answer survived an update"
    if job.pipeline.in_flight != "keep":
        assert set(caches) == {None}, "an old cache was used"
    for version, cache in zip(versions, caches, strict=True):
        assert version is not None and (cache is None or cache < version)


# --------------------------------------------------------------------------------------------- staleness, admission


def oldest_tokens(run: SimulatedRun) -> dict[str, int]:
    """Lease -> the version of its oldest token, by the witness."""
    oldest: dict[str, int] = {}
    for request, answered in run.witness.answered.items():
        lease = request.split("#")[0]
        numbers = [Version(version).number for version in set(answered.versions)]
        oldest[lease] = min([*numbers, oldest.get(lease, 10**9)])
    return oldest


def ages(run: SimulatedRun) -> list[list[int]]:
    """Of the groups of each batch: steps since the version of their oldest token."""
    oldest = oldest_tokens(run)

    def age(step: int, group: Group) -> int:
        return step - min(oldest[member.id] for member in group.members)

    return [[age(batch.step, group) for group in batch.groups] for batch in run.trainer.batches]


def staleness_is_bounded(job: Job, run: SimulatedRun) -> None:
    if job.pipeline.type == "areal":
        return  # looks at age only at the start
    whole = floor(job.pipeline.alpha)
    late = (job.pipeline.alpha - whole) * job.rollout.groups_per_step
    for batch in ages(run):
        over = [age for age in batch if age > whole]
        assert all(age == whole + 1 for age in over) and len(over) <= late, (
            f"{batch} exceeds alpha {job.pipeline.alpha}"
        )


def no_task_is_forgotten(job: Job, run: SimulatedRun) -> None:
    """Whatever is still open when the run ends could be consumed in time by a further step."""
    versions: dict[int, int] = {}
    for event in run.recorder.events:
        if event.name in ("group.admit", "group.renewed", "group.requeued"):
            versions[int(event.data["group"])] = int(event.data["version"])  # type: ignore[arg-type]
    for event in run.recorder.named("task.end"):
        del versions[int(event.data["group"])]  # type: ignore[arg-type]
    scheduler = run.loop.scheduler
    assert set(versions) == set(scheduler.buffer.groups) | set(scheduler.running), "a task was forgotten"
    oldest = oldest_tokens(run)
    for group in scheduler.buffer.groups.values():  # a turn that was begun again is younger than its group
        versions[group.id] = min(oldest[member.id] for member in group.members)
    if job.pipeline.type != "areal":
        assert all(job.training.steps - version <= ceil(job.pipeline.alpha) for version in versions.values()), versions


def admission_follows_the_rule(job: Job, run: SimulatedRun) -> None:
    """Without redundancy and filter, next_step + ahead // N - version <= alpha when a group is admitted."""
    if job.rollout.redundant_groups or job.rollout.filter != "none":
        return
    size, whole = job.rollout.groups_per_step, floor(job.pipeline.alpha)
    late = floor((job.pipeline.alpha - whole) * size + 1e-9)
    in_line: set[int] = set()
    for event in run.recorder.events:
        if event.name == "group.admit":
            steps_ahead, place = divmod(len(in_line), size)
            stale = int(event.data["next_step"]) + steps_ahead - int(event.data["version"])  # type: ignore[arg-type]
            assert stale <= whole or (stale == whole + 1 and place < late)
            in_line.add(int(event.data["group"]))  # type: ignore[arg-type]
        elif event.name == "batch.ready":
            in_line -= set(event.data["groups"])  # type: ignore[arg-type]
        elif event.name == "task.end":
            in_line.discard(int(event.data["group"]))  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------- the ledgers


def tasks_end_once(run: SimulatedRun) -> None:
    admitted = [event["group"] for event in data(run, "group.admit")]
    assert admitted == list(range(len(admitted))), "a task was skipped or admitted twice"
    ended = Counter(event["group"] for event in data(run, "task.end"))
    assert set(ended.values()) <= {1} and set(ended) <= set(admitted)
    ledger = run.loop.scheduler.ledger
    assert ledger.open_tasks == set(admitted) - set(ended)
    assert Counter(event["end"] for event in data(run, "task.end")) == {
        end.value: count for end, count in ledger.tasks.items()
    }
    consumed = {group.id for batch in run.trainer.batches for group in batch.groups}
    assert consumed == {event["group"] for event in data(run, "task.end") if event["end"] == "trained"}


def attempts_end_once(run: SimulatedRun) -> None:
    ended = Counter(event["id"] for event in data(run, "attempt.end"))
    assert set(ended.values()) <= {1}
    ledger = run.loop.scheduler.ledger
    ledger.check()
    assert not set(ended) & ledger.open_attempts
    assert len(ended) + len(ledger.open_attempts) == ledger.issued
    reported = Counter(event["id"] for event in data(run, "trajectory.end"))
    assert set(reported.values()) <= {1}, "a lease was reported twice"
    assert set(ended) <= set(reported), "an attempt ended that was not reported"
    ends = {event["group"]: event["end"] for event in data(run, "task.end")}
    for event in data(run, "trajectory.end"):
        if event["id"] not in ended:  # in a group that waits for its step
            assert event["outcome"] in ("finished", "truncated") and int(event["id"].split(".")[0]) not in ends
    played = {request.split("#")[0] for request in run.witness.answered if not request.startswith("eval")}
    assert played <= set(ended) | ledger.open_attempts, "an engine answered a lease that is in no book"
    assert {member.id for member in trained(run)} == {
        event["id"] for event in data(run, "attempt.end") if event["end"] == "trained"
    }


def rewards_come_once(job: Job, run: SimulatedRun) -> None:
    """What was to be scored was reported first, and was scored once, given up, or is open still."""
    place: dict[str, dict[str, int]] = {
        name: {} for name in ("episode.end", "reward.begin", "reward.end", "attempt.end")
    }
    failed: set[str] = set()
    for number, event in enumerate(run.recorder.events):
        if event.name in place:
            id = str(event.data["id"])
            assert id not in place[event.name], f"{event.name} of {id} came twice"
            place[event.name][id] = number
            if event.name == "reward.end" and event.data["reward"] is None:
                failed.add(id)
    begun, scored, ended = place["reward.begin"], place["reward.end"], place["attempt.end"]
    assert not begun or job.pipeline.type != "sync", "the baseline scores within the slot"
    assert set(scored) <= set(begun)
    assert all(place["episode.end"][id] < begun[id] for id in begun), "its slot was not free yet"
    assert all(begun[id] < scored[id] for id in scored)
    given_up = {id for id in begun if id in ended and id not in scored}
    open = set(begun) - set(scored) - given_up
    assert run.loop.scheduler.ledger.scoring == {id for id in open if not id.startswith("eval")}
    assert all(scored[id] < ended[id] for id in set(scored) & set(ended))
    ends = {event["id"]: event["end"] for event in data(run, "attempt.end")}
    assert failed == {id for id in failed if id.startswith("eval") or ends[id] == "reward-failed"}
    assert {ends[id] for id in given_up} <= {"surplus", "stale"}
    assert not {member.id for member in trained(run)} & (given_up | failed | open)


def tokens_are_booked(job: Job, world: World, run: SimulatedRun) -> None:
    """What engines sampled is what attempts are booked with, but for what died on the way."""
    witness = run.witness
    answered = Counter({request: len(answer.tokens) for request, answer in witness.answered.items()})
    assert +witness.sampled == answered + witness.redrawn + witness.abandoned
    if job.pipeline.in_flight != "restart_turn" and not any(outage.what == "engine" for outage in world.outages):
        assert witness.redrawn.total() == 0
    delivered: Counter[str] = Counter()
    for request, answer in witness.answered.items():
        delivered[request.split("#")[0]] += len(answer.tokens)
    vanished = {event["id"] for event in data(run, "trajectory.end") if "host died" in event["cause"]}
    for event in data(run, "attempt.end"):
        expected = 0 if event["id"] in vanished else delivered[event["id"]]
        assert event["tokens"] == expected, f"{event} but engines delivered {expected}"


def waste_is_reported(run: SimulatedRun) -> None:
    """The rows add up to the attempts that ended without being trained, until the last row was written."""
    events = run.recorder.events
    last = max(n for n, event in enumerate(events) if event.name == "step.end")
    wasted: Counter[str] = Counter()
    for event in events[:last]:
        if event.name == "attempt.end" and event.data["end"] != "trained":
            wasted[str(event.data["end"])] += int(event.data["tokens"])  # type: ignore[arg-type]
    reported: Counter[str] = Counter()
    for row in run.rows:
        for key, value in row.items():
            if key.startswith("tokens/wasted/"):
                reported[key.removeprefix("tokens/wasted/")] += int(value)  # type: ignore[arg-type]
    assert 0 <= reported.pop("lost", 0) <= _unbooked(run)
    assert +wasted == +reported


def _unbooked(run: SimulatedRun) -> int:
    """Tokens that reached no attempt: lost in an engine, too late, or gone with a host."""
    gone = {event["id"] for event in data(run, "episode.end")} - {
        event["id"] for event in data(run, "trajectory.end") if "host died" not in event["cause"]
    }
    with_hosts = sum(len(a.tokens) for request, a in run.witness.answered.items() if request.split("#")[0] in gone)
    return run.witness.redrawn.total() + run.witness.abandoned.total() + with_hosts


# ------------------------------------------------------------------------------------------------- failures, weights


def failures_are_no_rewards(job: Job, world: World, run: SimulatedRun) -> None:
    """What is trained was played to its end, and its reward is the environment's for that very answer."""
    outcomes = {event["id"]: event["outcome"] for event in data(run, "trajectory.end")}
    unscored = {event["id"] for event in data(run, "attempt.end") if event["end"] == "reward-failed"}
    for trajectory in trained(run):
        assert outcomes[trajectory.id] in ("finished", "truncated")
        assert trajectory.id not in unscored
        seed, text = trajectory.task.seed, trajectory.turns[-1].text
        turns = world.environment.turns(generator(seed, "episode"))
        assert len(trajectory.turns) == min(turns, job.rollout.max_turns)
        finished = turns <= job.rollout.max_turns
        assert trajectory.outcome is (Outcome.FINISHED if finished else Outcome.TRUNCATED)
        true = world.environment.reward(generator(seed, "task"), generator(seed, "answer", text)) if finished else 0.0
        assert trajectory.reward == true


def weights_change_when_all_have_them(run: SimulatedRun) -> None:
    """No engine that serves changes to a version before every one of them has verified it, and none skips or repeats
    one. An engine that joins serves only with the version that the others have, and nothing else is asked of it."""
    prepared: defaultdict[int, set[int]] = defaultdict(set)
    current: Counter[int] = Counter()
    serving: set[int] = set()
    for what, engine, version in run.witness.weights:
        if what == "serving":
            others = {current[other] for other in serving}
            assert not others or others == {version}, f"engine {engine} joined with {version}, the others have {others}"
            assert current[engine] == version
            serving.add(engine)
        elif what == "gone":
            serving.discard(engine)
        elif what == "prepared":
            prepared[version].add(engine)
        elif engine in serving:
            assert serving <= prepared[version], f"engine {engine} took version {version} before all had it"
            goes_back = Version(version).history > Version(current[engine]).history
            assert goes_back or version == current[engine] + 1
            current[engine] = version
        else:
            assert engine in prepared[version] and version > current[engine]
            current[engine] = version


# --------------------------------------------------------------------------------------------------------- policies


def policy_is_kept(job: Job, run: SimulatedRun) -> None:
    pipeline = job.pipeline
    policy = pipeline.policy if isinstance(pipeline, RollArtPipeline) else "wait"
    if policy == "wait" and not job.rollout.redundant_groups and job.rollout.filter == "none":
        waiting_wastes_nothing(job, run)
    if isinstance(pipeline, RollArtPipeline):
        no_group_is_requeued_too_often(pipeline, run)
    if policy != "drop" and not job.rollout.redundant_groups and job.rollout.filter == "none":
        assert not [event for event in data(run, "task.end") if event["end"] == "dropped-stale"]


def waiting_wastes_nothing(job: Job, run: SimulatedRun) -> None:
    """All that was admitted is trained, still open, or failed; nothing else costs a token."""
    assert {event["end"] for event in data(run, "task.end")} <= {"trained", "failed"}
    failed = {event["group"] for event in data(run, "task.end") if event["end"] == "failed"}
    for event in data(run, "attempt.end"):
        if event["end"] == "aborted":
            assert int(event["id"].split(".")[0]) in failed
        elif event["end"] == "surplus":
            assert job.rollout.redundant_members
        else:
            assert event["end"] in ("trained", "infra-failed", "reward-failed")


def no_group_is_requeued_too_often(pipeline: RollArtPipeline, run: SimulatedRun) -> None:
    times = Counter(event["group"] for event in data(run, "group.requeued"))
    limit = pipeline.max_requeues if pipeline.policy == "requeue" else 0
    assert max(times.values(), default=0) <= limit
    if pipeline.policy == "requeue":
        stale = Counter(tuple(e["id"].split(".")[:2]) for e in data(run, "attempt.end") if e["end"] == "stale")
        assert max(stale.values(), default=0) <= limit


# ----------------------------------------------------------------------------------------------------------- resume


def joined(first: SimulatedRun, cut: int, second: SimulatedRun) -> SimulatedRun:
    """The surviving history: of the first life what happened before checkpoint `cut` was written, then the second."""
    events = first.recorder.events
    end = next(n for n, e in enumerate(events) if e.name == "checkpoint.begin" and e.data["version"] == cut)
    recorder, trainer = MemoryRecorder(), copy(second.trainer)
    recorder.events = events[:end] + second.recorder.events
    trainer.batches = first.trainer.batches[:cut] + second.trainer.batches
    witness = Witness(answered=first.witness.answered | second.witness.answered)
    return replace(second, recorder=recorder, trainer=trainer, witness=witness)


def rewards_are_asked_for_again(history: SimulatedRun) -> None:
    """A reward that was not there at the cut comes in the second life, and no episode is played again for it."""
    scored = Counter(event["id"] for event in data(history, "reward.end") if not event["id"].startswith("eval"))
    assert set(scored.values()) <= {1}, "a reward came twice"
    begun = Counter(event["id"] for event in data(history, "reward.begin") if not event["id"].startswith("eval"))
    ended = {event["id"] for event in data(history, "attempt.end")}
    assert set(begun) - set(scored) - ended == history.loop.scheduler.ledger.scoring
    played = Counter(event["id"] for event in data(history, "episode.begin") if not event["id"].startswith("eval"))
    assert all(played[id] == 1 for id in begun), "an episode that was being scored was played again"


def check_resumed(job: Job, world: World, history: SimulatedRun) -> None:
    """As of a run that was never cut, but that attempts under way at the cut ended as aborted, unreported."""
    batches_are_whole(job, history)
    trained_tokens_are_the_sampled_ones(job, history)
    staleness_is_bounded(job, history)
    no_task_is_forgotten(job, history)
    tasks_end_once(history)
    rewards_are_asked_for_again(history)
    failures_are_no_rewards(job, world, history)
    ended = Counter(event["id"] for event in data(history, "attempt.end"))
    ledger = history.loop.scheduler.ledger
    assert set(ended.values()) == {1} and not set(ended) & ledger.open_attempts
    assert len(ended) + len(ledger.open_attempts) == ledger.issued
    tokens = sum(event["tokens"] for event in data(history, "attempt.end"))
    assert tokens == sum(ledger.tokens.values())


# -------------------------------------------------------------------------------------------------------- going back


def check_gone_back(job: Job, world: World, run: SimulatedRun) -> None:
    """Of a run whose trainer died: what survives is as a run that was never cut, and the books have all the rest."""
    recorder = MemoryRecorder()
    recorder.events = surviving(run.recorder.events)
    history = replace(run, recorder=recorder)
    batches_are_whole(job, history)
    trained_tokens_are_the_sampled_ones(job, history)
    staleness_is_bounded(job, history)
    no_task_is_forgotten(job, history)
    tasks_end_once(history)
    rewards_are_asked_for_again(history)
    failures_are_no_rewards(job, world, history)
    weights_change_when_all_have_them(run)
    attempts_are_all_in_the_books(run, history)
    what_was_abandoned_is_aborted(run)
    engines_go_back_before_they_are_asked(run)
    rows_have_every_token_once(run)


def attempts_are_all_in_the_books(run: SimulatedRun, history: SimulatedRun) -> None:
    """Each once, however often the run went back: as it ended in what survives, or as aborted."""
    ledger = run.loop.scheduler.ledger
    ledger.check()
    survived = {event["id"]: event for event in data(history, "attempt.end")}
    assert len(survived) == len(data(history, "attempt.end")), "an attempt ended twice"
    ever = {event["id"]: event for event in data(run, "attempt.end") if event["id"] not in ledger.open_attempts}
    ends = {id: survived[id]["end"] if id in survived else "aborted" for id in ever}
    assert len(ends) + len(ledger.open_attempts) == ledger.issued
    assert Counter(ends.values()) == {end.value: count for end, count in ledger.attempts.items() if count}
    tokens: Counter[str] = Counter()
    for id, end in ends.items():
        tokens[end] += ever[id]["tokens"]
    assert +tokens == +Counter({end.value: count for end, count in ledger.tokens.items()})
    played = {request.split("#")[0] for request in run.witness.answered if not request.startswith("eval")}
    assert played <= set(ever) | ledger.open_attempts, "an engine answered a lease that is in no book"
    assert {member.id for member in trained(run)} == {id for id, end in ends.items() if end == "trained"}


def abandoned(run: SimulatedRun, version: int) -> bool:
    """Whether the run went back behind this version."""
    name = Version(version)
    backs = data(run, "run.back")
    return any(back["history"] > name.history and back["version"] < name.number for back in backs)


def what_was_abandoned_is_aborted(run: SimulatedRun) -> None:
    """No token of an abandoned version is trained, or will be; its attempt ended as aborted."""
    scheduler = run.loop.scheduler
    tainted = {
        request.split("#")[0]
        for request, answered in run.witness.answered.items()
        if any(abandoned(run, version) for version in set(answered.versions))
    }
    waiting = [member for group in scheduler.buffer.groups.values() for member in group.members]
    waiting += [member for group in scheduler.running.values() for member in (*group.finished, *group.scoring.values())]
    assert not tainted & {member.id for member in (*trained(run), *waiting)}
    last = {event["id"]: number for number, event in enumerate(data(run, "attempt.end"))}
    ended = {id: data(run, "attempt.end")[number]["end"] for id, number in last.items()}
    backs = [event.time for event in run.recorder.named("run.back")]
    for event in run.recorder.named("attempt.end"):
        if event.data["id"] in tainted and backs and event.time > max(backs):
            assert ended[str(event.data["id"])] == "aborted", event
    for trajectory in (*trained(run), *waiting):
        assert not any(abandoned(run, span.version) for span in trajectory.spans() if span.version is not None)


def engines_go_back_before_they_are_asked(run: SimulatedRun) -> None:
    """From the moment that the run goes back until the engines have the version of the checkpoint, nothing begins."""
    waits_for: tuple[Any, Any] | None = None
    for event in run.recorder.events:
        if event.name == "run.back":
            waits_for = event.data["version"], event.data["history"]
        elif event.name == "weights.commit" and (event.data["version"], event.data["history"]) == waits_for:
            waits_for = None
        assert waits_for is None or event.name not in ("group.admit", "episode.begin", "eval.begin"), event
    assert waits_for is None


def rows_have_every_token_once(run: SimulatedRun) -> None:
    """The rows that are left say what was trained, and name what was sampled and not trained."""
    totals: Counter[str] = Counter()
    for row in run.rows:
        for key, value in row.items():
            if key.startswith("tokens/wasted/"):
                assert int(value) >= 0, row  # type: ignore[arg-type]
                totals[key.removeprefix("tokens/wasted/")] += int(value)  # type: ignore[arg-type]
    last = max(n for n, event in enumerate(run.recorder.events) if event.name == "step.end")
    ledger: Any = run.recorder.events[last].data["ledger"]
    booked = {end: count for end, count in ledger["tokens"].items() if end != "trained"}
    totals.pop("lost", None)
    assert +totals == +Counter(booked)
