"""Sends e-mail through the installation's mail server, LATHE_SMTP_URL."""

import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from urllib.parse import SplitResult, unquote, urlsplit

from training.addresses import is_loopback
from worker.notifications.addresses import NotSent
from worker.settings import Settings, get_settings

SECONDS = 15.0
"""For each command to the mail server."""

NOT_SET = "This installation sends no e-mail: LATHE_SMTP_URL is not set."


def configured(settings: Settings) -> bool:
    """True if the installation has a mail server and a sender."""
    return settings.smtp_url is not None and bool(sender(settings))


def sender(settings: Settings) -> str:
    """The sender of e-mail; empty if there is none."""
    if settings.smtp_from:
        return settings.smtp_from
    user = unquote(_server(settings).username or "")
    return user if "@" in user else ""


def send(to: str, subject: str, text: str, html: str) -> None:
    """Sends one message. Raises NotSent if the mail server did not accept it."""
    settings = get_settings()
    if settings.smtp_url is None:
        raise NotSent(NOT_SET)
    if not sender(settings):
        raise NotSent("This installation has no sender for e-mail: LATHE_SMTP_FROM is not set.")
    server = _server(settings)
    message = _message(sender(settings), to, subject, text, html)
    try:
        with _connected(server) as client:
            client.send_message(message)
    except smtplib.SMTPAuthenticationError as error:
        raise NotSent(
            f"The mail server refused the user and password of LATHE_SMTP_URL (code {error.smtp_code})."
        ) from None
    except smtplib.SMTPRecipientsRefused as error:
        code, said = next(iter(error.recipients.values()))
        raise NotSent(f"The mail server refused {to}: {code} {_line(said)}", final=code >= 500) from None
    except smtplib.SMTPResponseException as error:
        reason = f"The mail server refused the message: {error.smtp_code} {_line(error.smtp_error)}"
        raise NotSent(reason, final=error.smtp_code >= 500) from None
    except (OSError, smtplib.SMTPException) as error:
        raise NotSent(
            f"The mail server {server.hostname} could not be used: {str(error) or type(error).__name__}."
        ) from None


def _connected(server: SplitResult) -> smtplib.SMTP:
    """A connection to the mail server, encrypted and signed in as its URL says."""
    host, context = str(server.hostname), ssl.create_default_context()
    if server.scheme == "smtps":
        client: smtplib.SMTP = smtplib.SMTP_SSL(host, server.port or 465, timeout=SECONDS, context=context)
    else:
        client = smtplib.SMTP(host, server.port or 587, timeout=SECONDS)
    try:
        client.ehlo()
        encrypted = server.scheme == "smtps"
        if not encrypted and client.has_extn("starttls"):
            client.starttls(context=context)
            client.ehlo()
            encrypted = True
        if server.username:
            if not encrypted and not is_loopback(host):
                reason = f"{host} offers no STARTTLS, and the password is not sent unencrypted. Use smtps:// in LATHE_SMTP_URL."
                raise NotSent(reason)
            client.login(unquote(server.username), unquote(server.password or ""))
    except BaseException:
        client.close()
        raise
    return client


def _message(sender: str, to: str, subject: str, text: str, html: str) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"] = sender, to
    message["Subject"] = " ".join(subject.split())[:200]
    message["Date"] = formatdate()
    message["Message-ID"] = make_msgid(domain=sender.rpartition("@")[2].strip(" >") or None)
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text)
    message.add_alternative(html, subtype="html")
    return message


def _server(settings: Settings) -> SplitResult:
    return urlsplit(settings.smtp_url.get_secret_value() if settings.smtp_url else "")


def _line(said: bytes | str) -> str:
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    return " ".join(text.split())[:160]
