"""Files in a run's folder, for tests that delete or measure them."""

from training.run_folder import checkpoints
from training.run_folder.paths import checkpoint_dir, checkpoint_step, checkpoints_dir
from worker.settings import get_settings


def folder_of(run_id):
    return get_settings().runs_dir / run_id


def checkpoint(run_id, step, size=1000):
    """A complete checkpoint: weights of `size` bytes and the manifest."""
    folder = checkpoint_dir(folder_of(run_id), step)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * size)
    checkpoints.seal(folder)
    return folder


def result(run_id, size=500):
    """An adapter."""
    folder = folder_of(run_id) / "adapter"
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"x" * size)


def steps_of(run_id):
    """The steps of the run's complete checkpoints."""
    found = checkpoints.sealed(folder_of(run_id)) if checkpoints_dir(folder_of(run_id)).is_dir() else []
    return sorted(checkpoint_step(path) for path in found)
