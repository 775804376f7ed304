"""Sources of tasks: order, epochs, cursor, held-out split, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollweave.errors import ConfigError
from rollweave.tasks import Cursor, Mixture, RowSource, SeedSource, TaskSource, read_rows

seeds = st.integers(0, 2**40)


def rows(count: int) -> list[dict[str, int]]:
    return [{"n": i} for i in range(count)]


@given(seeds, st.integers(1, 40), st.integers(0, 3))
def test_each_epoch_of_levels_is_a_permutation(seed: int, size: int, epoch: int) -> None:
    source = SeedSource("lake", seed, size)
    tasks = [source.task(i) for i in range(epoch * size, (epoch + 1) * size)]
    assert {task.id for task in tasks} == {f"lake/train/{i}" for i in range(size)}
    assert {task.epoch for task in tasks} == {epoch}


@given(seeds, st.integers(2, 40), st.floats(0.0, 0.9))
def test_each_epoch_of_rows_is_a_permutation_of_the_training_rows(seed: int, count: int, share: float) -> None:
    source = RowSource("p", rows(count), seed, share)
    size = len(source.train_rows)
    for epoch in range(2):
        drawn = [source.task(i).data["n"] for i in range(epoch * size, (epoch + 1) * size)]
        assert sorted(drawn) == sorted(source.train_rows)


def test_epochs_come_in_different_orders() -> None:
    source = SeedSource("lake", 0, 30)
    first, second = ([source.task(i + 30 * epoch).id for i in range(30)] for epoch in range(2))
    assert first != second


@given(seeds, st.integers(1, 30), st.floats(0.01, 0.9))
def test_held_out_rows_are_disjoint_and_nothing_is_lost(seed: int, count: int, share: float) -> None:
    source = RowSource("p", rows(count), seed, share)
    held_out = {task.data["n"] for task in source.held_out(count)}
    trained = {source.task(i).data["n"] for i in range(len(source.train_rows))}
    assert trained and not trained & held_out
    assert trained | held_out == set(range(count))


@given(seeds)
def test_held_out_seeds_are_disjoint(seed: int) -> None:
    source = SeedSource("lake", seed, 50)
    held_out = source.held_out(50)
    assert not {source.task(i).seed for i in range(50)} & {task.seed for task in held_out}
    assert {task.data["split"] for task in held_out} == {"heldout"}
    assert len({task.seed for task in held_out}) == 50


def test_unlimited_levels_never_repeat() -> None:
    source = SeedSource("lake", 3)
    assert len({source.task(i).id for i in range(500)}) == 500


def mixture(seed: int) -> Mixture:
    sources: list[TaskSource] = [SeedSource("a", seed), RowSource("b", rows(7), seed, 0.3), SeedSource("c", seed, 5)]
    return Mixture(sources, [6.0, 3.0, 1.0], seed)


@given(seeds, st.integers(0, 200), st.integers(1, 40))
def test_a_cursor_set_anywhere_goes_on_exactly(seed: int, position: int, count: int) -> None:
    straight = Cursor(mixture(seed))
    walked = [straight.next() for _ in range(position + count)]
    resumed = Cursor(mixture(seed), position)
    assert [resumed.next() for _ in range(count)] == walked[position:]
    assert resumed.position == straight.position == position + count


def test_a_mixture_keeps_its_proportions_and_every_source_its_own_order() -> None:
    mixed = mixture(1)
    tasks = [mixed.task(i) for i in range(2000)]
    shares = {name: sum(task.environment == name for task in tasks) / 2000 for name in "abc"}
    assert shares["a"] == pytest.approx(0.6, abs=0.04) and shares["c"] == pytest.approx(0.1, abs=0.03)
    own = SeedSource("c", 1, 5)
    of_c = [task for task in tasks if task.environment == "c"]
    assert of_c == [own.task(i) for i in range(len(of_c))]


@given(st.integers(0, 60))
def test_a_mixture_holds_out_as_many_as_asked_by_weight(count: int) -> None:
    held_out = mixture(0).held_out(count)
    names = [task.environment for task in held_out]
    assert len(held_out) == count  # source b has two only: the others fill up
    assert names.count("b") <= 2
    assert count < 3 or set(names) == {"a", "b", "c"}
    assert count < 20 or names.count("a") > 3 * names.count("c")


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, -1.0]])
def test_a_mixture_refuses_bad_weights(weights: list[float]) -> None:
    with pytest.raises(ConfigError, match="positive weight"):
        Mixture([SeedSource("a", 0), SeedSource("b", 0)], weights, 0)


def test_rows_survive_unusual_line_separators_and_a_byte_order_mark(tmp_path: Path) -> None:
    wanted = [{"prompt": "one\u2028two\x85three"}, {"prompt": "ü"}]
    text = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in wanted) + "\n\n"
    (tmp_path / "rows.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_rows(tmp_path / "rows.jsonl") == wanted


def test_parquet_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    wanted = [{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 2}]
    parquet.write_table(pyarrow.Table.from_pylist(wanted), tmp_path / "rows.parquet")
    assert read_rows(tmp_path / "rows.parquet") == wanted
    (tmp_path / "bad.parquet").write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match=r"bad\.parquet: not a readable parquet"):
        read_rows(tmp_path / "bad.parquet")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b'{"a": 1}\n{"a": ', r"x\.jsonl:2: not valid JSON"),
        ("x.jsonl", b'{"a": 1}\n\n[1]\n', r"x\.jsonl:3: expected an object"),
        ("x.jsonl", b"\xff\xfe", "not UTF-8"),
        ("x.csv", b"a,b", r"\.jsonl or \.parquet"),
    ],
)
def test_bad_files_are_refused_with_the_place(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_rows(tmp_path / name)


def test_a_missing_file_and_an_empty_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_rows(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="no rows"):
        RowSource("p", [], 0)
