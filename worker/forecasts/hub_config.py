"""The config.json of a model on the hub, with which its memory is forecast before its weights are downloaded.

No token is sent: users of the pages must not read what only the server's owner may read.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from training.model_info.config_json import ModelError
from worker.allowed_paths import HUB_ID
from worker.settings import get_settings

_MOST_BYTES = 2**20
_ANSWER_SECONDS = 15
_FIX = "Download its config.json (the weights are not needed) and give the folder or the file."


def known(model: str, revision: str | None = None) -> Path | None:
    """The config.json of a hub model that was fetched, or that the hub's client has in its cache; None if there is none."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if not HUB_ID.fullmatch(model):
        return None
    own = _place(model, revision)
    if own.is_file():
        return own
    try:
        cached = try_to_load_from_cache(model, "config.json", revision=revision)
    except HFValidationError:  # stricter than our pattern
        return None
    return Path(cached) if isinstance(cached, str) else None


def config_file(model: str, revision: str | None = None) -> Path:
    """The config.json of a model in a folder, of the file itself, or of a hub model if it was fetched.

    Raises:
        ModelError: there is none.
    """
    path = Path(model).expanduser()
    config = path / "config.json" if path.is_dir() else path
    if not config.is_file() and (fetched := known(model, revision)):
        return fetched
    if not config.is_file():
        raise ModelError(model, "the model is not on this machine.", _FIX)
    return config


def fetch(model: str, revision: str | None = None) -> Path:
    """Downloads a model's config.json.

    Raises:
        ModelError: the hub does not answer, or has no such public model or file.
    """
    from huggingface_hub import HfApi, errors, hf_hub_url

    endpoint = os.environ.get("HF_ENDPOINT")
    api: Any = HfApi(endpoint=endpoint, token=False)
    if not HUB_ID.fullmatch(model):
        raise ModelError(model, "is not a hub id.", "Write owner/name.")
    try:
        url = hf_hub_url(model, "config.json", revision=revision, endpoint=endpoint)
        size = api.get_hf_file_metadata(url=url, timeout=_ANSWER_SECONDS).size or 0
        if size > _MOST_BYTES:
            raise ModelError(model, f"its config.json has {size:,} bytes.", _FIX)
        with tempfile.TemporaryDirectory(dir=get_settings().data_dir) as folder:
            path = Path(api.hf_hub_download(model, "config.json", revision=revision, local_dir=folder))
            place = _place(model, revision)
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.move(path, place)
        return place
    except ModelError:
        raise
    except errors.GatedRepoError:
        raise ModelError(model, "is gated: its owner must grant access.", _FIX) from None
    except errors.EntryNotFoundError:
        raise ModelError(model, "has no config.json.", "Give a model in the format of transformers.") from None
    except errors.RevisionNotFoundError:
        raise ModelError(model, "has no such revision.", "Leave the revision empty for the main branch.") from None
    except errors.RepositoryNotFoundError:
        raise ModelError(model, "is not a public model on the hub.", "Check its owner and name.") from None
    except Exception as error:  # of the client and of its HTTP library, which differ by version
        if not isinstance(error, OSError) and not type(error).__module__.startswith(("httpx", "httpcore", "requests")):
            raise
        where = endpoint or "https://huggingface.co"
        raise ModelError(
            model, f"cannot be downloaded: {where} does not answer ({type(error).__name__}).", _FIX
        ) from None


def _place(model: str, revision: str | None) -> Path:
    name = f"{model}@{revision or 'main'}".replace("/", "--")
    return get_settings().data_dir / "model-configs" / name / "config.json"
