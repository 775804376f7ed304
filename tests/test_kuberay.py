"""KubeRay manifests: made from a cluster file, and known to KubeRay field by field."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from jsonschema import Draft202012Validator

from rollweave.cluster.kuberay import MAKERS, QUEUE_LABEL, RAY_VERSION, KubeManifest, ray_job, text_of
from rollweave.config.cluster import ClusterConfig
from rollweave.config.load import load_file
from rollweave.errors import ConfigError

DEPLOY = Path(__file__).parents[1] / "deploy" / "kuberay"
IMAGE = "registry.example.com/rollweave:0.1.0"
SCHEMAS = {"RayCluster": "rayclusters.v1.schema.json", "RayJob": "rayjobs.v1.schema.json"}


@pytest.fixture
def cluster() -> ClusterConfig:
    return load_file(DEPLOY / "cluster.yaml", ClusterConfig)


def of_pools(*pools: dict[str, Any]) -> ClusterConfig:
    train = {"name": "train", "device": "H800", "count": 8, "role": "train"}
    return ClusterConfig.model_validate({"pools": (*pools, train)})


def strict(schema: Any) -> Any:
    """With unknown fields refused: Kubernetes drops them without a word."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type", "object") == "object":
        made.setdefault("additionalProperties", False)
    return made


def problems(manifest: KubeManifest) -> Iterator[str]:
    """What KubeRay's schema has against it."""
    folder = os.environ.get("KUBERAY_SCHEMAS")
    if not folder or not Path(folder).is_dir():
        pytest.skip(f"KUBERAY_SCHEMAS ({folder}) is not a folder: it should have KubeRay's schemas")
    schema = json.loads((Path(folder) / SCHEMAS[manifest["kind"]]).read_text())
    for error in Draft202012Validator(strict(schema)).iter_errors(manifest):
        yield f"{'/'.join(map(str, error.path))}: {error.message}"


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("queue", [None, "team"])
def test_kuberay_knows_every_field(kind: str, queue: str | None, cluster: ClusterConfig) -> None:
    manifest = MAKERS[kind](cluster, IMAGE, queue=queue)
    assert list(problems(manifest)) == []
    assert manifest["metadata"].get("labels") == ({QUEUE_LABEL: queue} if queue else None)


@pytest.mark.parametrize(
    "place", [(), ("rayClusterSpec",), ("rayClusterSpec", "workerGroupSpecs", 0, "template", "spec")]
)
def test_an_unknown_field_would_be_found_wherever_it_is(place: tuple[Any, ...], cluster: ClusterConfig) -> None:
    manifest = ray_job(cluster, IMAGE)
    within = manifest["spec"]
    for step in place:
        within = within[step]
    within["replcas"] = 3
    (problem,) = problems(manifest)
    assert "'replcas' was unexpected" in problem


@pytest.mark.parametrize("kind", MAKERS)
def test_the_committed_examples_are_those_of_the_cluster_file(kind: str, cluster: ClusterConfig) -> None:
    """Made anew by `make docs`."""
    file = DEPLOY / f"{kind.lower()}.yaml"
    assert file.read_text() == text_of(MAKERS[kind](cluster, IMAGE))


def test_every_pool_is_a_worker_group_with_its_labels_and_all_of_its_devices(cluster: ClusterConfig) -> None:
    groups = {
        group["groupName"]: group for group in ray_job(cluster, IMAGE)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    }
    assert list(groups) == ["train", "h800", "h20", "environments"], "functions run elsewhere"
    for pool in cluster.pools:
        if pool.name not in groups:
            continue
        group = groups[pool.name]
        assert group["labels"] == {"pool": pool.name, "device": pool.device}
        (container,) = group["template"]["spec"]["containers"]
        kind = "cpu" if pool.device == "CPU" else "nvidia.com/gpu"
        each = int(container["resources"]["limits"][kind])
        assert group["replicas"] * each == pool.count and each % pool.tensor_parallel == 0
        assert group["minReplicas"] == group["maxReplicas"] == group["replicas"]


def test_devices_that_do_not_fill_machines_are_spread_evenly() -> None:
    made = ray_job(
        of_pools({"name": "r", "device": "H20", "count": 12, "role": "rollout", "tensor_parallel": 2}), IMAGE
    )
    group = made["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    assert group["replicas"] == 2
    assert group["template"]["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] == "6"


def test_an_engine_that_fits_on_no_machine_is_refused() -> None:
    wide = of_pools({"name": "r", "device": "H20", "count": 16, "role": "rollout", "tensor_parallel": 16})
    with pytest.raises(ConfigError, match=r"pool r: an engine of 16 devices .* 8 x H20: lower tensor_parallel"):
        ray_job(wide, IMAGE)


def test_the_image_has_the_ray_that_is_tested_here() -> None:
    assert RAY_VERSION.rsplit(".", 1)[0] == ray.__version__.rsplit(".", 1)[0]
