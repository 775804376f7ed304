"""RollArt (OSDI'26; arXiv 2512.22560): the rows of its evaluation."""

from __future__ import annotations

from rollweave_experiments.frame import Claim, ClaimKind, Study

PAPER = "RollArt"
SETUP = (
    "96 H800 + 32 H20, 32 H800 train; baselines on 128 H800; 400 Gbit/s inside a cluster, 200 Gbit/s across; Qwen3 at "
    "32k context; GRPO, batch 512, group 8, uniform task mix; rollout tensor parallelism 1/2/4 for 8B/14B/32B"
)
UNKNOWN = "tokens per turn, environment latency quantiles, number of environments, training parallelism"
MODELS = ("8B", "14B", "32B")


def _each(
    models: tuple[str, ...], label: str, kind: ClaimKind, figures: tuple[float | tuple[float, float], ...]
) -> tuple[Claim, ...]:
    return tuple(Claim(f"{label}, {model}", kind, figure, "P") for model, figure in zip(models, figures, strict=True))


def _rungs(label: str, figure: tuple[float, float], holds: str) -> tuple[Claim, ...]:
    return tuple(Claim(f"{label}, {model}", "shape", figure, "P", holds=holds) for model in MODELS)


LADDER = Study(
    name="rollart-ladder",
    paper=PAPER,
    where="section 7.2, throughput",
    title="Throughput from Sync to RollArt, rung by rung",
    known=SETUP,
    chosen=UNKNOWN + ", how AReaL was built into ROLL. The three upper rungs hang on how long training takes against "
    "generation (twice as fast if equal, no faster if one dwarfs the other), which the paper does not give, so only "
    "the lowest rung and the whole ladder are claimed as numbers. The paper gives each as a range over models; "
    "anywhere inside counts as exact",
    claims=(
        *_each(MODELS, "Sync+ / Sync", "number", ((1.40, 2.40),) * 3),
        *_rungs("One-off / Sync+", (1.31, 1.47), "above 1.2"),
        *_rungs("AReaL / One-off", (1.03, 1.06), "no slower: at least 0.97"),
        *_rungs("RollArt / AReaL", (1.22, 1.36), "faster: above 1"),
        *_each(MODELS, "RollArt / Sync", "number", ((2.65, 4.58),) * 3),
    ),
)

TIME_TO_SCORE = Study(
    name="rollart-time-to-score",
    paper=PAPER,
    where="section 7.2, time to a validation score of 0.85",
    title="Time to the same score, Qwen3-32B, alpha 1",
    known=SETUP,
    chosen="learning is not simulated: every mode is taken to need the same number of steps at alpha <= 1, so "
    "that time to score is the ratio of step times; shapes for the reason given with rollart-ladder",
    claims=(
        Claim("RollArt / Sync+", "shape", 2.05, "P", holds="above 1.3"),
        Claim("RollArt / One-off", "shape", 1.35, "P", holds="above 1"),
        Claim("RollArt / AReaL", "shape", 1.31, "P", holds="above 1"),
        Claim("One-off / Sync+", "shape", 1.52, "P", holds="above 1.2"),
    ),
)

POOLS = Study(
    name="rollart-pools",
    paper=PAPER,
    where="section 7.3, R1",
    title="Rollout pools of equal cost: 72 H800, 208 H20, 64 H800 + 24 H20",
    known="pool sizes, 32 H800 train, device specifications and prices (table 2), math and game go to H20",
    chosen="how many tokens a turn reads and writes decides between compute and bandwidth and is unknown",
    claims=(
        *(
            Claim(f"mix / H20 only, {model}", "shape", figure, "P", holds="the mix is faster")
            for model, figure in zip(MODELS, (1.68, 1.34, 1.30), strict=True)
        ),
        *(
            Claim(f"mix / H800 only, {model}", "shape", (1.12, 1.37), "P", holds="the mix is faster")
            for model in MODELS
        ),
    ),
)

