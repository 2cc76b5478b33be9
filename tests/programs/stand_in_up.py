"""`lathe up` with a worker whose runs train with the stand-in and, with `--light`, a web server that only says it is well."""

import http.server
import os
import sys
from pathlib import Path

from worker.settings import get_settings

TESTS = Path(__file__).resolve().parents[1]


class Well(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


def serve() -> None:
    settings = get_settings()
    http.server.HTTPServer((settings.host, settings.port), Well).serve_forever()


def main(arguments: list[str]) -> int:
    from app.local import services, up
    from worker.queue.tasks import worker_command

    words = worker_command()
    words[words.index("worker.queue.tasks")] = "programs.stand_in_worker"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(services.ROOT)])
    up.worker_command = lambda: words
    if "--light" in arguments:
        whole = up.python_service
        web = [sys.executable, __file__, "serve"]
        up.python_service = lambda name, argv, *rest: whole(name, web if name == "web server" else argv, *rest)
    return up.up(get_settings())


if __name__ == "__main__":
    serve()
