"""Fetches models of the Hugging Face hub once, and keeps them in the user's cache as ordinary Hugging Face folders.

`HF_ENDPOINT` names another hub or a mirror, `HF_TOKEN` opens private and gated models. A model that is in the cache is
used without asking the hub.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from rollweave.config.job import HubModel
from rollweave.errors import ModelError
from rollweave.policies.smollm2 import cache_folder

ENDPOINT = "https://huggingface.co"
WANTED = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
"""The files to fetch: configuration, weights, chat template and tokenizer, but no weights in other formats."""


def ensure(model: HubModel, check_config: Callable[[Path], None]) -> Path:
    """Return the model's folder in the cache. `check_config` is called with config.json before weights are fetched."""
    folder = _cached(model)
    if not folder.is_dir():
        workplace = folder.with_name(f".fetching-{folder.name}")  # an interrupted fetch is continued here
        with _explained(model):
            _fetch(model, workplace, check_config)
            _publish(workplace, folder)
    return folder


def _cached(model: HubModel) -> Path:
    return cache_folder() / "hub" / f"{model.name}@{model.revision}".replace("/", "--")


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")


def _fetch(model: HubModel, workplace: Path, check_config: Callable[[Path], None]) -> None:
    from huggingface_hub import HfApi

    hub = HfApi(endpoint=_endpoint(), token=os.environ.get("HF_TOKEN"))
    found = hub.model_info(model.name, revision=model.revision)
    names = [file.rfilename for file in found.siblings or () if any(fnmatch(file.rfilename, kind) for kind in WANTED)]
    here = sorted((name for name in names if "/" not in name), key=lambda name: (name != "config.json", name))
    if "config.json" not in here or not any(name.endswith(".safetensors") for name in here):
        raise ModelError(
            f"model {model.name} at {_endpoint()} has no config.json with *.safetensors weights beside it, so it "
            "cannot be loaded: choose a model in the format of transformers"
        )
    for name in here:
        hub.hf_hub_download(model.name, name, revision=found.sha, local_dir=workplace)
        if name == "config.json":
            check_config(workplace)


def _publish(workplace: Path, folder: Path) -> None:
    """Rename the folder to its final name, so that it appears complete or not at all."""
    shutil.rmtree(workplace / ".cache", ignore_errors=True)  # files that the hub's library leaves there
    try:
        workplace.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process has fetched the same copy
            raise
        shutil.rmtree(workplace, ignore_errors=True)


@contextmanager
def _explained(model: HubModel) -> Iterator[None]:
    """Turn errors between this machine and the hub into a sentence with a fix."""
    from httpx2 import HTTPError
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        page = f"{_endpoint()}/{model.name}"
        why = f"is gated: accept its conditions at {page}, then set HF_TOKEN to a token of that account"
        raise _refused(model, why) from error
    except errors.RevisionNotFoundError as error:
        raise _refused(model, f"has no revision {model.revision!r}: change or remove model.revision") from error
    except errors.RepositoryNotFoundError as error:
        why = "was not found, or is private: check its name; for a private model set HF_TOKEN"
        raise _refused(model, why) from error
    except (HTTPError, errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        fix = "check the network and HF_HUB_OFFLINE, or set HF_ENDPOINT to a hub or mirror that this machine reaches"
        raise _refused(model, f"could not be fetched ({first_line}): {fix}") from error
    except OSError as error:
        raise ModelError(
            f"model {model.name}: cannot write {_cached(model)} ({error.strerror or error}); free space there or set "
            "XDG_CACHE_HOME to a folder that can be written"
        ) from error


def _refused(model: HubModel, why: str) -> ModelError:
    folder = f"./{model.name.rpartition('/')[2]}"
    return ModelError(
        f"model {model.name} {why}. Tried: the cache ({_cached(model)}), then the hub at {_endpoint()}. Without the "
        f"hub, copy the model's folder to this machine and name it: model: {folder}"
    )
