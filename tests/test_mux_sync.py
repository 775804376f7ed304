"""Weight sync by scatter and broadcast, against what RollMux measured."""

from __future__ import annotations

import pytest

from rollweave.mux.model.profile import ProfileError
from rollweave.mux.model.sync import flat_seconds, plan_sync, sync_seconds


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
