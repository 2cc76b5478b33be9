"""A hub of our own: the routes by which its client lists and downloads a data set, over real HTTP."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serve(files: dict[str, bytes], name: str = "owner/set") -> Iterator[tuple[str, list[Any]]]:
    """Serves a data set; its address, and the headers of all requests."""
    heard: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers)
            path = self.path.partition("?")[0]
            if path == f"/api/datasets/{name}":
                self._facts()
            elif path.startswith(f"/datasets/{name}/resolve/"):
                self._file(path.split("/", 6)[6])
            else:
                self._answer(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})

        do_HEAD = do_GET  # noqa: N815

        def _facts(self) -> None:
            siblings = [{"rfilename": path, "size": len(content)} for path, content in files.items()]
            facts = {"id": name, "sha": COMMIT, "siblings": siblings}
            self._answer(200, json.dumps(facts).encode(), {"Content-Type": "application/json"})

        def _file(self, path: str) -> None:
            if path not in files:
                return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return self._answer(200, files[path], {"ETag": f'"{abs(hash(path)):x}"', "X-Repo-Commit": COMMIT})

        def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
