"""Which addresses webhooks may reach, and what of them is shown."""

import pytest
from environment import use
from receivers import hooks

from training.redaction import redact
from worker.notifications import addresses, http_post
from worker.notifications.addresses import AddressError, NotSent
from worker.store.tables import WebhookFormat


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "2002:7f00:1::", "64:ff9b::7f00:1", "64:ff9b:1::1",
    ],
)  # fmt: skip
def test_an_internal_address_is_not_public(address):
    assert not addresses.is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_an_address_of_the_internet_is_public(address):
    assert addresses.is_public(address)


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1/x", "https://localhost/x", "https://[::1]:8443/x", "https://2130706433/x"]
)
def test_ordinary_users_cannot_name_an_internal_address(home, url):
    with pytest.raises(AddressError, match="not at a public address"):
        addresses.check_reachable(addresses.webhook(url, trusted=False))


def test_ordinary_users_need_https(home):
    with pytest.raises(AddressError, match="not encrypted"):
        addresses.webhook("http://hooks.example/x", trusted=False)


def test_the_rule_holds_again_when_the_message_is_sent(home):
    with hooks() as receiver:
        hook = addresses.Webhook(receiver.url, "127.0.0.1", receiver.port, free=False)
        with pytest.raises(NotSent, match="not at a public address") as refused:
            http_post.post(hook, {}, b"{}")
    assert refused.value.final and receiver.requests == []


def test_admins_and_listed_hosts_may_be_internal(home, monkeypatch):
    assert addresses.webhook("http://127.0.0.1/x", trusted=True).free
    use(monkeypatch, DATA_DIR=str(home), WEBHOOK_HOSTS="chat.internal, localhost")
    hook = addresses.webhook("http://localhost:1234/x", trusted=False)
    addresses.check_reachable(hook)
    assert hook.free


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://host/x",
        "https://",
        "https://user:secret@host/x",
        "https://host:port/x",
        "https://ho st/",
        "file:///etc",
    ],
)
def test_what_is_no_url_of_a_webhook_is_refused(home, url):
    with pytest.raises(AddressError, match="neither a URL nor an e-mail address"):
        addresses.webhook(url, trusted=True)


@pytest.mark.parametrize(
    "address", ["a@", "@b.org", "a b@c.org", "a@b.org\nBcc: c@d.org", "a@b..org", "a@b.org,c@d.org"]
)
def test_what_is_no_e_mail_address_is_refused(address):
    with pytest.raises(AddressError, match="is not an e-mail address"):
        addresses.email(address)


def test_a_shown_webhook_has_no_secret():
    url = "https://hooks.slack.com/services/T00000000/B00000000/verysecretpart"
    assert addresses.masked(url) == "https://hooks.slack.com/…part"
    assert addresses.masked("https://host:8443/short") == "https://host:8443/…"
    assert "verysecretpart" not in redact(f"posting to {url} failed")


def test_the_host_decides_the_format():
    formats = {
        url: addresses.guessed_format(url)
        for url in ("https://hooks.slack.com/x", "https://ntfy.sh/t", "https://a.b/c")
    }
    assert list(formats.values()) == [WebhookFormat.SLACK, WebhookFormat.NTFY, WebhookFormat.JSON]
