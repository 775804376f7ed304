"""ROLL Flash (arXiv 2510.11345): its rows. The full text could not be read, only its abstract and notes about it,
so nearly every figure is second-hand (S) and nearly every claim a shape.
"""

from __future__ import annotations

from rollweave_experiments.frame import Claim, Study

PAPER = "ROLL Flash"
UNKNOWN = "the GPU model (H800 here), batch, lengths (our math workload)"

SCALING = Study(
    name="flash-scaling",
    paper=PAPER,
    where="RLVR scaling, 16 to 128 GPUs",
    title="Asynchronous against synchronous training of Qwen3-8B over the number of GPUs",
    known="GPU counts, Qwen3-8B at 32k on DAPO-Math",
    chosen=UNKNOWN + ", half of the GPUs train",
    claims=(
        *(
            Claim(f"asynchronous / synchronous, {gpus} GPUs", "shape", figure, "S-", holds="above 1")
            for gpus, figure in zip((16, 32, 64, 128), (1.28, 1.52, 1.89, 2.24), strict=True)
        ),
        Claim("gain over GPUs", "shape", None, "S", holds="rises from each count to the next"),
        Claim("range at 128 GPUs", "shape", (1.53, 2.24), "S", holds="the gain at 128 GPUs is above 1.4"),
    ),
)

QUEUE = Study(
    name="flash-queue",
    paper=PAPER,
    where="queue scheduling, 8 x 8 with dynamic filtering",
    title="One queue of prompts against whole batches, with groups of equal reward filtered",
    known="8 groups of 8, 16 extra prompts; seconds of generation a step",
    chosen=UNKNOWN + ", the share of filtered groups (one half)",
    claims=(
        Claim("batch / queue", "shape", 2.16, "S-", holds="above 1.2"),
        Claim("batch / queue with 16 extra prompts", "shape", 3.4, "S", holds="above the gain without extra prompts"),
    ),
)

REPLICATION = Study(
    name="flash-replication",
    paper=PAPER,
    where="prompt replication",
    title="n answers of a prompt as n requests that may go to different engines",
    known="prompts x answers",
    chosen=UNKNOWN + ", 8 engines with 16 requests each under way. Notes disagree on 16 x 32 or 16 x 64: both are "
    "shown, and compared with 64 x 16 is the one with as many answers",
    claims=(
        Claim("64 x 16", "shape", 1.84, "S", holds="at least 1"),
        Claim("32 x 16", "shape", 1.30, "S", holds="at least 1"),
        Claim("16 x 32", "shape", 1.95, "S", holds="at least 1"),
        Claim("16 x 64", "shape", 1.95, "S", holds="at least 1"),
        Claim("fewer, larger groups", "shape", None, "S", holds="16 x 64 gains at least what 64 x 16 gains"),
    ),
)

ENVIRONMENT_ASYNC = Study(
    name="flash-environment-async",
    paper=PAPER,
    where="environment-level asynchronous rollout, latency N(10 s, 10 s)",
    title="A slot serves another trajectory while an environment answers",
    known="mean and sigma of the latency; 892 s against 362 s a step",
    chosen="turns, batch, model: those of the RollArt latency sweep",
    claims=(Claim("batched turns / asynchronous", "shape", 2.46, "S", holds="above 1.5"),),
)

REDUNDANT = Study(
    name="flash-redundant",
    paper=PAPER,
    where="redundant environments, latency N(10 s, 5 s), batch 256",
    title="More groups and more members than a batch needs",
    known="32 x 8 consumed; 32 x 8, 36 x 9 and 36 x 12 started; mean and sigma of the latency",
    chosen="turns, and environments that are slow or stop altogether: without those a drop from 243 s to 45 s is "
    "impossible",
    claims=(
        Claim("32x8 / 36x9", "shape", 5.4, "S-", holds="above 1.05"),
        Claim("32x8 / 36x12", "shape", 5.28, "S-", holds="above 1.05"),
        Claim("larger groups on top of more groups", "shape", 0.98, "S-", holds="36x12 within 15 % of 36x9, or faster"),
    ),
)

BEST_ALPHA = Study(
    name="flash-alpha",
    paper=PAPER,
    where="best asynchronous ratio",
    title="The smallest alpha within 5 % of the fastest, by sequence length and by rollout size",
    known="lengths 4k and 32k, rollout sizes 32 and 256",
    chosen=UNKNOWN + "; a rollout size counts prompts, as ROLL's `rollout_batch_size` does, of 8 answers each; 'best' "
    "is the smallest alpha after which a step gains less than 5 %",
    claims=(
        Claim("best alpha at 4k", "shape", 1.0, "S", "alpha", holds="at most the one at 32k"),
        Claim("best alpha at 32k", "shape", 2.0, "S", "alpha", holds="between 1 and 4"),
        Claim("best alpha, rollout size 32", "shape", 4.0, "S", "alpha", holds="at least the one at size 256"),
        Claim("best alpha, rollout size 256", "shape", 2.0, "S", "alpha", holds="between 1 and 4"),
    ),
)

SPLIT = Study(
    name="flash-split",
    paper=PAPER,
    where="resource split of 40 GPUs",
    title="How many of 40 GPUs generate and how many train",
    known="40 GPUs; 24 generating and 16 training are best, about 2x the baseline",
    chosen=UNKNOWN,
    claims=(
        Claim(
            "best number of generating GPUs", "shape", 24.0, "S", "GPUs", holds="neither the least nor the most tried"
        ),
        Claim("best split / synchronous on all 40", "shape", 2.0, "S", holds="above 1.2"),
    ),
)

STUDIES = (SCALING, QUEUE, REPLICATION, ENVIRONMENT_ASYNC, REDUNDANT, BEST_ALPHA, SPLIT)
