"""The self-test of a device, which `rollweave doctor` runs where there is a GPU. It is itself untested on GPU.

A tiny policy samples and trains on the device. The trainer must find the log-probs that the engine has sampled with,
before and after an update that travels from one to the other, and after both have slept.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from rollweave.config.job import TinyModel
from rollweave.config.training import TrainingConfig
from rollweave.crossing import CROSSINGS, find_device
from rollweave.engines.protocol import Request, Sampling
from rollweave.engines.torch.engine import TorchEngine
from rollweave.policies.tiny import build
from rollweave.tasks import Task
from rollweave.training.trainer import TorchTrainer
from rollweave.trajectory import Batch, Group, Outcome, Trajectory, token_ids
from rollweave.weights.store import MemoryStore

MEMBERS, TOKENS, STEPS = 8, 32, 3
PROMPT = token_ids(range(40, 60))
TOLERANCE = 1e-2
"""In nats: kernels of a GPU add up in another order, and may use TF32."""


def device_test(name: str) -> dict[str, float]:
    """Raises if something does not work; returns the largest gap between log-probs, and what it took."""
    device, began, crossings = find_device(name), time.perf_counter(), CROSSINGS.up + CROSSINGS.down
    with tempfile.TemporaryDirectory() as place:
        folder = build(TinyModel(type="tiny"), 0, Path(place) / "policy")
        trainer = TorchTrainer(folder, TrainingConfig(learning_rate=1e-3), seed=0, device=device, sleeps=True)
        engine = TorchEngine.from_folder(folder, slots=MEMBERS, prefill_tokens=64, max_context=128, device=device)
        gap, store = 0.0, MemoryStore()
        for step in range(STEPS):
            batch = Batch(step, [Group(step, _TASK, [_played(engine, step, member) for member in range(MEMBERS)])])
            engine.sleep()
            gap = max(gap, trainer.train_step(batch)["mismatch/logprob_gap_max"])
            trainer.publish(step + 1, store)
            engine.wake()
            engine.prepare(lambda into, version=step + 1: store.pull(version, into))  # type: ignore[misc]
            engine.commit(step + 1)
    if gap > TOLERANCE:
        raise ArithmeticError(f"engine and trainer differ by {gap:.1e} nats on the same tokens")
    crossings = CROSSINGS.up + CROSSINGS.down - crossings
    return {"gap": gap, "seconds": time.perf_counter() - began, "crossings": float(crossings)}


_TASK = Task("self-test", "test", 0)


def _played(engine: TorchEngine, group: int, member: int) -> Trajectory:
    id = f"{group}.{member}.0"
    engine.add(Request(id, id, PROMPT, member, Sampling(max_tokens=TOKENS, top_p=0.95 if member % 2 else 1.0)))
    ended = []
    while engine.has_work:
        ended += engine.step()
    engine.release(id)
    made = Trajectory(id, group, member, _TASK, outcome=Outcome.FINISHED, rewards={"member": float(member % 3)})
    made.observe(PROMPT)
    made.answer(ended[0].spans, ended[0].text, ended[0].finish)
    return made
