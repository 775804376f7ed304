"""How a pass is computed (packed, with activations computed again, in bfloat16) and what that does not change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sharded_jobs as jobs
from rollweave.policies.forward import load_model, logprobs_at, pack_rows, token_states
from rollweave.runs.doctor import TORCH_PROBE, probe
from rollweave.training.packing import MicroBatch, PackedRow, micro_batches, rows_of
from rollweave.training.ranks import ALONE
from training_data import batch, tiny_policy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "tiny")


def test_lines_are_filled_and_every_row_appears_once() -> None:
    lengths = [5, 9, 2, 9, 30, 1, 4]
    assert pack_rows(lengths, 60) == [[[4], [1, 3, 0, 6, 2, 5]]]
    assert pack_rows(lengths, 30) == [[[4]], [[1, 3, 0, 6, 2, 5]]]
    assert pack_rows([], 10) == []


def with_advantages(rows: list[PackedRow]) -> list[PackedRow]:
    for row in rows:
        row.advantage = [1.0] * len(row.columns)
    return rows


@torch.no_grad()
def scored(model: object, micro: MicroBatch) -> torch.Tensor:
    states = token_states(model, micro.tokens, micro.lines, micro.columns, micro.positions)
    return logprobs_at(model, states, micro.tokens[micro.lines, micro.columns], micro.temperature)[0]


def test_a_packed_row_has_the_log_probs_of_a_row_alone(folder: Path) -> None:
    model = load_model(folder)
    rows = with_advantages(rows_of(batch(groups=4)))
    passes = micro_batches(rows, 120, packed=True)
    assert any(micro.positions is not None for micro in passes)
    assert sum(micro.tokens.numel() for micro in passes) < sum(m.tokens.numel() for m in micro_batches(rows, 120))
    for micro in passes:
        found = torch.split(scored(model, micro), [len(row.columns) for row in micro.members])
        for row, part in zip(micro.members, found, strict=True):
            (alone,) = micro_batches([row], 1)
            assert torch.allclose(part, scored(model, alone), atol=1e-5)


def test_a_packed_step_is_the_padded_one(folder: Path) -> None:
    _, padded = jobs.single(folder, {"microbatch_tokens": 60}, 2, double=True)
    _, packed = jobs.single(folder, {"microbatch_tokens": 60, "packing": True}, 2, double=True)
    assert max(float((padded[name] - packed[name]).abs().max()) for name in padded) < 1e-9


def test_recomputed_activations_change_nothing(folder: Path) -> None:
    _, kept = jobs.single(folder, {}, 2)
    _, recomputed = jobs.single(folder, {"activation_checkpointing": True}, 2)
    assert all(torch.equal(kept[name], recomputed[name]) for name in kept)


def test_recomputed_activations_are_not_kept(folder: Path) -> None:
    def saved(config: jobs.Config) -> int:
        kept = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            kept += tensor.numel()
            return tensor

        trainer = jobs.made(ALONE, folder, config)
        (micro,) = micro_batches(with_advantages(rows_of(batch())), 10_000)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            trainer._forward(micro)
        return kept

    assert saved({"activation_checkpointing": True}) < saved({}) / 2


def test_bfloat16_products_leave_the_weights_in_float32(folder: Path) -> None:
    if not probe(TORCH_PROBE).found.get("bfloat16"):
        pytest.skip("a bfloat16 product ends the process on this CPU")
    trainer = jobs.made(ALONE, folder, {"dtype": "bfloat16"})
    plain = jobs.made(ALONE, folder, {})
    gap = max(abs(one - other) for one, other in zip(trainer.probe(), plain.probe(), strict=True))
    assert 1e-6 < gap < 0.05, "computed less exactly"
    jobs.step(trainer, 0)
    assert {tensor.dtype for tensor in trainer.weights().values()} == {torch.float32}
    assert {one.dtype for state in trainer.optimizer.state.values() for one in state.values()} == {torch.float32}
    assert all(parameter.grad is not None and parameter.grad.dtype == torch.float32 for parameter in trainer.parameters)