CROSSOVER = Study(
    name="rollart-crossover",
    paper=PAPER,
    where="figure 4",
    title="2 H800 against 6 H20 over the batch size",
    known="devices, Qwen3-8B at 32k, prefix cache on, batch sizes 64 to 192",
    chosen="tokens per turn of FrozenLake and GEM-math; FrozenLake's with this figure in view",
    claims=(
        *(
            Claim(f"FrozenLake H800 / H20 time, batch {batch}", "shape", figure, "P", holds="below 1: H800 is faster")
            for batch, figure in zip((64, 96, 128, 160, 192), (0.76, 0.98, 0.53, 0.57, 0.54), strict=True)
        ),
        *(
            Claim(f"GEM-math H20 / H800 time, batch {batch}", "shape", figure, "P", holds="below 1: H20 is faster")
            for batch, figure in zip((64, 96, 128, 160, 192), (0.79, 0.61, 0.52, 0.49, 0.52), strict=True)
        ),
        Claim(
            "both gaps widen with the batch",
            "shape",
            None,
            "P",
            holds="each ratio at batch 192 is below the one at batch 64",
        ),
    ),
)

LATENCY = Study(
    name="rollart-latency",
    paper=PAPER,
    where="section 7.3, R2",
    title="Trajectory-level against batch-level environment interaction, latency N(10 s, sigma)",
    known="Qwen3-8B at 32k, mean latency of a turn and its sigma",
    chosen="FrozenLake's turns and tokens, batch 256. With turn time G and z the expected maximum of a standard normal "
    "over the batch, the gain is about (10 + z sigma + G) / (10 + G): at sigma 5 and above it varies with batch and G "
    "more than any tolerance, so only the small sigmas are claimed as numbers",
    claims=(
        *(Claim(f"sigma {sigma}", "number", figure, "P") for sigma, figure in ((1, 1.23), (3, 1.51))),
        *(
            Claim(f"sigma {sigma}", "shape", figure, "P", holds="above the gain at the next smaller sigma")
            for sigma, figure in ((5, 1.69), (7, 2.18), (10, 2.27))
        ),
    ),
)

SERVERLESS = Study(
    name="rollart-serverless",
    paper=PAPER,
    where="section 7.3, R3",
    title="Reward as functions shared by three jobs against dedicated reward GPUs",
    known="16 H800 a job: 8 train, 4 rollout, 4 reward against 8 train, 8 rollout; Qwen3-8B at 16k, 7B judge, batch 84",
    chosen="a batch is 84 prompts of 8 responses; a verdict of 64 tokens, arrival of the three jobs, scaling rule of "
    "the function platform",
    claims=(
        Claim("utilisation of dedicated reward GPUs", "shape", 6.0, "P", "%", holds="below 15 %"),
        Claim("utilisation of shared functions", "shape", 88.0, "P", "%", holds="above 60 %"),
        Claim("rollout time, dedicated / functions", "shape", 2.05, "P", holds="above 1.2"),
    ),
)

GRID_GROUPS, GRID_SIZES = (32, 34, 36), (8, 10, 12)
REDUNDANCY = Study(
    name="rollart-redundancy",
    paper=PAPER,
    where="section 7.4, redundant environments",
    title="Speed-up by more groups and larger groups than needed (8 x 32 are consumed)",
    known="Qwen3-8B at 32k, 32 H800, GEM-math, groups and group sizes",
    chosen="the length distribution: its tail is what redundancy cuts",
    claims=(
        *(
            Claim(f"{groups} groups of {size}", "shape", figure, "P", holds="no slower than with one less of either")
            for size, figures in zip(
                GRID_SIZES, ((1.00, 1.16, 1.30), (1.11, 1.38, 1.52), (1.24, 1.51, 1.62)), strict=True
            )
            for groups, figure in zip(GRID_GROUPS, figures, strict=True)
        ),
        Claim(
            "four more groups against four more members",
            "shape",
            1.05,
            "D",
            holds="36 groups of 8 are faster than 32 groups of 12",
        ),
    ),
)

ALPHA = Study(
    name="rollart-alpha",
    paper=PAPER,
    where="figure 13",
    title="Step time over alpha 1 to 6: a plateau",
    known=SETUP,
    chosen=UNKNOWN
    + ". The paper gives the largest gain over alpha 1. Weak evidence where our trainer is the bottleneck "
    "(14B, 32B): nothing is gained then, and 1 is within 15 % of the paper",
    claims=(
        *_each(MODELS, "best of alpha 1-6 / alpha 1", "number", (1.22, 1.17, 1.14)),
        *(
            Claim(
                f"plateau, {model}", "shape", None, "P", holds="from alpha 3 on no alpha is more than 5 % faster than 3"
            )
            for model in MODELS
        ),
    ),
)

