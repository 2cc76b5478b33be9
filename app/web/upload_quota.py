"""Middleware: what pages upload counts against the disk space that its user may use, until a handler takes it."""

from collections import Counter
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.access import callers, uploads
from app.web.security import error
from worker import disk_quota

UPLOAD = "/gradio_api/upload"


class UploadQuota:
    """Refuses an upload that has no place beside the user's data sets, runs, earlier uploads, and those under way."""

    def __init__(self, app: ASGIApp, folder: Path) -> None:
        self.app, self.folder = app, folder
        self._under_way: Counter[str] = Counter()  # declared bytes, by user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"].rstrip("/") != UPLOAD:
            return await self.app(scope, receive, send)
        user, declared = callers.current().name, Headers(scope=scope).get("content-length")
        length = int(declared or 0)
        self._under_way[user] += length  # before it is asked, so that two at once count each other
        try:
            refusal = await run_in_threadpool(self._refusal, user, is_measured=declared is not None)
            await (refusal or self.app)(scope, receive, send)
        finally:
            self._under_way[user] -= length
            self._under_way += Counter()  # drops counts of 0

    def _refusal(self, user: str, *, is_measured: bool) -> Response | None:
        quota = disk_quota.measured(user)
        if quota.limit is None:
            return None
        if not is_measured:
            return error(411, "content-length", None, "is missing.", "Send the length of the file.")
        wanted = self._under_way[user] + uploads.bytes_of(user, self.folder)
        message = quota.refusal(wanted)
        return error(422, "file", None, message, disk_quota.FIX) if message else None
