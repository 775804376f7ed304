"""Sharded training in real processes over gloo: the update of one process, one checkpoint format, deaths noticed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import sharded_jobs as jobs
from rank_processes import RankProcesses, rank_processes
from rollweave.errors import PeerLost, RanksDisagree, RunFolderError
from rollweave.training.packing import rows_of, share_out
from rollweave.training.ranks import ALONE
from training_data import batch, tiny_policy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "tiny")


@pytest.fixture(scope="module")
def pair() -> Iterator[RankProcesses]:
    with rank_processes(2) as ranks:
        yield ranks


def gap(one: jobs.Weights, other: jobs.Weights) -> float:
    assert one.keys() == other.keys() and one
    return max(float((one[name] - other[name]).abs().max()) for name in one)


# ----------------------------------------------------------------------------------------------- the update


@pytest.mark.parametrize(("double", "bound"), [(True, 1e-9), (False, 1e-4)])
def test_two_ranks_make_the_update_of_one_process(
    pair: RankProcesses, folder: Path, double: bool, bound: float
) -> None:
    alone, expected = jobs.single(folder, {}, 5, double)
    (metrics, found), _ = pair.run(jobs.train, folder, {}, 5, double)
    start = jobs.weights(jobs.made(ALONE, folder, {}, double))
    assert gap(found, expected) < bound < gap(expected, start) / 10, "and it is an update"
    for ours, theirs in zip(metrics, alone, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


GAE = {"type": "gae", "normalise": "none"}
KINDS: dict[str, dict[str, Any]] = {
    "mini-batches": {"minibatches": 2, "loss": {"type": "decoupled_ppo"}},
    "a value head": {"advantage": GAE},
    "a reference": {"loss": {"type": "ppo", "kl_coefficient": 0.1, "entropy_coefficient": 0.01}},
    "packing": {"packing": True, "microbatch_tokens": 60},
    "recomputed activations": {"activation_checkpointing": True},
    "uneven passes": {"microbatch_tokens": 20, "loss": {"type": "gspo"}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_step_is_that_of_one_process(pair: RankProcesses, folder: Path, kind: str) -> None:
    (metrics, found), _ = pair.run(jobs.train, folder, KINDS[kind], 2, True)
    alone, expected = jobs.single(folder, KINDS[kind], 2, True)
    assert gap(found, expected) < 1e-9
    assert metrics[-1] == pytest.approx(alone[-1], rel=1e-6, abs=1e-9)


def test_a_streamed_step_of_two_ranks_is_that_of_one_process(pair: RankProcesses, folder: Path) -> None:
    (_, found), _ = pair.run(jobs.train, folder, {}, 2, True, True)
    assert gap(found, jobs.train(ALONE, folder, {}, 2, True, True)[1]) < 1e-9


def test_rows_are_divided_by_their_tokens() -> None:
    rows = rows_of(batch(groups=8))
    tokens = [sum(len(row.tokens) for row in share) for share in share_out(rows, 3)]
    assert max(tokens) - min(tokens) <= max(len(row.tokens) for row in rows)
    assert sorted(map(id, rows)) == sorted(id(row) for share in share_out(rows, 3) for row in share)
    assert [len(share) for share in share_out(rows[:1], 2)] == [1, 0]


# ------------------------------------------------------------------------------------------------ weights


def test_a_published_version_has_the_bytes_of_one_process(pair: RankProcesses, folder: Path) -> None:
    expected = jobs.publish(ALONE, folder, {})
    found, _ = pair.run(jobs.publish, folder, {})
    assert (found.checksum, found.buckets) == (expected.checksum, expected.buckets)
    assert found.probe == pytest.approx(expected.probe, abs=1e-5)


# ---------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("config", [{}, {"advantage": GAE}], ids=["plain", "with a value head"])
def test_a_checkpoint_of_two_ranks_is_continued_by_one_and_the_other_way_round(
    pair: RankProcesses, folder: Path, tmp_path: Path, config: jobs.Config
) -> None:
    of_two, _ = pair.run(jobs.save, folder, config, 2, tmp_path / "two")
    of_one = jobs.save(ALONE, folder, config, 2, tmp_path / "one")
    assert gap(jobs.load(ALONE, folder, config, 2, tmp_path / "two"), of_two) < 1e-6
    assert gap(pair.run(jobs.load, folder, config, 2, tmp_path / "one")[0], of_one) < 1e-6
    assert gap(pair.run(jobs.load, folder, config, 2, tmp_path / "two")[0], of_two) == 0.0, "as many ranks: exactly"
    parts = {path.name for path in (tmp_path / "two" / "state" / "trainer").iterdir()}
    assert {"__0_0.distcp", "__1_0.distcp"} <= parts, "each rank has written its own"


def test_a_checkpoint_of_two_ranks_is_a_hugging_face_folder(pair: RankProcesses, folder: Path, tmp_path: Path) -> None:
    pair.run(jobs.save, folder, {}, 1, tmp_path / "step-1")
    jobs.save(ALONE, folder, {}, 1, tmp_path / "alone")
    model, other = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("step-1", "alone"))
    tokens = torch.arange(20)[None]
    assert torch.allclose(model(input_ids=tokens).logits, other(input_ids=tokens).logits, atol=1e-5)
    published, _ = pair.run(jobs.publish, folder, {}, tmp_path / "step-1")
    assert published.checksum == jobs.publish(ALONE, folder, {}, tmp_path / "step-1").checksum


def test_a_rank_that_cannot_write_leaves_no_checkpoint(pair: RankProcesses, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"step-1: No space left on device \(rank 1\)"):
        pair.run(jobs.unwritable, folder, tmp_path / "step-1")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------- mishaps


def test_ranks_of_different_versions_refuse_to_train(pair: RankProcesses, folder: Path) -> None:
    with pytest.raises(RanksDisagree, match=r"rank 0: step 0, version 3; rank 1: step 0, version 4"):
        pair.run(jobs.disagree, folder)


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_that_is_killed_in_mid_step_is_noticed_at_once(folder: Path, victim: int) -> None:
    with rank_processes(2) as ranks:
        ranks.send(jobs.die_in_mid_step, folder, victim, jobs.KILL)
        ranks.processes[victim].join(60)
        died = time.monotonic()
        assert isinstance(ranks.answer(1 - victim), PeerLost)
        assert time.monotonic() - died < 1.0, "measured: 0.01 s"


@pytest.mark.slow
def test_a_rank_that_stands_still_is_noticed_at_the_timeout(folder: Path) -> None:
    with rank_processes(2, seconds=4.0) as ranks:
        ranks.send(jobs.die_in_mid_step, folder, 1, jobs.STOP)
        assert isinstance(ranks.answer(0), PeerLost)
