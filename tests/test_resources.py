"""Which worker is bound to which node, and why; no Ray."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollweave.config.cluster import ClusterConfig
from rollweave.errors import ConfigError
from rollweave.observability.events import MemoryRecorder
from rollweave.runtimes.resources import ClusterNode, Need, ResourceManager

A, B, C = (ClusterNode(name, f"10.0.0.{n}", 2, {"pool": name}) for n, name in enumerate("abc", 1))
TRAIN = ClusterNode("t", "10.0.0.9", 4, {"pool": "train", "zone": "east"})


def cluster(*pools: dict[str, Any]) -> ClusterConfig:
    train = {"name": "train", "device": "CPU", "count": 1, "role": "train"}
    rollout = [{"device": "CPU", "count": 2, "role": "rollout", **pool} for pool in pools]
    return ClusterConfig.model_validate({"pools": (train, *rollout)})


def manager(*nodes: ClusterNode, pools: ClusterConfig | None = None) -> tuple[ResourceManager, MemoryRecorder]:
    recorder = MemoryRecorder()
    made = ResourceManager(pools or cluster({"name": "a"}, {"name": "b"}), recorder, labelled=True, home="t")
    made.see(nodes)
    return made, recorder


def test_a_worker_is_bound_to_a_node_of_its_pool_and_says_why() -> None:
    resources, recorder = manager(A, B, TRAIN)
    binding = resources.bind(Need("a-0", "a", 1))
    assert binding is not None and binding.node is A and binding.preferred
    (bound,) = recorder.named("worker.bound")
    assert bound.data["reason"] == "pool a: 10.0.0.1 has 2 of 2 cores free"
    assert (bound.data["worker"], bound.data["pool"], bound.data["node"]) == ("a-0", "a", "10.0.0.1")


def test_labels_of_the_file_replace_the_name_of_the_pool() -> None:
    resources, _ = manager(A, TRAIN, pools=cluster({"name": "fast", "labels": {"zone": "east", "pool": "train"}}))
    binding = resources.bind(Need("fast-0", "fast", 1))
    assert binding is not None and binding.node is TRAIN


def test_a_full_pool_falls_back_to_a_compatible_one_and_returns_when_there_is_room() -> None:
    resources, recorder = manager(A, B, TRAIN)
    for number in range(2):
        resources.bind(Need(f"a-{number}", "a", 1))
    third = resources.bind(Need("a-2", "a", 1))
    assert third is not None and third.node is B and not third.preferred
    assert recorder.named("worker.bound")[-1].data["reason"] == (
        "pool a has no room: fallback to pool b, 10.0.0.2 has room"
    )
    assert resources.returning() == []
    resources.release("a-0")
    assert resources.returning() == ["a-2"]
    back = resources.bind(Need("a-2", "a", 1))
    assert back is not None and back.node is A and resources.returning() == []


def test_training_never_falls_back_to_nodes_that_generate() -> None:
    resources, _ = manager(A, B)
    assert resources.bind(Need("trainer", "train", 1)) is None


def test_a_pool_that_has_lost_its_node_is_waited_for_or_replaced() -> None:
    resources, recorder = manager(A, B, TRAIN)
    assert resources.see([A, TRAIN]) and not resources.see([TRAIN, A])
    assert [event.name for event in recorder.events[-1:]] == ["node.gone"]
    fallen = resources.bind(Need("b-0", "b", 2))
    assert fallen is not None and "pool b has no node: fallback to pool a" in fallen.reason
    assert resources.bind(Need("a-0", "a", 1)) is None, "the guest has taken its room"
    resources.see([A, B, TRAIN])
    assert resources.returning() == ["b-0"]


def test_a_cluster_file_that_asks_for_what_is_not_there_is_refused_with_what_is() -> None:
    resources, _ = manager(A, TRAIN)
    with pytest.raises(ConfigError) as refused:
        resources.check()
    said = str(refused.value)
    assert "pool b wants 2 x CPU on nodes with pool=b, and the Ray cluster has 0 of them" in said
    assert "10.0.0.1 (2 cores, pool=a)" in said and "ray start --labels pool=b --num-cpus 2" in said


def test_without_labels_every_node_is_in_every_pool() -> None:
    resources = ResourceManager(cluster({"name": "a"}), MemoryRecorder(), labelled=False, home="x")
    resources.see([ClusterNode("x", "here", 4)])
    resources.check()
    assert all(resources.bind(Need(worker, pool, 1)) for worker, pool in [("trainer", "train"), ("a-0", "a")])


@given(
    st.lists(
        st.tuples(st.sampled_from("bru"), st.integers(0, 5), st.sampled_from(["a", "b"]), st.integers(1, 2)),
        max_size=40,
    )
)
def test_no_node_is_ever_given_away_twice(orders: list[tuple[str, int, str, int]]) -> None:
    """Bind, release, and nodes that come and go, in any order."""
    resources, _ = manager(A, B, TRAIN)
    there = {"a": A, "b": B}
    for what, number, pool, wanted in orders:
        if what == "b":
            resources.bind(Need(f"w{number}", pool, wanted))
        elif what == "r":
            resources.release(f"w{number}")
        else:
            node = {"a": A, "b": B}[pool]
            if there.pop(pool, None) is None:
                there[pool] = node
            resources.see([*there.values(), TRAIN])
        for node in there.values():
            used = sum(one.need.cores for one in resources.bindings.values() if one.node.id == node.id)
            assert used <= node.cores
