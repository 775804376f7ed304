"""Engine and trainer on one device: outside its turn each holds nothing of its memory, and all stays the same."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fleets import fleet_of
from rollweave.clock import Clock, run_virtual
from rollweave.config.job import Job
from rollweave.config.losses import PPOLoss
from rollweave.config.training import GAEAdvantage, TrainingConfig
from rollweave.engines.loop import EngineLoop
from rollweave.engines.torch.engine import TorchEngine
from rollweave.fleet.colocated import AlternatingTrainer
from rollweave.pipelines.permits import PermitGate, PermitSource, SharedPool
from rollweave.policies.asleep import Asleep, resident_bytes
from rollweave.policies.forward import load_model
from rollweave.runtimes.inline import InlineTrainer
from rollweave.training.trainer import TorchTrainer
from rollweave.weights.store import MemoryStore
from torch_engine_reference import TOKENIZER, random_prompt, request, run
from training_data import batch, tiny_policy, train_step
from virtual_worlds import make_job


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "tiny")


def trainer(folder: Path, sleeps: bool, **changes: Any) -> TorchTrainer:
    return TorchTrainer(folder, TrainingConfig(**{"learning_rate": 1e-3, **changes}), seed=1, sleeps=sleeps)


def engine(folder: Path) -> TorchEngine:
    return TorchEngine(load_model(folder), TOKENIZER, slots=4, prefill_tokens=24, max_context=128)


def test_a_sleeping_tensor_takes_no_memory_and_comes_back_as_it_was() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    view, bits = whole[1], whole.to(torch.bfloat16)
    asleep = Asleep([whole, view, bits])
    assert resident_bytes([whole, view, bits]) == 0
    assert asleep.bytes == 12 * 4 + 12 * 2
    asleep.wake()
    assert torch.equal(whole, torch.arange(12.0).reshape(3, 4)) and torch.equal(view, whole[1])
    assert torch.equal(bits.float(), whole)


@pytest.mark.parametrize(
    "changes", [{}, {"loss": PPOLoss(kl_coefficient=0.1)}, {"advantage": GAEAdvantage()}], ids=["plain", "kl", "gae"]
)
def test_a_trainer_that_sleeps_makes_the_same_steps(folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    made, plain, store = trainer(folder, True, **changes), trainer(folder, False, **changes), MemoryStore()
    weights = sum(parameter.nbytes for parameter in plain.parameters)
    for step in range(2):
        assert made.resident_bytes() == 0, "between its turns"
        assert made.train_step(batch(step, step=step)) == plain.train_step(batch(step, step=step))
        assert made.resident_bytes() >= 4 * weights, "weights, gradients and two moments"
        assert made.publish(step + 1, store) == plain.publish(step + 1, store)
    assert made.resident_bytes() == 0
    made.save(tmp_path / "step-2")
    made.load(tmp_path / "step-2")
    assert made.resident_bytes() == 0
    assert made.train_step(batch(2, step=2)) == plain.train_step(batch(2, step=2))


def test_an_engine_that_slept_answers_as_if_it_had_not(folder: Path) -> None:
    asked = [request(f"r{n}", random_prompt(n, 9 + n), seed=n, max_tokens=12) for n in range(3)]
    expected = run(engine(folder), asked)
    made = engine(folder)
    for one in asked:
        made.add(one)
    ended = [completion for _ in range(5) for completion in made.step()]
    awake = made.resident_bytes()
    made.sleep()
    assert made.resident_bytes() == 0 < awake
    made.wake()
    assert made.resident_bytes() == awake
    while made.has_work:
        ended += made.step()
    assert {one.id.split("/")[0]: one.spans[0].tokens.tolist() for one in ended} == {
        name: one.spans[0].tokens.tolist() for name, one in expected.items()
    }
    assert made.stats().recomputed_tokens > 0, "its KV cache was freed"


def test_engines_and_trainer_are_never_on_the_device_together(folder: Path) -> None:
    """Looked at whenever one of them has just come or gone."""

    async def main(clock: Clock) -> list[tuple[bool, bool]]:
        store = MemoryStore()
        core, held = trainer(folder, True), engine(folder)
        loop = EngineLoop(held, store, clock)
        colocated = AlternatingTrainer(InlineTrainer(lambda: core, store, clock), fleet_of([loop]), sleep=True)
        seen = []

        def look() -> None:
            seen.append((held.resident_bytes() > 0, core.resident_bytes() > 0))

        _watched(held, look)
        _watched(core, look)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(loop.run())
            answer = tasks.create_task(loop.generate(request("a", random_prompt(1, 8), max_tokens=30)))
            for step in range(2):
                await clock.sleep(0.0)
                await train_step(colocated, batch(step, step=step))
                await colocated.publish(step + 1)
                await loop.prepare(step + 1)
                await loop.commit(step + 1)
            await answer
            running.cancel()
        look()
        return seen

    seen = run_virtual(main)
    assert (True, True) not in seen
    assert seen[-1] == (True, False)
    assert {(True, False), (False, True)} <= set(seen)


def _watched(part: Any, look: Any) -> None:
    """Look after each of its comings and goings."""
    for name in ("sleep", "wake", "_rest"):
        if (right := getattr(part, name, None)) is not None:
            setattr(part, name, lambda *args, right=right: (right(*args), look())[0])


def test_what_is_asked_of_a_sleeping_engine_waits_until_it_wakes(folder: Path) -> None:
    async def main(clock: Clock) -> tuple[bool, int]:
        store = MemoryStore()
        store.push(1, dict(load_model(folder).named_parameters()))
        held = engine(folder)
        loop = EngineLoop(held, store, clock)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(loop.run())
            await loop.suspend(asleep=True)
            preparing = tasks.create_task(loop.prepare(1))
            await clock.sleep(5.0)
            early = preparing.done()
            await loop.resume()
            await preparing
            await loop.suspend(asleep=True)  # with a version that is staged
            committing = tasks.create_task(loop.commit(1))
            await clock.sleep(1.0)
            await loop.resume()
            await committing
            running.cancel()
        return early, held.stats().version

    assert run_virtual(main) == (False, 1)


def test_a_job_that_waits_for_a_permit_leaves_the_device_to_others(folder: Path) -> None:
    class Granted(PermitSource):
        async def take(self, pool: SharedPool, step: int, tokens: int = 0, partly: bool = False) -> int | None:
            seen.append((pool, held.resident_bytes() > 0))
            return None

    async def main(clock: Clock) -> None:
        loop = EngineLoop(held, MemoryStore(), clock)
        idle: Any = SimpleNamespace(settle=_nothing, phase=lambda name, step: nullcontext())
        gate = PermitGate(Granted(), fleet_of([loop]), idle, idle, None, sleep=True)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(loop.run())
            await gate.take("rollout", 0)
            seen.append(("playing", held.resident_bytes() > 0))
            await gate.take("train", 0)
            running.cancel()

    seen: list[tuple[str, bool]] = []
    held = engine(folder)
    run_virtual(main)
    assert seen == [("rollout", False), ("playing", True), ("train", False)]


async def _nothing() -> None:
    return


def test_sleep_is_refused_where_nothing_takes_turns() -> None:
    document = make_job({"type": "rollart"}).model_dump_json()
    with pytest.raises(ValueError, match="each has its own: remove sleep"):
        Job.model_validate_json(document.replace('"sleep":false', '"sleep":true'))
    colocated = document.replace('"placement":"disaggregated"', '"placement":"colocated"')
    assert Job.model_validate_json(colocated.replace('"sleep":false', '"sleep":true')).control.sleep


def test_a_digest_survives_a_nap(folder: Path) -> None:
    held = engine(folder)
    before = _digest(held)
    held.sleep()
    held.wake()
    assert _digest(held) == before


def _digest(held: TorchEngine) -> str:
    return hashlib.sha256(b"".join(one.numpy().tobytes() for one in held._weights.tensors())).hexdigest()
