"""A run folder that looks like a real one: an agent that learns FrozenLake, written through the real writers."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from rollweave.observability.events import EventFile, Recorder
from rollweave.observability.metrics import MetricsWriter, read_metrics
from rollweave.observability.summary import summarise, write_summary
from rollweave.observability.transcripts import TranscriptWriter
from rollweave.tasks import Task
from rollweave.trajectory import Outcome, Trajectory, Transform, token_ids
from spans import span_of

CONFIG = """\
name: quickstart
seed: 7
model:
  type: tiny
  hidden: 128
environment:
  type: frozen_lake
pipeline:
  type: rollart
  alpha: 1
evaluation:
  every: 10
  target: 0.85
"""


def decode(tokens: list[int]) -> str:
    return bytes(tokens).decode()


def rows(steps: int, seed: int = 0, evaluate_every: int = 10) -> list[dict[str, Any]]:
    draw, accounts = random.Random(seed), random.Random(seed)
    made, elapsed, trained, surplus, failed = [], 0.0, 0, 0, 0
    for step in range(steps):
        skill = 1 / (1 + math.exp(-(step - steps * 0.45) / max(steps * 0.1, 1)))
        times = {
            "get_batch": draw.uniform(0.3, 0.9),
            "train": draw.uniform(0.9, 1.2),
            "sync_exposed": draw.uniform(0.02, 0.1),
        }
        times["step"] = sum(times.values()) + 0.08
        elapsed += times["step"]
        trained += 128
        surplus += draw.choice([0, 0, 4])
        failed += draw.random() < 0.05
        generated = int(5200 * draw.uniform(0.85, 1.15))
        row: dict[str, Any] = {
            "step": step,
            "policy/version": step + 1,
            "time/elapsed": elapsed,
            "reward/mean": min(1, max(0, 0.08 + 0.85 * skill + draw.gauss(0, 0.045))),
            "reward/std": 0.5 - 0.35 * skill,
            "episode/turns_mean": 12 - 5 * skill,
            "episode/truncated_share": 0.3 * (1 - skill),
            "tokens/generated": generated,
            "tokens/trained": int(generated * 0.96),
            "tokens/wasted/surplus": draw.choice([0, 0, 90]),
            "tokens/wasted/infra-failed": draw.choice([0, 0, 0, 25]),
            "tokens_per_second/generated": generated / times["step"],
            "tokens_per_second/trained": generated * 0.96 / times["step"],
            "staleness/mean": draw.uniform(0.7, 1.0) if step else 0.0,
            "staleness/max": 1 if step else 0,
            "staleness/share/0": 0.2 if step else 1.0,
            "staleness/share/1": 0.8 if step else 0.0,
            "tokens/wasted_share": 0.01,
            "tokens/evaluation": 0,
            "tokens/in_flight": 2100,
            "bias/duration": accounts.uniform(-0.02, 0.0),
            "bias/tokens": accounts.uniform(-0.01, 0.0),
            "queue/length_seen": accounts.choice([0, 3, 9]),
            "queue/wait_seconds": accounts.uniform(0.2, 0.5),
            "queue/wait_seconds_max": accounts.uniform(0.6, 1.1),
            "queue/trainer_blocked_seconds": times["get_batch"],
            "queue/backpressure_seconds": accounts.uniform(0.0, 0.4),
            "queue/free_slots": accounts.uniform(0.0, 9.0),
            "idle/environments": accounts.uniform(0.1, 0.3),
            "idle/get_batch": times["get_batch"] / times["step"],
            "idle/engine": draw.uniform(0.05, 0.2),
            "idle/trainer": 1 - times["train"] / times["step"],
            "offpolicy/ess": draw.uniform(0.93, 0.99),
            "offpolicy/ratio_p99": draw.uniform(1.05, 1.4),
            "offpolicy/clip_fraction": draw.uniform(0.0, 0.04),
            "mismatch/logprob_gap": draw.uniform(1e-6, 4e-6),
            "loss/total": draw.gauss(0, 0.02),
            "grad/norm": draw.uniform(0.2, 0.8),
            "lr": 1e-3,
            "ledger/task/trained": trained // 8,
            "ledger/task/open": 8,
            "ledger/attempt/trained": trained,
            "ledger/attempt/surplus": surplus,
            "ledger/attempt/infra-failed": failed,
            "ledger/attempt/open": 64,
            "weights/checksum": f"{draw.getrandbits(64):016x}",
            **{f"time/{name}": spent for name, spent in times.items()},
        }
        if evaluate_every and step % evaluate_every == 0:
            row |= {"eval/reward": min(1.0, 0.11 + 0.84 * skill), "eval/turns_mean": 7.5, "eval/version": step}
        made.append(row)
    if evaluate_every and steps:
        made.append({"step": steps, "eval/reward": 0.93, "eval/turns_mean": 6.4, "eval/version": steps})
    return made


def trajectory(step: int, member: int, reward: float, turns: int) -> Trajectory:
    episode = Trajectory(f"g{step}.{member}", step, member, Task(f"frozen_lake/train/{step}", "frozen_lake", 91 + step))
    for turn in range(turns):
        lake = "".join("A" if i == min(turn, 15) else "SFFFFHFHFFFHHFFG"[i] for i in range(16))
        board = "\n".join(lake[i : i + 4] for i in range(0, 16, 4))
        shown = f"<|user|>\n{board}\nYou are at row {turn // 4}. <b>Go?</b>\n<|assistant|>\n"
        episode.observe(token_ids(shown.encode()))
        half = span_of([82], [-0.3], [-0.3], max(0, step - 1), Transform())
        rest = span_of([105, 103], [-0.2, -0.1], [-0.2, -0.1], step, Transform())
        episode.answer([half, rest] if turn == turns // 2 else [rest], "right" if turn % 2 else "down", "stop")
        episode.turns[-1].reward = reward if turn == turns - 1 else 0.0
        episode.turns[-1].generate_seconds, episode.turns[-1].environment_seconds = 0.12, 0.002
    episode.outcome = Outcome.FINISHED if reward else Outcome.TRUNCATED
    episode.rewards = {"environment": reward, "format": 0.05}
    return episode


def write_run(folder: Path, steps: int = 60, evaluate_every: int = 10, finished: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(CONFIG)
    times = iter(range(10**6))
    file = EventFile(folder / "events.jsonl")
    recorder = Recorder(lambda: float(next(times)), [file])
    recorder.emit("run.start", name="quickstart")
    metrics, transcripts = MetricsWriter(folder), TranscriptWriter(folder, decode)
    for row in rows(steps, evaluate_every=evaluate_every):
        metrics.write(row["step"], row)
        if "reward/mean" in row:
            won = float(row["reward/mean"] > 0.4)
            transcripts.write(row["step"], [trajectory(row["step"], 0, won, 6), trajectory(row["step"], 1, 0.0, 9)])
            recorder.emit("batch.ready", step=row["step"])
    if steps > 30:
        recorder.emit("wait.slow", who="trainer", waits_for="group 17: environment in step 12", seconds=31.0)
    for writer in (metrics, transcripts, file):
        writer.close()
    if finished:
        write_summary(folder, summarise("quickstart", read_metrics(folder).rows, "target", target=0.85))
    return folder
