"""The process that forks web servers imports this: it makes an application once (tests/forked_server.py)."""

import tempfile

from app.server import create_app
from worker.settings import Settings, get_settings

with tempfile.TemporaryDirectory() as folder:
    create_app(Settings.model_validate({"data_dir": folder}))
get_settings.cache_clear()
