"""Stands in for the serving program: ready at once, and answers requests to /v1 when the file that they name exists; with "idle" or
"fails" in the model's name it ends, with "note" it says something and has a process of its own, with "refuses" it loads nothing.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, os.environ["PYTHONPATH"])

from training.ranks.stopping import die_with_parent

die_with_parent()
if "fails" in sys.argv[1]:
    error = {"field": "model", "value": sys.argv[1], "message": "cannot be loaded.", "fix": "Give another."}
    print(json.dumps({"error": error}), flush=True)
    sys.exit(1)


class Handler(BaseHTTPRequestHandler):
    """Counts the requests that it answers."""

    pending = answered = 0
    drains = False
    lock = threading.Lock()

    def do_GET(self):
        """/health; since no request came, an hour has passed."""
        self.answer(200, {"pending": Handler.pending, "answered": Handler.answered, "idle_seconds": 3600.0})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
        if self.path == "/drain":
            Handler.drains = True
        if self.path == "/load":
            return self.answer(422 if "refuses" in sys.argv[1] else 200, body)
        if self.path.startswith("/v1"):
            self.complete(Path(body["prompt"]))
        return self.answer(200, body)

    def complete(self, file):
        with Handler.lock:
            Handler.pending += 1
        while not file.exists():
            time.sleep(0.02)
        with Handler.lock:
            Handler.pending, Handler.answered = Handler.pending - 1, Handler.answered + 1

    def answer(self, status, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Nothing."""


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
ready = {"port": server.server_address[1], "models": []}
if "note" in sys.argv[1]:
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    ready["note"] = f"transformers answers: vllm {os.environ['LATHE_VLLM_COMMAND']}"
print(json.dumps(ready), flush=True)
if "idle" not in sys.argv[1]:
    signal.pause()
