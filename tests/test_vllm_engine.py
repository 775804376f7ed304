"""The vLLM engine keeps the contract of engines, computes what the reference computes, and dies honestly."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.engine import BEHAVIOURS, UPDATES, Behaviour, check_engine
from contracts.engine import request as contract_request
from rollweave.clock import Clock
from rollweave.config.control import InFlight
from rollweave.engines.protocol import Completion, Request
from rollweave.errors import EngineGone
from rollweave.weights.probe import probe_gap, probe_tokens
from torch_engine_reference import (
    TIE,
    VOCABULARY,
    assert_raw_logprobs,
    engine_of,
    random_model,
    random_prompt,
    raw_logprobs,
    request,
    run,
    tokens_of,
)
from vllm_engines import KIND, Vllm, folder_of, running_vllm

pytestmark = [pytest.mark.slow, pytest.mark.vllm]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    with running_vllm(folder_of(random_model(KIND), tmp_path_factory.mktemp("policy") / "tied")) as running:
        yield running


def name_of(value: Any) -> str | None:
    return getattr(value, "__name__", None)


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=name_of)
def test_vllm_keeps_the_contract(behaviour: Behaviour, vllm: Vllm) -> None:
    check_engine(behaviour, vllm)


@pytest.mark.parametrize("behaviour", UPDATES, ids=name_of)
@pytest.mark.parametrize("in_flight", ["recompute", "restart_turn"])
def test_vllm_updates_as_in_flight_says(in_flight: InFlight, behaviour: Behaviour, vllm: Vllm) -> None:
    check_engine(behaviour, replace(vllm, in_flight=in_flight))


# ------------------------------------------------------------------------------------------- what it computes


def answers(vllm: Vllm, requests: list[Request]) -> list[Completion]:
    async def all_of_them() -> list[Completion]:
        return await asyncio.gather(*map(vllm.engine.generate, requests))

    return vllm.runner.run(all_of_them())


async def updated(vllm: Vllm) -> int:
    version = (await vllm.engine.stats()).version + 1
    await vllm.publish(version)
    await vllm.engine.prepare(version)
    await vllm.engine.commit(version)
    return version


def reference_probe(model: Any) -> list[float]:
    first, *rest = probe_tokens(VOCABULARY).tolist()
    return raw_logprobs(model, [first], rest).tolist()


def test_its_tokens_and_log_probs_are_those_of_the_torch_engine(vllm: Vllm) -> None:
    """For whatever sampling, in one batch; a token may differ where the reference could not decide."""
    version = vllm.runner.run(updated(vllm))
    model = random_model(KIND, seed=version)
    samplings = [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.3, "top_k": 20}]
    asked = [
        request(f"same-{n}", random_prompt(n, 20 + 7 * n), seed=n, max_tokens=24, **samplings[n % 4]) for n in range(8)
    ]
    expected = run(engine_of(model), asked)
    for one, answer in zip(asked, answers(vllm, asked), strict=True):
        wanted = expected[one.trajectory]
        assert tokens_of(answer) == tokens_of(wanted)
        (span,), (reference,) = answer.spans, wanted.spans
        assert_raw_logprobs(model, one.tokens.tolist(), span)
        torch.testing.assert_close(torch.tensor(span.logprobs), torch.tensor(reference.logprobs), atol=TIE, rtol=0)
        assert (answer.text, answer.finish) == (wanted.text, wanted.finish)


def test_a_stop_string_ends_an_answer_as_in_the_torch_engine(vllm: Vllm) -> None:
    version = vllm.runner.run(updated(vllm))
    prompt, model = random_prompt(3, 30), random_model(KIND, seed=version)
    plain = request("plain", prompt, seed=5, temperature=1.0, max_tokens=60)
    whole = run(engine_of(model), [plain])["plain"]
    stop = whole.text[10:12]
    asked = replace(plain, id="stopped", trajectory="stopped", sampling=replace(plain.sampling, stop_strings=(stop,)))
    (answer,) = answers(vllm, [asked])
    assert answer.finish == "stop" and answer.text.endswith(stop)
    assert tokens_of(answer) == tokens_of(whole)[: len(tokens_of(answer))]


def test_a_second_turn_finds_the_cache_of_the_first_and_a_new_version_does_not(vllm: Vllm) -> None:
    async def main() -> tuple[int, int]:
        first = contract_request(prompt=tuple(random_prompt(1, 200)), max_tokens=8)
        answered = await vllm.engine.generate(first)
        longer = torch.tensor([*first.tokens, *tokens_of(answered), 1, 2, 3], dtype=torch.int32).numpy()
        before = await vllm.engine.stats()
        await vllm.engine.generate(replace(first, id=f"{first.id}-2", tokens=longer))
        between = await vllm.engine.stats()
        await updated(vllm)
        await vllm.engine.generate(replace(first, id=f"{first.id}-3", tokens=longer))
        after = await vllm.engine.stats()
        cached = len(longer) - (between.prefilled_tokens - before.prefilled_tokens)
        return cached, after.recomputed_tokens - between.recomputed_tokens

    cached, again = vllm.runner.run(main())
    assert cached >= 160
    assert again >= 200


def test_after_every_update_it_scores_the_probe_as_the_new_weights_do(vllm: Vllm) -> None:
    for _ in range(3):
        version = vllm.runner.run(updated(vllm))
        stats = vllm.runner.run(vllm.engine.stats())
        assert probe_gap(stats.probe, reference_probe(random_model(KIND, seed=version))) < 1e-4
        assert probe_gap(stats.probe, reference_probe(random_model(KIND, seed=version - 1))) > 0.1


# ------------------------------------------------------------------------------------------------- how it dies


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """With the head that is not packed again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rollweave.engines.vllm.launch.WORKER", "unpacked_vllm_worker")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
        with running_vllm(folder_of(random_model(KIND), tmp_path_factory.mktemp("policy") / "tied")) as running:
            yield running


def test_the_probe_finds_a_head_that_was_not_packed_again(unpacked: Vllm) -> None:
    version = unpacked.runner.run(updated(unpacked))
    stats = unpacked.runner.run(unpacked.engine.stats())
    assert stats.version == version, "it says that it holds the new version, and its digests are right"
    assert probe_gap(stats.probe, reference_probe(random_model(KIND, seed=version))) > 1e-3


def test_an_update_that_fails_is_the_end_of_the_engine(unpacked: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    index = unpacked.engine._mapping.index()
    index["shapes"][0] = [1, *index["shapes"][0]]
    monkeypatch.setattr(unpacked.engine._mapping, "index", lambda: index)
    with pytest.raises(EngineGone, match="vLLM is gone"):
        unpacked.runner.run(updated(unpacked))
    with pytest.raises(EngineGone):
        unpacked.runner.run(unpacked.engine.generate(contract_request()))
    with pytest.raises(EngineGone):
        unpacked.runner.run(unpacked.engine.stats())


def test_a_killed_vllm_fails_what_it_was_asked(vllm: Vllm) -> None:
    """The last one: the engine is gone afterwards."""

    async def main() -> None:
        answer = asyncio.ensure_future(vllm.engine.generate(contract_request(max_tokens=900)))
        drawn = (await vllm.engine.stats()).sampled_tokens
        while (await vllm.engine.stats()).sampled_tokens == drawn:
            await Clock().sleep(0)
        for child in multiprocessing.active_children():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
        await answer

    with pytest.raises(EngineGone):
        vllm.runner.run(main())
