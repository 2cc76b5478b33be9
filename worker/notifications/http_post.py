"""One POST request to a webhook: to checked addresses only, without redirects, within a time limit."""

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import httpcore
import httpx

from worker.notifications.addresses import NotAllowed, NotSent, Webhook, resolved

SECONDS = 20.0
"""For the whole request."""

_ANSWER_BYTES = 2000
_SHOWN = 160
_RETRIED = (408, 425, 429)
_LONGEST_WAIT = 24 * 3600.0


def post(hook: Webhook, headers: dict[str, str], body: bytes) -> None:
    """Sends the request. Raises NotSent if it was not answered with success."""
    deadline = time.monotonic() + SECONDS
    backend = _Backend(deadline, free=hook.free)
    context = httpx.create_ssl_context() if hook.url.startswith("https") else None
    try:
        with (
            httpcore.ConnectionPool(ssl_context=context, network_backend=backend) as pool,
            pool.stream(
                "POST", hook.url, headers=list(headers.items()), content=body, extensions=_timeouts()
            ) as answer,
        ):
            _check(answer, hook.host)
    except NotAllowed as error:
        raise NotSent(f"The address {error}", final=True) from None
    except httpcore.TimeoutException:
        raise NotSent(f"{hook.host} did not answer within {SECONDS:.0f} s.") from None
    except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
        raise NotSent(f"{hook.host} could not be reached: {str(error) or type(error).__name__}.") from None


def _timeouts() -> dict[str, Any]:
    return {"timeout": {"connect": SECONDS, "read": SECONDS, "write": SECONDS, "pool": SECONDS}}


def _check(answer: httpcore.Response, host: str) -> None:
    """Raises NotSent for every status but success."""
    if 200 <= answer.status < 300:
        return
    said = _beginning(answer)
    reason = f"{host} answered with status {answer.status}{f': {said}' if said else '.'}"
    if 300 <= answer.status < 400:
        raise NotSent(f"{host} redirects (status {answer.status}). Enter the final address.", final=True)
    final = 400 <= answer.status < 500 and answer.status not in _RETRIED
    raise NotSent(reason, final=final, wait=_retry_after(answer))


def _beginning(answer: httpcore.Response) -> str:
    """The first line of an answer, shortened."""
    content = b""
    with suppress(httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
        for part in answer.iter_stream():
            content += part
            if len(content) >= _ANSWER_BYTES:
                break
    text = " ".join(content[:_ANSWER_BYTES].decode("utf-8", "replace").split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _retry_after(answer: httpcore.Response) -> float | None:
    value = next((value for name, value in answer.headers if name.lower() == b"retry-after"), b"")
    return min(float(value), _LONGEST_WAIT) if value.isdigit() else None


class _Backend(httpcore.NetworkBackend):
    """Connects to the checked addresses of a host: what was checked is what is used, whatever the name resolves to later."""

    def __init__(self, deadline: float, *, free: bool) -> None:
        self._deadline, self._free, self._inner = deadline, free, httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        failure: Exception = OSError("no address")
        for address in resolved(host, port, free=self._free):
            try:
                stream = self._inner.connect_tcp(
                    address, port, _left(self._deadline, timeout), local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
            else:
                return _Timed(stream, self._deadline)
        raise failure


class _Timed(httpcore.NetworkStream):
    """A connection of which all reads and writes together end at the deadline: a slow server cannot prolong them."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: float) -> None:
        self._inner, self._deadline = inner, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(self._deadline, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, _left(self._deadline, timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        inner = self._inner.start_tls(ssl_context, server_hostname, _left(self._deadline, timeout))
        return _Timed(inner, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _left(deadline: float, timeout: float | None) -> float:
    """The seconds for the next operation. Raises ReadTimeout if there are none left."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout
    return left if timeout is None else min(left, timeout)
