"""The addresses that notifications may be sent to.

A webhook makes this machine send a request. The user who runs the server and admins may name any address. Other users may only
name https addresses that resolve to public ones, so that they cannot reach services of the internal network, or a host in
LATHE_WEBHOOK_HOSTS. The rule is applied when a channel is added and again to each connection: names can change.
"""

import re
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from training.errors import UserError
from worker.settings import get_settings
from worker.store.tables import WebhookFormat

LONGEST = 2000
_EMAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?")
_FORMATS = {
    "hooks.slack.com": WebhookFormat.SLACK,
    "discord.com": WebhookFormat.DISCORD,
    "discordapp.com": WebhookFormat.DISCORD,
    "ntfy.sh": WebhookFormat.NTFY,
}
_NAT64 = "64:ff9b::"
_GLOBAL_UNICAST = IPv6Network("2000::/3")  # IANA assigns public addresses from it only (RFC 4291, RFC 3587)
_DOCUMENTATION = IPv6Network("3fff::/20")  # RFC 9637; Python 3.11 takes it for public


class AddressError(UserError):
    """The address cannot be used for notifications."""


class NotAllowed(Exception):  # noqa: N818
    """The address is not public; the message says why, as a sentence."""


@dataclass(frozen=True)
class Webhook:
    """A webhook's URL in parts. `free`: it may be at any address."""

    url: str
    host: str
    port: int
    free: bool


def is_email(address: str) -> bool:
    """True if it is meant to be an e-mail address and not a URL."""
    return "@" in address and "://" not in address


def email(address: str) -> str:
    """The e-mail address. Raises AddressError if it is none."""
    address = address.strip()
    if not _EMAIL.fullmatch(address) or ".." in address:
        raise AddressError("address", address[:100], "is not an e-mail address.", "Enter one like name@example.org.")
    return address


def webhook(url: str, *, trusted: bool) -> Webhook:
    """The parts of a webhook's URL; the name is not resolved yet.

    Raises:
        AddressError: it is no URL, or an ordinary user may not use it.
    """
    url = url.strip()
    parts = _parts(url)
    host = parts[1]
    free = trusted or host in _allowed_hosts()
    if parts[0] != "https" and not free:
        raise AddressError("address", masked(url), "is not encrypted.", "Use https, or ask an admin to add it.")
    return Webhook(url, host, parts[2], free)


def check_reachable(hook: Webhook) -> None:
    """Checks that the host exists and may be reached. Raises AddressError if it does not, or may not."""
    try:
        resolved(hook.host, hook.port, free=hook.free)
    except NotAllowed as error:
        fix = "Use a public address, or ask an admin to add it or to list its host in LATHE_WEBHOOK_HOSTS."
        raise AddressError("address", masked(hook.url), str(error), fix) from None
    except OSError:
        message = f"names the host {hook.host}, which cannot be resolved on this server."
        raise AddressError("address", masked(hook.url), message, "Check the address.") from None


def resolved(host: str, port: int, *, free: bool) -> list[str]:
    """The IP addresses of a host, each checked unless the host is `free`.

    Raises:
        OSError: the host cannot be resolved.
        NotAllowed: one of its addresses is not public.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for address in addresses:
        if not free and not is_public(address):
            raise NotAllowed(f"leads to {host}, which is not at a public address.")
    return addresses


def is_public(address: str) -> bool:
    """True if everybody on the internet can reach the IP address: not private, loopback, link-local, shared or multicast."""
    found: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if str(found).startswith(_NAT64):
            inner = IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if found not in _GLOBAL_UNICAST or found in _DOCUMENTATION:
            return False
    return found.is_global and not found.is_multicast


def guessed_format(url: str) -> WebhookFormat:
    """The format that the host of a webhook expects; JSON for unknown hosts."""
    return _FORMATS.get((urlsplit(url.strip()).hostname or "").lower(), WebhookFormat.JSON)


def masked(address: str) -> str:
    """An address for display: of a webhook only the host and the last four characters, because the rest is its secret."""
    if is_email(address):
        return address
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        place = f"{host}:{parts.port}" if parts.port else host
    except ValueError:
        return "…"
    rest = address.partition("://")[2].partition("/")[2]
    return f"{parts.scheme}://{place}/…{rest[-4:] if len(rest) >= 16 else ''}"


def _parts(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL. Raises AddressError if it is no http or https URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        good = parts.scheme in ("http", "https") and parts.hostname and not parts.username
        good = good and parts.port != 0 and len(url) <= LONGEST
    except ValueError:
        good = False
    if not good or not re.fullmatch(r"[\x21-\x7e]+", url):
        fix = "Enter a URL such as https://hooks.slack.com/services/..., or an e-mail address."
        raise AddressError(
            "address", url[:12] + ("…" if len(url) > 12 else ""), "is neither a URL nor an e-mail address.", fix
        )
    return parts.scheme, str(parts.hostname).lower(), port


def _allowed_hosts() -> set[str]:
    return {host.strip().lower() for host in get_settings().webhook_hosts.split(",") if host.strip()}


class NotSent(Exception):  # noqa: N818
    """The message was not accepted. `final`: trying again is useless. `wait`: seconds that the receiver asked to wait."""

    def __init__(self, reason: str, *, final: bool = False, wait: float | None = None) -> None:
        super().__init__(reason)
        self.final, self.wait = final, wait
