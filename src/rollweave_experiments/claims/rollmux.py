"""RollMux (published as Weave, OSDI'26): the rows of its evaluation, as far as its inputs are known."""

from __future__ import annotations

from rollweave_experiments.frame import Claim, Study

PAPER = "RollMux"
PRICES = "8 x H20 at 14.80 $/h and 8 x H800 at 42.24 $/h a node; cold and warm starts, memory and moves of table 2"

MICRO = Study(
    name="rollmux-micro",
    paper=PAPER,
    where="figure 10 and table 4",
    title="Three small groups at equal hourly cost: RollMux against Solo-D, co-located and Gavel+",
    known=f"{PRICES}; the groups A x 2, D x 2 + E, C + D x 2; rollout 2.5 and 6 times training for D and E",
    chosen="seconds of the phases: A 156 + 102, D 375 + 150, E 450 + 75 from the iteration times of table 4; "
    "C 255 + 369 is a guess, so its rows are shapes. A co-located iteration is as long as a disaggregated one; Gavel+ "
    "gives every job the fraction of train GPUs with the most work per dollar. Migration is on",
    claims=(
        Claim("A x 2: RollMux / Solo-D", "number", 1.82, "P"),
        Claim("A x 2: RollMux / co-located", "number", 1.47, "P"),
        Claim("A x 2: RollMux / Gavel+", "number", 1.73, "P"),
        Claim("D x 2 + E: RollMux / Solo-D", "number", 1.90, "P"),
        Claim("D x 2 + E: RollMux / co-located", "number", 1.35, "P"),
        Claim("D x 2 + E: RollMux / Gavel+", "number", 1.43, "P"),
        Claim("C + D x 2: RollMux / Solo-D", "shape", 1.99, "P", holds="above 1.5"),
        Claim("C + D x 2: RollMux / co-located", "shape", 1.43, "P", holds="above 1"),
        Claim("C + D x 2: RollMux / Gavel+", "shape", 1.78, "P", holds="above 1"),
    ),
)

MIGRATION = Study(
    name="rollmux-migration",
    paper=PAPER,
    where="section 7, long-tail migration",
    title="Throughput of a pair of jobs with migration of the last 20 % of responses, against without",
    known="threshold 80 %, only requests move; [7B-8k] x 2 runs 4730 against 3983 tokens/s at 261.8 s an iteration",
    chosen="phases: 7B-4k 86 + 68, 7B-8k 156 + 102, 14B-8k 238 + 134, from these rows; lengths lognormal, 3 % at the "
    "limit; 2 of 8 GPUs keep the tail, 3 s for the move",
    claims=(
        Claim("7B-4k x 2", "shape", 1.12, "P", holds="between 1 and 1.5"),
        Claim("7B-8k x 2", "shape", 1.19, "P", holds="between 1 and 1.5"),
        Claim("7B-8k + 14B-8k", "shape", 1.06, "P", holds="between 1 and 1.5"),
        Claim("14B-8k x 2", "shape", 1.28, "P", holds="between 1 and 1.5"),
        Claim("order of the pairs", "shape", None, "P", holds="least for the unequal pair, most for 14B-8k x 2"),
    ),
)

SYNC = Study(
    name="rollmux-sync",
    paper=PAPER,
    where="figure 13",
    title="Weights across the slow link: one copy, scattered and broadcast, against one copy per rollout GPU",
    known="20 Gbit/s per GPU between the clusters, models of 7, 14 and 32 billion parameters in 16 bit",
    chosen="100 GB/s inside the rollout cluster",
    claims=(
        Claim("scatter and broadcast, 8 to 8, 7B", "number", 0.9, "P", unit="s"),
        Claim("scatter and broadcast, 8 to 8, 14B", "number", 1.7, "P", unit="s"),
        Claim("scatter and broadcast, 8 to 8, 32B", "number", 3.9, "P", unit="s"),
        Claim("flat, 8 to 8, 7B", "number", 7.5, "P", unit="s"),
        Claim("flat, 8 to 8, 14B", "number", 13.8, "P", unit="s"),
        Claim("flat, 8 to 8, 32B", "number", 30.7, "P", unit="s"),
        Claim("flat / scatter, 16 to 16, 7B", "shape", 2.62, "P", holds="above 2"),
        Claim("flat / scatter, 16 to 16, 32B", "shape", 2.75, "P", holds="above 2"),
    ),
)

