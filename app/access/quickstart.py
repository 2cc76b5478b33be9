"""The sample run: the starter model learns to write orders as JSON, in about a minute on two CPU cores."""

from app.access import callers
from training.config.data_sets import FIELDS
from training.config.yaml_file import read_config
from worker.datasets import datasets
from worker.runs import submit
from worker.settings import ROOT
from worker.store.tables import Run

STARTER = ROOT / "static" / "starter"
CONFIG = STARTER / "quickstart.yaml"


def start() -> Run:
    """Queues the sample run for the caller; its data are stored as data sets.

    Raises:
        ConfigError: the run is refused, for example because the disk is full.
        DataError: the sample data cannot be read.
    """
    caller, config = callers.current(), read_config(CONFIG)
    stored = {
        name: datasets.add_file(path=ROOT / path, name=(ROOT / path).name, owner=caller.name).id
        for name in FIELDS
        if (path := getattr(config, name))
    }
    config = config.model_copy(update={**stored, "model": str(ROOT / config.model)})
    return submit.submit(config, allowed=caller.allowed, owner=caller.name)
