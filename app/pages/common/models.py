"""The model folder that a name stands for."""

from worker.settings import ROOT


def local_model(model: str) -> str:
    """The folder of this name in Lathe's own folder if there is one, else the name (a hub id or a path)."""
    try:
        return str(ROOT / model) if (ROOT / model).is_dir() else model
    except (OSError, ValueError):  # no valid folder name
        return model
