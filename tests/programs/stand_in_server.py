"""Stands in for the serving program: ready at once, and waits; with "idle" or "fails" in the model's name it ends, with "note" it
says something and has a process of its own.
"""

import json
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.environ["PYTHONPATH"])

from training.ranks.stopping import die_with_parent

die_with_parent()
if "fails" in sys.argv[1]:
    error = {"field": "model", "value": sys.argv[1], "message": "cannot be loaded.", "fix": "Give another."}
    print(json.dumps({"error": error}), flush=True)
    sys.exit(1)
ready = {"port": 1, "models": []}
if "note" in sys.argv[1]:
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    ready["note"] = f"transformers answers: vllm {os.environ['LATHE_VLLM_COMMAND']}"
print(json.dumps(ready), flush=True)
if "idle" not in sys.argv[1]:
    signal.pause()
