"""The papers' tasks as length, turn and latency distributions.

RollArt, Table 1 gives the ranges of turns and whether a task is heavy in prefill or decode; section 1.1 the shares of
a SWE-bench step and the failures; its figures give no quantiles of lengths or latencies. Whatever is not in the papers
is an assumption, and says so; `rollweave simulate` files and experiments may override any of it.
"""

from __future__ import annotations

from rollweave.config.workload import Mixed, Part, TaskModel, constant, lognormal, uniform
from rollweave.errors import ConfigError

ALIKE = 0.3
"""Of reasoning about one problem: a long one is long for everybody. Assumed; with independent members (0) RollArt's
redundant members would gain more than its redundant groups, where the paper has it the other way."""

PRESETS: dict[str, TaskModel] = {
    task.name: task
    for task in (
        # 30 to 50 turns, prefill-heavy, Docker images in reset (RollArt, Table 1). Lengths assumed: file listings and
        # test logs of a few hundred tokens, short edits; a 32k context holds an episode.
        TaskModel(
            name="swe-bench",
            turns=uniform(30, 50),
            prompt_tokens=lognormal(3000, 0.3, 500, 8000),
            observation_tokens=lognormal(350, 0.8, 20, 4000),
            answer_tokens=lognormal(120, 0.6, 10, 2000),
            reset_seconds=lognormal(25, 0.7, 2, 400),
            step_seconds=lognormal(1.0, 1.0, 0.05, 120),
            reward_seconds=lognormal(15, 0.6, 1, 120),
            image_seconds=lognormal(120, 0.6, 20, 600),
            success_rate=0.3,
        ),
        # 5 to 30 turns, prefill-heavy (RollArt, Table 1): pages of about a thousand tokens, a click or a few words for
        # an answer. Assumed, so that with the prefix cache on arithmetic outweighs memory traffic, as the paper says. A
        # step takes seconds: the axis of RollArt's figure 5a begins at 1 s and ends at 100 s.
        TaskModel(
            name="webshop",
            turns=uniform(5, 30),
            prompt_tokens=lognormal(1500, 0.3, 200, 4000),
            observation_tokens=lognormal(1000, 0.5, 100, 4000),
            answer_tokens=lognormal(20, 0.5, 5, 200),
            reset_seconds=lognormal(1.0, 0.7, 0.1, 30),
            step_seconds=lognormal(4.0, 0.3, 0.1, 60),
        ),
        # 20 to 100 turns, prefill-heavy (RollArt, Table 1): a board of less than a hundred tokens is shown each turn,
        # the answer is a move. Assumed; much longer boards would not fit the caches of 192 episodes on two H800, which
        # its figure 4 has.
        TaskModel(
            name="frozen-lake",
            turns=uniform(20, 100),
            prompt_tokens=lognormal(400, 0.2, 100, 1000),
            observation_tokens=lognormal(80, 0.3, 30, 200),
            answer_tokens=lognormal(4, 0.4, 2, 20),
            reset_seconds=lognormal(0.5, 0.5, 0.05, 10),
            step_seconds=lognormal(1.0, 0.3, 0.05, 30),
        ),
        # Fewer than 5 turns of long reasoning with tool use, decode-heavy (RollArt, Table 1). A Qwen3 model that thinks
        # writes of the order of ten thousand tokens per problem; the context of 32k ends the longest. Assumed.
        TaskModel(
            name="gem-math",
            turns=uniform(1, 4),
            prompt_tokens=lognormal(300, 0.3, 50, 1500),
            observation_tokens=lognormal(150, 0.6, 10, 1500),
            answer_tokens=lognormal(3000, 0.6, 200, 12000),
            alike=ALIKE,
            reset_seconds=constant(0.1),
            step_seconds=lognormal(0.5, 0.8, 0.05, 20),
        ),
        # One turn, decode-heavy (RollArt, Table 1).
        TaskModel(
            name="gem-game",
            turns=constant(1),
            prompt_tokens=lognormal(500, 0.3, 100, 2000),
            answer_tokens=lognormal(8000, 0.5, 200, 24000),
            alike=ALIKE,
            reset_seconds=constant(0.1),
            step_seconds=constant(0.05),
        ),
        # Single-turn reasoning with verifiable rewards: heavy tail, the longest answer more than 20 times the median
        # (ROLL Flash, section 2.1; 25 to 32 times in RollPacker).
        TaskModel(
            name="rlvr-math",
            turns=constant(1),
            prompt_tokens=lognormal(200, 0.4, 30, 1500),
            answer_tokens=lognormal(1100, 1.05, 50, 30000),
            alike=ALIKE,
            reward_seconds=lognormal(0.05, 0.5, 0.01, 5),
        ),
        TaskModel(
            name="rlvr-code",
            turns=constant(1),
            prompt_tokens=lognormal(450, 0.4, 50, 2500),
            answer_tokens=lognormal(1400, 1.0, 80, 30000),
            alike=ALIKE,
            reward_seconds=lognormal(3.0, 0.8, 0.2, 60),
        ),
        TaskModel(
            name="rlvr-judge",
            turns=constant(1),
            prompt_tokens=lognormal(250, 0.4, 30, 2000),
            answer_tokens=lognormal(1100, 1.05, 50, 30000),
            alike=ALIKE,
            judged=True,
        ),
        # RollArt, section 8: mean turns per task 1 to 48, either below 5 or above 10; failures about once in ten
        # iterations. Lengths assumed; prompts to 12k and responses to 46k tokens are the paper's maxima.
        TaskModel(
            name="production",
            turns=Mixed(
                type="mixed",
                parts=(Part(weight=0.55, of=uniform(1, 5)), Part(weight=0.45, of=uniform(11, 35))),
            ),
            prompt_tokens=lognormal(1500, 0.8, 100, 12000),
            observation_tokens=lognormal(300, 0.8, 20, 4000),
            answer_tokens=lognormal(220, 1.0, 10, 8000),
            reset_seconds=lognormal(5, 0.9, 0.2, 300),
            step_seconds=lognormal(0.8, 1.0, 0.02, 60),
            reset_failure_rate=0.002,
            step_failure_rate=0.0001,
            reset_hang_rate=0.0002,
        ),
    )
}


def resolve(task: TaskModel) -> TaskModel:
    """A task of the file over the preset it names."""
    if not task.preset:
        return task
    if task.preset not in PRESETS:
        raise ConfigError(f"workload.tasks: no preset {task.preset}; known: {', '.join(sorted(PRESETS))}")
    said = {name: getattr(task, name) for name in task.model_fields_set - {"preset"}}
    return PRESETS[task.preset].model_copy(update=said)
