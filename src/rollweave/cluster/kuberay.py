"""KubeRay manifests of a cluster file: each pool becomes a worker group, whose Ray nodes have the labels of the pool.

    python -m rollweave.cluster.kuberay RayCluster|RayJob CLUSTER.yaml IMAGE [NAME [QUEUE]]

prints a `RayCluster`, which stays, or a `RayJob`, which brings a cluster of its own. A test compares both with
KubeRay's schemas. They were not applied to a Kubernetes cluster here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from rollweave.config.cluster import ClusterConfig, Pool
from rollweave.config.load import load_file
from rollweave.errors import ConfigError

KubeManifest = dict[str, Any]

RAY_VERSION = "2.60.0"
"""Of the image; it has to be the one that Rollweave is tested with."""

DEVICE_LABEL = "rollweave.io/device"
"""Says on a Kubernetes node which device class its GPUs are; pods of a GPU pool go to such nodes."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

JOB_FOLDER, RUNS_FOLDER = "/job", "/runs"

CPUS_PER_GPU = 8
MEMORY_PER_GPU = 64
"""GiB of the machine's memory: weights are staged there."""

HEAD = {"cpu": "4", "memory": "16Gi"}
"""The driver runs on the head, and nothing else does."""


def ray_cluster(cluster: ClusterConfig, image: str, name: str = "rollweave", queue: str | None = None) -> KubeManifest:
    """A cluster that stays. `queue`: Kueue's queue that it waits in."""
    return _manifest("RayCluster", name, queue) | {"spec": _cluster_spec(cluster, image, name)}


def ray_job(cluster: ClusterConfig, image: str, name: str = "rollweave", queue: str | None = None) -> KubeManifest:
    """A job with a cluster of its own, which goes when the job has ended."""
    words = f"{JOB_FOLDER}/job.yaml cluster={JOB_FOLDER}/cluster.yaml runtime.address=auto --out {RUNS_FOLDER}/{name}"
    spec = {
        "entrypoint": f"rollweave train {words}",
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 600,
        "rayClusterSpec": _cluster_spec(cluster, image, name),
    }
    return _manifest("RayJob", name, queue) | {"spec": spec}


def _manifest(kind: str, name: str, queue: str | None) -> KubeManifest:
    labels = {"labels": {QUEUE_LABEL: queue}} if queue is not None else {}
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": name, **labels}}


def _cluster_spec(cluster: ClusterConfig, image: str, name: str) -> KubeManifest:
    pools = [pool for pool in cluster.pools if cluster.device(pool).kind != "function"]  # those run elsewhere
    return {
        "rayVersion": RAY_VERSION,
        "authOptions": {"mode": "token"},
        "headGroupSpec": _head(image, name),
        "workerGroupSpecs": [_worker_group(cluster, pool, image) for pool in pools],
    }


def _head(image: str, name: str) -> KubeManifest:
    """With the job's files from a ConfigMap, and a volume for its run folder."""
    mounts = [{"name": "job", "mountPath": JOB_FOLDER}, {"name": "runs", "mountPath": RUNS_FOLDER}]
    volumes = [
        {"name": "job", "configMap": {"name": f"{name}-job"}},
        {"name": "runs", "persistentVolumeClaim": {"claimName": f"{name}-runs"}},
    ]
    container = {"name": "ray-head", "image": image, "resources": _exactly(HEAD), "volumeMounts": mounts}
    return {"rayStartParams": {"num-cpus": "0"}, "template": {"spec": {"containers": [container], "volumes": volumes}}}


def _worker_group(cluster: ClusterConfig, pool: Pool, image: str) -> KubeManifest:
    device, each = cluster.device(pool), _devices_per_pod(cluster, pool)
    pods = pool.count // each
    if device.kind == "gpu":
        sizes = {
            "cpu": str(CPUS_PER_GPU * each),
            "memory": f"{MEMORY_PER_GPU * each}Gi",
            "nvidia.com/gpu": str(each),
        }
    else:
        cores = each * (device.measured.threads if device.measured is not None else 1)
        sizes = {"cpu": str(cores), "memory": f"{round(device.memory * each)}Gi"}
    pod: KubeManifest = {"containers": [{"name": "ray-worker", "image": image, "resources": _exactly(sizes)}]}
    if device.kind == "gpu":
        pod["nodeSelector"] = {DEVICE_LABEL: pool.device}
    return {
        "groupName": pool.name,
        "replicas": pods,
        "minReplicas": pods,
        "maxReplicas": pods,
        "labels": pool.node_labels | {"device": pool.device},
        "rayStartParams": {},
        "template": {"spec": pod},
    }


def _devices_per_pod(cluster: ClusterConfig, pool: Pool) -> int:
    """As many as a machine has, in equal pods, and whole engines in each."""
    most = cluster.device(pool).devices_per_node
    fitting = [n for n in range(1, most + 1) if pool.count % n == 0 and n % pool.tensor_parallel == 0]
    if not fitting:
        raise ConfigError(
            f"pool {pool.name}: an engine of {pool.tensor_parallel} devices (tensor_parallel) does not fit on a "
            f"machine with {most} x {pool.device}: lower tensor_parallel, or give the device more devices_per_node"
        )
    return max(fitting)


def _exactly(sizes: dict[str, str]) -> KubeManifest:
    """Requests and limits: neither more nor less."""
    return {"requests": sizes, "limits": sizes}


class _Plain(yaml.SafeDumper):
    """Writes what occurs twice twice, as a person would."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


HEADER = """\
# Made by `python -m rollweave.cluster.kuberay`. Checked against KubeRay's schema; not applied to a cluster here.
"""


def text_of(manifest: KubeManifest) -> str:
    return HEADER + yaml.dump(manifest, Dumper=_Plain, sort_keys=False, width=120)


MAKERS = {"RayCluster": ray_cluster, "RayJob": ray_job}

if __name__ == "__main__":
    _kind, _file, *_more = sys.argv[1:]
    print(text_of(MAKERS[_kind](load_file(Path(_file), ClusterConfig), *_more)), end="")
