"""`python -m bench.engine [--model tiny|smollm2] [--threads N] [--turns N] [--json] [--quick]`

The whole workload takes minutes with the tiny model and the better part of an hour with SmolLM2 (nearly all of it
`generate`, which computes every history anew): `--turns 3` cuts it to the first turns of every trajectory.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch

from bench.engine import roofline, workload
from bench.engine.contestants import run_engine, run_generate

TRAJECTORIES = {"tiny": 64, "smollm2": 32}


def main() -> None:
    arguments = _arguments()
    # Once and before any work: torch cannot raise the number of threads of a running process.
    torch.set_num_threads(arguments.threads)
    result = compare(arguments.model, arguments.turns, quick=arguments.quick)
    print(json.dumps(result) if arguments.json else _table(result, arguments.threads))


def compare(name: str, turns: int | None, *, quick: bool) -> dict[str, Any]:
    model = _tiny() if name == "tiny" else _smollm2()
    config = model.config
    trajectories = TRAJECTORIES[name] // (4 if quick else 1)
    work = workload.load(config.vocab_size, trajectories, turns=2 if quick else turns)
    tokens = workload.sampled_tokens(work)
    warm_up = workload.load(config.vocab_size, 2, turns=1)
    run_engine(model, warm_up)
    run_generate(model, warm_up)
    _say("measuring the machine")
    machine = roofline.measure(trajectories, config.hidden_size, config.intermediate_size)
    _say(f"our engine: {tokens} tokens")
    ours, stats = run_engine(model, work)
    _say(f"generate: the same (ours took {ours:.0f} s)")
    theirs = run_generate(model, work)
    return {
        "model": name,
        "trajectories": trajectories,
        "sampled_tokens": tokens,
        "engine_tokens_per_second": tokens / ours,
        "generate_tokens_per_second": tokens / theirs,
        "ratio": theirs / ours,
        "engine_steps": stats.steps,
        "gemm_gflops": machine.gflops,
        "memory_gigabytes_per_second": machine.gigabytes_per_second,
        "roofline_tokens_per_second": roofline.bound(machine, config, work),
    }


def _tiny() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, max_position_embeddings=4096)).eval()


def _smollm2() -> Any:
    from rollweave.policies import smollm2
    from rollweave.policies.forward import load_model

    return load_model(smollm2.ensure())


def _say(what: str) -> None:
    print(f"... {what}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    parser.add_argument("--model", choices=list(TRAJECTORIES), default="tiny")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, help="only the first N turns of every trajectory")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a quarter of the trajectories, two turns")
    return parser.parse_args()


def _table(result: dict[str, Any], threads: int) -> str:
    engine, bound = result["engine_tokens_per_second"], result["roofline_tokens_per_second"]
    beside = f"{result['ratio']:.2f}x generate, {engine / bound:.0%} of the roofline"
    return "\n".join(
        [
            f"{result['model']}, {result['trajectories']} trajectories, {result['sampled_tokens']} sampled tokens, "
            f"{threads} thread(s)",
            f"  engine      {engine:10,.0f} tokens/s   {beside}",
            f"  generate    {result['generate_tokens_per_second']:10,.0f} tokens/s   per turn, left padding",
            f"  roofline    {bound:10,.0f} tokens/s   {result['gemm_gflops']:.0f} GFLOPS, "
            f"{result['memory_gigabytes_per_second']:.1f} GB/s measured",
        ]
    )


if __name__ == "__main__":
    main()
