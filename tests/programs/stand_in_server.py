"""Stands in for the serving program: ready at once, and waits; with "idle" or "fails" in the model's name it ends."""

import json
import os
import signal
import sys

sys.path.insert(0, os.environ["PYTHONPATH"])

from training.ranks.stopping import die_with_parent

die_with_parent()
if "fails" in sys.argv[1]:
    error = {"field": "model", "value": sys.argv[1], "message": "cannot be loaded.", "fix": "Give another."}
    print(json.dumps({"error": error}), flush=True)
    sys.exit(1)
print(json.dumps({"port": 1, "models": []}), flush=True)
if "idle" not in sys.argv[1]:
    signal.pause()