WEIGHTS = Study(
    name="rollart-weights",
    paper=PAPER,
    where="tables 3 and 4, section 7.4",
    title="The path of the weights: push to the store, pull, and what of it is exposed",
    known="bytes, links, push and accumulated pull per model",
    chosen="nothing: rates of push and pull are taken from table 4. The step that hides them is the ladder's, "
    "and where our trainer is its bottleneck (32B) nothing is hidden: 1 is within 15 % of the paper, weak evidence",
    claims=(
        *(Claim(f"push, {m}", "calibration", v, "P", "s") for m, v in zip(MODELS, (32.4, 67.8, 127.3), strict=True)),
        *(
            Claim(f"accumulated pull, {m}", "calibration", v, "P", "s")
            for m, v in zip(MODELS, (6.2, 16.3, 29.7), strict=True)
        ),
        *(
            Claim(f"exposed pull, {m}", "shape", v, "P", "s", holds="less than half of the accumulated pull")
            for m, v in zip(MODELS, (1.4, 5.1, 9.6), strict=True)
        ),
        *_each(MODELS, "step time, blocking / asynchronous", "number", (1.10, 1.16, 1.15)),
    ),
)

PREFILL_DECODE = Study(
    name="rollart-prefill-decode",
    paper=PAPER,
    where="section 7.4, prefill/decode disaggregation",
    title="Prefill on H800 nodes, decode on H20 nodes against both on every node, SWE-bench",
    known="batch 128, 32k, four nodes as 1P3D, 2P2D, 3P1D; rollout seconds of Qwen3-32B and Qwen3-30B-A3B",
    chosen="tokens per turn; eight GPUs a node; the colocated baseline has the same nodes",
    claims=(
        Claim("32B 1P3D: colocated / split", "number", 1.03, "P"),
        Claim("32B 2P2D: colocated / split", "number", 1.05, "P"),
        Claim("30B-A3B 1P3D: colocated / split", "number", 1.11, "P"),
        Claim("30B-A3B 2P2D: colocated / split", "number", 1.21, "P"),
        Claim("3P1D", "shape", None, "P", holds="the slowest of the three splits for both models"),
    ),
)

FAILURES = Study(
    name="rollart-failures",
    paper=PAPER,
    where="sections 2 and 8, environment initialisation",
    title="Iterations hit by failing environment starts, with and without the image cache",
    known="Qwen3-8B at 32k, SWE-bench, 32 H800, batch 128; 7 of 60 iterations hit before the cache; with it 99.99 % of "
    "starts succeed within a minute",
    chosen="how long a failing start takes until it is given up",
    claims=(
        Claim("iterations hit of 60, no cache", "calibration", 7.0, "P", "iterations"),
        Claim("iterations hit of 60, cache", "shape", 0.0, "D", "iterations", holds="at most 2"),
        Claim("time of a hit iteration / of another", "shape", 1.40, "P", holds="above 1.15"),
        Claim("share of env.reset, not hit", "shape", 14.6, "P", "%", holds="between 5 % and 30 %"),
        Claim("share of env.reset, hit", "shape", 78.2, "P", "%", holds="at least twice the share of the others"),
    ),
)

PRODUCTION = Study(
    name="rollart-production",
    paper=PAPER,
    where="section 8, one week on 3,000 GPUs",
    title="A mixture-of-experts job on 3,000 GPUs: what get_batch waits, and what tuning the split gains",
    known="500 train, 2,500 generation GPUs, alpha 1; prompts <= 12k, responses <= 46k, mean turns 1-48 by task",
    chosen="the model (235B-A22B), batch, device class, eight tasks between 1 and 48 turns, turns capped at 48",
    claims=(
        Claim(
            "longest wait of get_batch, share of its iteration", "shape", 62.0, "P", "%", holds="between 30 % and 90 %"
        ),
        Claim("saving if get_batch never waited", "shape", 22.0, "P", "%", holds="between 10 % and 60 %"),
        Claim("longest response / mean response of a step", "shape", (5.0, 9.0), "P", holds="above 4"),
        Claim("tuned split and prefix cache / first setting", "shape", 1.66, "P", holds="above 1.1"),
    ),
)

STUDIES = (
    LADDER,
    TIME_TO_SCORE,
    POOLS,
    CROSSOVER,
    LATENCY,
    SERVERLESS,
    REDUNDANCY,
    ALPHA,
    WEIGHTS,
    PREFILL_DECODE,
    FAILURES,
    PRODUCTION,
)
