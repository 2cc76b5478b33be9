"""A judge: a real HTTP server that speaks the API of chat completions."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class JudgeServer(ThreadingHTTPServer):
    """Answers with `replies` in turn, and keeps what it received. A reply is (status, text)."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.received, self.keys, self.replies = [], [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.received.append((self.path, body))
        self.server.keys.append(self.headers.get("Authorization"))
        status, text = self.server.replies.pop(0) if self.server.replies else (200, self._graded(body))
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if status == 302:
            self.send_header("Location", "http://127.0.0.1:1/")
        self.end_headers()
        self.wfile.write(content)

    def _graded(self, body):
        good = "right" in body["messages"][0]["content"]
        return json.dumps({"choices": [{"message": {"content": f'It is fine. {{"score": {10 if good else 2}}}'}}]})

    def log_message(self, *_):
        pass