TESTBED = Study(
    name="rollmux-testbed",
    paper=PAPER,
    where="trace replay on 328 + 328 GPUs",
    title="Two weeks of 200 jobs: RollMux against Solo-D and co-located",
    known=f"200 jobs, 370.2 h, 27.9 h on average, SLO U(1, 2); {PRICES}",
    chosen="the trace itself (Poisson arrivals, lognormal durations), 9 % of jobs on two nodes a pool, the mix of "
    "jobs: types A to E alike, migration on. The ratio depends on the mix, which the paper keeps to itself; the plot "
    "shows it for five of them",
    claims=(
        Claim("Solo-D / RollMux", "shape", 1.84, "P", holds="above 1.3"),
        Claim("co-located / RollMux", "shape", 1.38, "P", holds="above 1"),
        Claim("Solo-D / default", "shape", None, "P", holds="above Solo-D / RollMux"),
        Claim("SLO kept", "number", 100.0, "P", unit="%"),
        Claim("admitted by direct packing", "shape", 60.5, "P", unit="%", holds="the most frequent way in"),
        Claim("admitted by rollout scaling", "shape", 15.0, "P", unit="%", holds="between 5 and 60 %"),
        Claim("admitted into a new group", "shape", 24.5, "P", unit="%", holds="between 5 and 60 %"),
        Claim("rollout bubbles against Solo-D", "shape", -24.4, "P", unit="%", holds="fewer"),
        Claim("train bubbles against Solo-D", "shape", -43.1, "P", unit="%", holds="fewer"),
    ),
)

SIMULATION = Study(
    name="rollmux-simulation",
    paper=PAPER,
    where="simulation, 300 jobs of a Philly trace",
    title="Cost over Opt by class of jobs",
    known="table 6 (phases by class), SLO U(1, 2), groups of at most 5, statistics of the trace",
    chosen="the trace is generated with those statistics (150 of 300 jobs); jobs of one node a pool; Opt is exact at "
    "every event with free regrouping, stronger than a search that has to end",
    claims=(
        Claim("RollMux / Opt, BL", "number", 1.12, "P"),
        Claim("RollMux / Opt, RH", "number", 1.10, "P"),
        Claim("RollMux / Opt, TH", "number", 1.01, "P"),
        Claim("RollMux / Opt, Mixed", "number", 1.06, "P"),
        Claim("SLO kept by RollMux", "number", 100.0, "P", unit="%"),
        Claim("SLO kept by Random, Mixed", "shape", 60.0, "P", unit="%", holds="below 80 %"),
        Claim("SLO kept by Most-idle, Mixed", "shape", 62.0, "P", unit="%", holds="below 80 %"),
        Claim("Random / Opt, Mixed", "shape", 1.97, "P", holds="above RollMux / Opt"),
        Claim("Most-idle / Opt, Mixed", "shape", 1.66, "P", holds="above RollMux / Opt"),
    ),
)

DRIFT = Study(
    name="rollmux-drift",
    paper=PAPER,
    where="drift of response lengths",
    title="Jobs whose rollouts grow or shrink: RollMux against hourly exact regrouping",
    known="seven templates: none, +-0.5, 1 and 1.5 times a curve per model size; moves of 197 to 419 s",
    chosen="the curve: linear over 90 iterations, then flat, +50 % for small, +150 % for medium, +400 % for large "
    "jobs at factor 1, which takes a growing job to the length limit that its profile was made at; training grows with "
    "the tokens; SLO against the profile, as in the paper; the trace as for the simulation, 100 jobs",
    claims=(
        Claim("cost / regroup, increasing", "shape", 1.11, "P", holds="between 0.9 and 1.4"),
        Claim("cost / regroup, decreasing", "shape", 1.10, "P", holds="between 0.9 and 1.4"),
        Claim("cost / regroup, mixed", "shape", 1.08, "P", holds="between 0.9 and 1.4"),
        Claim("SLO kept, increasing", "shape", 98.6, "P", unit="%", holds="at least 90 %"),
        Claim("SLO kept, decreasing", "shape", 98.7, "P", unit="%", holds="at least 90 %"),
        Claim("SLO kept, mixed", "shape", 95.6, "P", unit="%", holds="at least 90 %"),
    ),
)

FAILURE = Study(
    name="rollmux-failure",
    paper=PAPER,
    where="figure 19",
    title="One job of a group is killed at 2180 s and submitted again at 4480 s",
    known="the group D x 2 + E, the two moments",
    chosen="phases as for the micro-benchmarks, 20 iterations a job",
    claims=(
        Claim("iteration of D while E is gone / before", "shape", 1.0, "P", holds="at most 1"),
        Claim("iteration of D after E is back / before", "shape", 1.0, "P", holds="at most 1.01"),
        Claim("iterations of E lost", "shape", None, "P", unit="iterations", holds="less than one"),
    ),
)

DECISIONS = Study(
    name="rollmux-decisions",
    paper=PAPER,
    where="decision latency",
    title="What a placement looks at, from 100 to 2,000 running jobs",
    known="5.6 ms with 5 running jobs, 41.9 ms with 100, 591 ms with 2,000, in C++",
    chosen="groups and places looked at per arrival instead of milliseconds, which no seed fixes: `python -m "
    "bench.mux` measures those; jobs of table 6, 40 arrivals",
    claims=(
        Claim("Algorithm 1: looked at with 2,000 jobs / with 100", "shape", 14.1, "P", holds="at most 20 (linear)"),
        Claim("`default`: looked at with 2,000 jobs / with 100", "shape", None, "P", holds="at most 20 (linear)"),
        Claim("Algorithm 1: looked at with 2,000 jobs", "shape", None, "P", unit="groups", holds="at most 2,000"),
    ),
)
