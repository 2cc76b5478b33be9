"""Uploads a result to a model hub. The token comes from the environment only; it is never stored or printed."""

import os
from pathlib import Path

from training.errors import UserError


def token() -> str | None:
    """The hub's token, from HF_TOKEN."""
    return os.environ.get("HF_TOKEN") or None


def push(folder: Path, repo: str, *, private: bool, secret: str | None) -> str:
    """Uploads the files of `folder` to the hub repository `repo`; returns its address. A new repository is `private`.

    Raises:
        UserError: there is no token, the hub refuses the request, or it cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if not secret:
        raise UserError("push_to_hub", repo, "needs a hub token.", "Set HF_TOKEN to a token with write access.")
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=secret)
    try:
        address = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(repo_id=address.repo_id, folder_path=folder, commit_message="Trained with Lathe")
    except HFValidationError:
        raise UserError("push_to_hub", repo, "is not a valid repository name.", "Write owner/name.") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no status"
        fix = (
            "Check the name, and that the token has write access." if status in (401, 403, 404) else "Try again later."
        )
        raise UserError("push_to_hub", repo, f"was refused by the hub ({status}): {_last_line(error)}", fix) from None
    except Exception as error:  # the client's HTTP library depends on its version
        where = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        raise UserError(
            "push_to_hub", repo, f"could not be reached at {where} ({type(error).__name__}).", "Try again later."
        ) from None
    return str(address)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
