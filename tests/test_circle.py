"""The two walks of docs/architecture.md against a traced run, and their bars (`tools/circle.py` has the rule)."""

from __future__ import annotations

import pytest
from tools import circle
from tools.circle import WALKS, Call, Item, Walk, files_on_the_way, follow, made_on_the_way, window, written

walks = pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS)


@walks
def test_the_walk_is_short_enough(walk: Walk) -> None:
    page = written(walk)
    assert 0 < len(page.spine) <= walk.bars.spine
    assert len(page.files) <= walk.bars.all
    assert len({item.file for item in page.spine} | set(page.also)) == len(page.spine) + len(page.also), "named twice"


@pytest.mark.timeout(600)
@walks
def test_a_real_run_goes_this_way(walk: Walk) -> None:
    """One test for all that needs the traced run: it takes a while."""
    page, calls = written(walk), circle.trace(walk)
    missing = [step.item for step in follow(page.spine, calls) if step.call is None]
    assert not missing, "not called, or not after the item before it; see python -m tools.circle"
    inside = files_on_the_way(walk, window(page.spine, calls))
    unlisted, stale = inside.keys() - page.files, page.files - {call.file for call in calls}
    assert not unlisted, "called on the way, and missing from the page"
    assert not stale, "on the page, and never called"
    if walk.name == "lease":
        _bags_are_named(made_on_the_way(inside))


def _bags_are_named(made: dict[str, str]) -> None:
    bags = set(circle.written_bags())
    assert len(bags) <= circle.BAGS_BAR
    assert made.keys() - circle.NOT_BAGS.keys() == bags
    assert not circle.NOT_BAGS.keys() - made.keys(), "no longer made: take it out of the table"


@walks
def test_every_exemption_is_of_a_file_that_exists(walk: Walk) -> None:
    assert all((circle.SOURCE / name).exists() for name in circle.EXEMPT_ALWAYS | walk.exempt)


def test_a_wrong_order_and_a_missing_file_are_found() -> None:
    """That the tests above show something."""
    walk = WALKS["lease"]
    ran = [Call(n, file, "f") for n, file in enumerate(["a.py", "b.py", "c.py", "clock.py", "d.py"])]
    assert [step.call is None for step in follow([Item("b.py", "f"), Item("a.py", "f")], ran)] == [False, True]
    assert files_on_the_way(walk, window([Item("a.py", "f"), Item("d.py", "f")], ran)).keys() == {
        "a.py", "b.py", "c.py", "d.py"
    }  # fmt: skip
