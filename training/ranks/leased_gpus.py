"""Whether torch sees the GPUs that the run leased."""

import os

import torch

from training.errors import UserError
from training.run_folder.paths import LEASED_GPUS_VARIABLE


def device() -> torch.device:
    """The kind of device to compute on.

    Raises:
        UserError: as `check`.
    """
    check()
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def check() -> None:
    """Refuses to compute on the CPU without a word while the leased GPUs stay idle.

    Raises:
        UserError: torch sees fewer GPUs than were leased; with the reason that CUDA gives.
    """
    leased = int(os.environ.get(LEASED_GPUS_VARIABLE) or 0)
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if seen < leased:
        message = f"torch {torch.__version__} sees {seen} of {leased} leased GPUs: {_reason()}"
        fix = "Check nvidia-smi, the driver's version, and that the container gets the GPUs; then resume the run."
        raise UserError("devices", os.environ.get("CUDA_VISIBLE_DEVICES"), message, fix)


def _reason() -> str:
    """Why CUDA does not start."""
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch was built without CUDA; install one with CUDA."
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return f"{str(error).strip().splitlines()[0].rstrip('.')}."
    return "the others are missing."
