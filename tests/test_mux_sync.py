"""Long-tail migration and weight sync as models, against what the papers measured."""

from __future__ import annotations

import pytest

from rollweave.mux.profile import ProfileError
from rollweave.mux.sync import flat_seconds, plan_sync, sync_seconds
from rollweave.mux.tail import pair_period, split

LONG_TAIL = [1000.0] * 80 + [1000.0 + 350 * number for number in range(1, 21)]
"""100 responses; the last of the 80 % after 1,000 tokens, the longest 8,000."""


def test_the_next_rollout_starts_when_the_tail_is_left_and_training_waits_for_all() -> None:
    cut = split(LONG_TAIL, 0.02, gpus=8)
    assert cut is not None
    assert (cut.handover_s, cut.end_s, cut.tail_gpus) == (23, 163, 2)
    # 140 s on 6 of 8 GPUs do 105 s of the next job's work, the rest runs on all of them.
    assert cut.next_end(156) == pytest.approx(163 + 51)
    assert cut.next_end(60) == pytest.approx(23 + 80)
    assert cut.occupied_s == pytest.approx(23 + 140 / 4)


def test_without_a_tail_nothing_moves() -> None:
    assert split([8000.0] * 100, 0.02, gpus=8) is None
    assert split(LONG_TAIL, 0.02, gpus=2, tensor_parallel=2) is None
    assert split([], 0.02, gpus=8) is None


def test_a_tail_stays_on_whole_tensor_parallel_groups() -> None:
    cut = split(LONG_TAIL, 0.02, gpus=8, tensor_parallel=4)
    assert cut is not None and cut.tail_gpus == 4


def test_two_rollout_bound_jobs_gain_what_their_tails_free() -> None:
    cut = split(LONG_TAIL, 0.02, gpus=8)
    assert cut is not None
    assert pair_period(cut, cut, (10, 10)) == pytest.approx(cut.end_s + 10)
    assert pair_period(cut, cut, (102, 102)) == pytest.approx(max(cut.end_s + 102, 204))


@pytest.mark.parametrize(("billions", "flat", "scattered"), [(7.6, 7.5, 0.9), (14.8, 13.8, 1.7), (32.8, 30.7, 3.9)])
def test_sync_of_8_to_8_gpus_takes_what_rollmux_measured(billions: float, flat: float, scattered: float) -> None:
    size = int(billions * 2e9)
    assert flat_seconds(size, 8, 8) == pytest.approx(flat, rel=0.06)
    assert sync_seconds(plan_sync(size, 8, 8)) == pytest.approx(scattered, rel=0.08)


@pytest.mark.parametrize(("train", "rollout"), [(8, 8), (4, 8), (16, 8), (3, 5), (1, 1)])
def test_every_byte_crosses_once_and_reaches_every_rollout_gpu(train: int, rollout: int) -> None:
    size = 1003
    plan = plan_sync(size, train, rollout)
    assert plan.crossing == size
    held: dict[int, set[int]] = {gpu: set() for gpu in range(rollout)}
    for piece in plan.scatter:
        assert piece.source < train
        held[piece.target] |= set(range(piece.start, piece.stop))
    for piece in plan.broadcast:
        assert set(range(piece.start, piece.stop)) <= held[piece.source] or piece.source == piece.target
    for piece in plan.broadcast:
        held[piece.target] |= set(range(piece.start, piece.stop))
    assert all(bytes_held == set(range(size)) for bytes_held in held.values())


def test_a_sync_without_gpus_is_refused() -> None:
    with pytest.raises(ProfileError, match="rollout_gpus=0"):
        plan_sync(100, 8, 0)
