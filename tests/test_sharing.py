"""`make sharing`: the job that it runs, and how its figures are judged."""

from __future__ import annotations

from tools.sharing import JOBS, OWN, RECIPE, in_words, summary

from rollweave.config.load import load_job


def one(own: float, shared: float, slower: float) -> dict[str, object]:
    steps = [10.0] * JOBS
    return {
        "own": {"utilisation": own, "steps": steps},
        "shared": {"utilisation": shared, "steps": [10.0 * slower, *steps[1:]]},
    }


def test_the_median_of_the_repeats_counts_for_each_job() -> None:
    found = summary([one(0.2, 0.4, 1.0), one(0.2, 0.5, 1.2), one(0.2, 0.1, 1.04)])
    assert found["utilisation"] == 2.0 and found["steps"] == [1.04, 1.0, 1.0] and found["met"]
    assert "utilisation 2.00x (bar 1.5x); steps take 1.040, 1.000, 1.000 of the time (bar 1.05): met" in in_words(found)


def test_one_slower_job_or_too_little_gain_misses_the_bar() -> None:
    assert not summary([one(0.2, 0.4, 1.06)])["met"]
    assert not summary([one(0.2, 0.29, 1.0)])["met"]


def test_alone_the_job_has_as_many_processes_as_a_job_for_itself() -> None:
    (reward,) = load_job(RECIPE / "job.yaml").rewards
    assert (reward.scheme, reward.instances.maximum) == ("pool", OWN)
