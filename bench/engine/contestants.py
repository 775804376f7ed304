"""The two sides: our engine, and `generate` as people call it, turn by turn with left padding."""

from __future__ import annotations

import time
from typing import Any

import torch

from bench.engine.workload import Trajectory, longest_context
from rollweave.engines.protocol import EngineStats, Request, Sampling
from rollweave.engines.torch.engine import TorchEngine
from rollweave.trajectory import token_ids


class NoText:
    """Decodes nothing, because the bench does not read the answers."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return ""


def run_engine(model: Any, workload: list[Trajectory]) -> tuple[float, EngineStats]:
    """Seconds for the whole workload. The environment answers at once, so every slot is always busy."""
    engine = TorchEngine(
        model, NoText(), slots=len(workload), prefill_tokens=2048, max_context=longest_context(workload)
    )
    contexts: list[list[int]] = [[] for _ in workload]

    def add(number: int, place: int) -> None:
        turn = workload[number][place]
        contexts[number] += turn.observation
        sampling = Sampling(max_tokens=turn.answer)
        engine.add(
            Request(f"{number}/{place}", str(number), token_ids(contexts[number]), number * 100 + place, sampling)
        )

    started = time.perf_counter()
    for number in range(len(workload)):
        add(number, 0)
    while engine.has_work:
        for completion in engine.step():
            number, place = map(int, completion.id.split("/"))
            contexts[number] += [token for span in completion.spans for token in span.tokens.tolist()]
            if place + 1 < len(workload[number]):
                add(number, place + 1)
            else:
                engine.release(str(number))
    return time.perf_counter() - started, engine.stats()


def run_generate(model: Any, workload: list[Trajectory]) -> float:
    """Seconds for the whole workload: per turn one `generate` over all trajectories that still have one."""
    contexts: list[list[int]] = [[] for _ in workload]
    torch.manual_seed(0)
    started = time.perf_counter()
    for place in range(max(map(len, workload))):
        active = [number for number, trajectory in enumerate(workload) if place < len(trajectory)]
        for number in active:
            contexts[number] += workload[number][place].observation
        answers = _generate(model, [contexts[n] for n in active], max(workload[n][place].answer for n in active))
        for number, answer in zip(active, answers, strict=True):
            contexts[number] += answer[: workload[number][place].answer]
    return time.perf_counter() - started


def _generate(model: Any, contexts: list[list[int]], count: int) -> list[list[int]]:
    width = max(map(len, contexts))
    ids = torch.tensor([[0] * (width - len(c)) + c for c in contexts])
    mask = torch.tensor([[0] * (width - len(c)) + [1] * len(c) for c in contexts])
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=count,
            max_new_tokens=count,
            pad_token_id=0,
        )
    answers: list[list[int]] = output[:, width:].tolist()
    return answers
