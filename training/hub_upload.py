"""Pushing a result to a model hub. The token is taken from the environment alone, and neither kept nor told."""

import os
from pathlib import Path

from training.failure import UserError


def token() -> str | None:
    """The hub's token: HF_TOKEN."""
    return os.environ.get("HF_TOKEN") or None


def push(folder: Path, repo: str, *, private: bool, secret: str | None) -> str:
    """Uploads the files of `folder` to the hub's repository `repo`, made `private` where it is new; its address.

    Raises:
        UserError: there is no token, or the hub refuses it, the name or the files, or does not answer.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if not secret:
        raise UserError("push_to_hub", repo, "needs a token of the hub.", "Set HF_TOKEN to one that may write.")
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=secret)
    try:
        made = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="Trained with Lathe")
    except HFValidationError:
        raise UserError("push_to_hub", repo, "is no name of a repository.", "Write owner/name.") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no status"
        fix = "Check the name, and that the token may write there." if status in (401, 403, 404) else "Try again later."
        raise UserError("push_to_hub", repo, f"was refused by the hub ({status}): {_said(error)}", fix) from None
    except Exception as error:  # of the libraries under the client, which differ by version
        where = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        raise UserError(
            "push_to_hub", repo, f"could not be reached at {where} ({type(error).__name__}).", "Try again later."
        ) from None
    return str(made)


def _said(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
