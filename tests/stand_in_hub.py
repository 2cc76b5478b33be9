"""A local model hub: the routes with which the client lists and downloads a data set and uploads a model, over HTTP."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class _Handler(BaseHTTPRequestHandler):
    """Answers with headers and a body, and logs nothing."""

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serve(files: dict[str, bytes], name: str = "owner/set") -> Iterator[tuple[str, list[Any]]]:
    """A context that serves a data set. Yields the address, and the headers of all requests."""
    heard: list[Any] = []

    class Handler(_Handler):
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

    with _served(Handler) as address:
        yield address, heard


@dataclass
class Received:
    """The uploads to a hub: files by path of each repository, whether the latest is private, and the tokens of requests."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: bool | None = None
    tokens: set[str] = field(default_factory=set)

    @property
    def files(self) -> dict[str, bytes]:
        """The files of all repositories."""
        return {path: content for files in self.repositories.values() for path, content in files.items()}


@contextmanager
def receive(name: str = "owner/model", token: str = "hf_good") -> Iterator[tuple[str, Received]]:
    """A context that accepts uploads with the token to the repository of a model, or to all that match a name such as owner/*.
    Yields the address and the uploads.
    """
    received = Received()

    class Handler(_Handler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
            received.tokens.add(bearer)
            path = self.path.partition("?")[0]
            if bearer != token:
                return self._answer({"error": "Invalid username or password."}, 401)
            if path == "/api/repos/create":
                return self._create(json.loads(body))
            if path == "/api/validate-yaml":
                return self._answer({"warnings": [], "errors": []})
            repository, _, action = path.removeprefix("/api/models/").removesuffix("/main").rpartition("/")
            if fnmatchcase(repository, name) and action == "preupload":
                return self._modes(json.loads(body))
            if fnmatchcase(repository, name) and action == "commit":
                return self._commit(repository, body)
            return self._answer({"error": "Repository not found"}, 404)

        def _create(self, asked: dict[str, Any]) -> None:
            received.private = asked.get("private", asked.get("visibility") == "private")
            wanted = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            if not fnmatchcase(wanted, name):
                return self._answer({"error": f"You don't have the rights to create {wanted}"}, 403)
            return self._answer({"url": f"http://{self.headers['Host']}/{wanted}", "name": wanted, "id": "1"})

        def _modes(self, asked: dict[str, Any]) -> None:
            usual = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            self._answer({"files": [{"path": file["path"], **usual} for file in asked["files"]]})

        def _commit(self, repository: str, body: bytes) -> None:
            files = received.repositories.setdefault(repository, {})
            for entry in map(json.loads, body.splitlines()):
                if entry["key"] == "file":
                    files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            url = f"http://{self.headers['Host']}/{repository}/commit/{COMMIT}"
            self._answer({"commitUrl": url, "commitOid": COMMIT, "success": True})

        def _answer(self, answer: dict[str, Any], status: int = 200) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with _served(Handler) as address:
        yield address, received


@contextmanager
def _served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serve_model(files: dict[str, bytes], name: str = "owner/model") -> Iterator[str]:
    """A context that serves the files of a model. Yields the address."""

    class Handler(_Handler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            _, found, file = path.partition(f"/{name}/resolve/main/")
            if found and file in files:
                body, headers = files[file], {"ETag": f'"{len(files[file]):x}"', "X-Repo-Commit": COMMIT}
                self._answer(200, body, headers)
            else:
                self._answer(404, b"", {"X-Error-Code": "EntryNotFound" if found else "RepoNotFound"})

        do_HEAD = do_GET  # noqa: N815

    with _served(Handler) as address:
        yield address
