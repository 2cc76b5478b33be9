"""Identifies the caller of a request: by a token, by a trusted proxy's header, or by the local user of the connection."""

import asyncio
import os
from collections import Counter
from ipaddress import IPv4Network, IPv6Network, ip_network

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Scope

from app.access import server_token
from app.access.callers import Caller
from app.access.peers import PEER_UID, names_loopback, plain
from worker.settings import Settings
from worker.store import accounts, database
from worker.store.tables import LOCAL, Account

BAD_TOKEN_SECONDS = 1.0
_AT_ONCE = 8
_FORWARDED = ("forwarded", "via", "x-real-ip")


class BadToken(Exception):  # noqa: N818
    """An invalid token or proxy user; `too_many` if there were too many at once to delay the answer."""

    def __init__(self, *, too_many: bool = False) -> None:
        self.too_many = too_many


class Identity:
    """Identifies callers by the installation's settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cookie = server_token.cookie_name(settings)
        self._proxies = _proxies(settings.trusted_proxies)
        uids = (None, os.geteuid())
        self._proxied_here = any(uid in uids and _covers_loopback(network) for network, uid in self._proxies)
        self._waiting: Counter[str] = Counter()

    async def of(self, scope: Scope) -> Caller | None:
        """The caller of the request; None if it names nobody.

        Raises:
            BadToken: its token or its user name is invalid.
        """
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return await self.of_token(scope, token.strip())
        if name := self._named_by_proxy(scope, headers):
            return await self._of_name(name)
        cookie = cookie_parser(headers.get("cookie", "")).get(self._cookie)
        if cookie and (caller := await self._known(cookie)):
            return caller
        return Caller() if self._is_own(scope, headers) else None

    async def of_token(self, scope: Scope, token: str) -> Caller:
        """The caller with this token. Answers to invalid tokens are delayed, and limited per address.

        Raises:
            BadToken: the token is invalid.
        """
        caller = await self._known(token)
        if caller is not None:
            return caller
        address = str(scope["client"][0]) if scope.get("client") else ""
        if self._waiting[address] >= _AT_ONCE:
            raise BadToken(too_many=True)
        self._waiting[address] += 1
        try:
            await asyncio.sleep(BAD_TOKEN_SECONDS)
        finally:
            self._waiting[address] -= 1
            self._waiting += Counter()  # drops addresses with a count of 0
        raise BadToken

    def is_trusted_proxy(self, scope: Scope) -> bool:
        """True if the request comes directly from a trusted proxy."""
        address = plain(scope["client"][0]) if scope.get("client") else None
        peer = scope.get("state", {}).get(PEER_UID)
        return address is not None and any(address in network and uid in (None, peer) for network, uid in self._proxies)

    def _named_by_proxy(self, scope: Scope, headers: Headers) -> str:
        header = self._settings.proxy_user_header
        names = headers.getlist(header) if header and self.is_trusted_proxy(scope) else []
        if len(names) > 1:  # the proxy adds the header without removing the browser's
            raise BadToken
        return names[0].strip() if names else ""

    async def _of_name(self, name: str) -> Caller:
        if name == LOCAL or not accounts.NAME.fullmatch(name):
            raise BadToken
        account = await run_in_threadpool(_account_named, name)
        return Caller(name, account.admin if account else False, here=False)

    async def _known(self, token: str) -> Caller | None:
        if not token or len(token) > 1000:
            return None
        if server_token.is_server_token(self._settings, token):
            return Caller(here=False)
        account = await run_in_threadpool(_account_of, token)
        return Caller(account.name, account.admin, here=False) if account else None

    def _is_own(self, scope: Scope, headers: Headers) -> bool:
        """True if the server's own user sends it from this machine, and no proxy forwards it."""
        forwarded = any(name in _FORWARDED or name.startswith("x-forwarded-") for name in headers)
        header = self._settings.proxy_user_header.lower()
        if forwarded or (header and header in headers) or self._proxied_here:
            return False
        peer = scope.get("state", {}).get(PEER_UID)
        return peer is not None and peer == os.geteuid() and names_loopback(headers.get("host", ""))


def _account_of(token: str) -> Account | None:
    with database.read() as session:
        return accounts.of_token(session=session, token=token)


def _account_named(name: str) -> Account | None:
    with database.read() as session:
        return accounts.find(session=session, name=name)


def _proxies(text: str) -> list[tuple[IPv4Network | IPv6Network, int | None]]:
    """The networks of trusted proxies, each with the user id that the proxy must have on this machine, or None."""
    parts = (part.strip().partition("@") for part in text.split(",") if part.strip())
    return [(ip_network(address, strict=False), int(uid) if uid else None) for address, _, uid in parts]


def _covers_loopback(network: IPv4Network | IPv6Network) -> bool:
    return network.is_loopback or network.supernet_of(ip_network("127.0.0.0/8" if network.version == 4 else "::1/128"))  # type: ignore[arg-type]
