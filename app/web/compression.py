"""Gzipped bodies for clients that accept them."""

import gzip
from collections.abc import Mapping

from fastapi.responses import Response

_GZIP, _LEVEL = "gzip", 5
_LEAST = 1000  # bytes; a smaller body hardly shrinks


def packed(body: bytes) -> bytes:
    """The body gzipped, with the same bytes for the same content."""
    return gzip.compress(body, compresslevel=_LEVEL, mtime=0)


def is_worthwhile(body: bytes, accept_encoding: str) -> bool:
    """True if the client accepts gzip and the body is not small."""
    return _GZIP in accept_encoding and len(body) > _LEAST


def response(body: bytes, accept_encoding: str, media_type: str, headers: Mapping[str, str]) -> Response:
    """A response with a body that is gzipped, which is unpacked for a client that does not accept gzip."""
    headers = {**headers, "Vary": "Accept-Encoding"}
    if _GZIP in accept_encoding:
        headers["Content-Encoding"] = _GZIP
    else:
        body = gzip.decompress(body)
    return Response(body, media_type=media_type, headers=headers)
