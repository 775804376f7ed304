"""Transcripts say what the policy saw, what it answered and which version said it."""

from __future__ import annotations

import json
from pathlib import Path

from rollweave.observability.transcripts import TranscriptWriter, spread, transcript
from synthetic_run import decode, trajectory


def test_a_transcript_is_the_episode_as_text(tmp_path: Path):
    writer = TranscriptWriter(tmp_path, decode)
    writer.write(8, [trajectory(7, 2, reward=1.0, turns=3)])
    writer.close()
    row = json.loads((tmp_path / "trajectories.jsonl").read_text())
    assert (row["step"], row["group"], row["member"], row["outcome"]) == (8, 7, 2, "finished")
    assert row["reward"] == 1.05
    assert row["rewards"] == {"environment": 1.0, "format": 0.05}
    assert row["staleness"] == 2  # step 8, oldest token of version 6
    assert [turn["answer"] for turn in row["turns"]] == ["down", "right", "down"]
    assert row["turns"][0]["observation"].startswith("<|user|>\nAFFF")
    assert row["turns"][2]["reward"] == 1.0


def test_where_the_policy_changed_within_an_answer_is_kept():
    row = transcript(7, trajectory(7, 0, 1.0, turns=3), decode)
    assert [turn["versions"] for turn in row["turns"]] == [[[7, 2]], [[6, 1], [7, 2]], [[7, 2]]]


def test_spread_takes_best_and_worst_first():
    episodes = [trajectory(0, member, reward, 1) for member, reward in enumerate([0.2, 0.9, 0.5, 0.1])]
    assert [t.member for t in spread(episodes, 2)] == [1, 3]
    assert [t.member for t in spread(episodes, 3)] in ([1, 2, 3], [1, 0, 3])
    assert [t.member for t in spread(episodes, 1)] == [1]
    assert len(spread(episodes, 9)) == 4
    assert spread(episodes, 0) == []
