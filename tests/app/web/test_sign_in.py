"""Signing in with a token: the page, the cookie, the address with a token, and authenticating proxies."""

import asyncio
import re

import pytest
from starlette.testclient import TestClient
from web import ADDRESS, application

from app.access import identity
from app.access import server_token as tokens
from app.access.server_token import check_listening, cookie_name, server_token
from app.errors import CannotStart
from app.web.authentication import Authentication
from app.web.security import Rules
from worker.settings import Settings, SettingsError, get_settings
from worker.store import accounts, database

PAGE = {"Accept": "text/html"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Disables the delay after an invalid token."""
    monkeypatch.setattr(identity, "BAD_TOKEN_SECONDS", 0)


@pytest.fixture
def web(home):
    """A client without a token, like another user's browser."""
    return TestClient(application(), base_url=ADDRESS, follow_redirects=False)


@pytest.fixture
def token(home):
    return server_token(application().state.settings)


@pytest.fixture
def alice(home):
    with database.write() as session:
        return accounts.add(session=session, name="alice")


def signed_in(web):
    return web.get("/api/runs").status_code == 200


def test_a_page_without_a_token_asks_for_it_and_then_opens(web):
    response = web.get("/run?id=abc&x=%22%3E", headers=PAGE)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert 'name="next" value="/run?id=abc&amp;x=%22%3E"' in response.text
    assert 'type="password"' in response.text


def test_the_sign_in_page_needs_no_script_and_no_other_file(web):
    page = web.get("/sign-in")
    assert page.status_code == 200
    assert not re.search(r"<(script|link|img)|url\(|@import", page.text)
    assert "light-dark(" in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none';")
    assert page.headers["x-frame-options"] == "DENY"


def test_the_form_stores_the_token_in_a_httponly_samesite_cookie(web, token):
    answer = web.post("/sign-in", data={"token": f" {token}\n", "next": "/run?id=abc"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/run?id=abc")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert signed_in(web)


def test_behind_tls_the_cookie_is_secure(web, token):
    answer = web.post("/sign-in", data={"token": token}, headers={"X-Forwarded-Proto": "https"})
    assert "Secure" in answer.headers["set-cookie"].split("; ")


@pytest.mark.parametrize(
    ("host", "headers", "secure"),
    [
        ("lathe.example", {}, True),
        ("lathe.example", {"X-Forwarded-Proto": "http"}, False),
        ("127.0.0.1:7860", {}, False),
    ],
)
def test_the_cookie_is_secure_at_a_public_https_address_unless_the_proxy_says_otherwise(home, host, headers, secure):
    given = Settings(public_url="https://lathe.example", allowed_origins="https://lathe.example")
    browser = TestClient(
        Authentication(None, Rules.of(given), given), base_url=f"http://{host}", follow_redirects=False
    )
    answer = browser.post("/sign-in", data={"token": server_token(given)}, headers=headers)
    assert ("Secure" in answer.headers["set-cookie"].split("; ")) is secure


def test_an_address_with_the_token_signs_in_and_redirects_without_it(web, token):
    answer = web.get(f"/runs-of?token={token}&search=a%20b", headers=PAGE)
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs-of?search=a+b")
    assert answer.headers["cache-control"] == "private, no-store"
    assert signed_in(web)


def test_another_site_cannot_sign_a_browser_in(web, token):
    """Otherwise it could sign a person in to its own account."""
    answer = web.get(f"/?token={token}", headers={**PAGE, "Sec-Fetch-Site": "cross-site"})
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
    assert "http-equiv" not in answer.text
    answer = web.post("/sign-in", data={"token": token}, headers={"Origin": "https://evil.example"})
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


def test_a_link_from_another_site_reloads_the_page_once(web):
    """Only the reload is a same-site request, for which the browser sends the cookie."""
    first = web.get("/run?id=abc", headers={**PAGE, "Sec-Fetch-Site": "cross-site"})
    assert '<meta http-equiv="refresh" content="0">' in first.text
    assert "http-equiv" not in web.get("/run?id=abc", headers={**PAGE, "Sec-Fetch-Site": "same-origin"}).text


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:x", "", "/sign-out", "/a\nb"]
)
def test_signing_in_does_not_redirect_to_another_site(web, token, target):
    assert web.post("/sign-in", data={"token": token, "next": target}).headers["location"] == "/"


@pytest.mark.parametrize("invalid", ["", "wrong", "x" * 2000, "\u00e9"])
def test_an_invalid_token_is_refused_and_not_stored(web, invalid):
    answer = web.post("/sign-in", data={"token": invalid})
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
    assert "Invalid token" in answer.text
    refused = web.get("/api/runs", headers={"Authorization": f"Bearer {invalid}".encode()})
    assert (refused.status_code, refused.json()["error"]["field"]) == (401, "token")
    assert "lathe token" in refused.json()["error"]["fix"]


def test_many_invalid_tokens_at_once_are_not_all_delayed(web, token, monkeypatch):
    wait = asyncio.Event()

    async def hold(_seconds):
        await wait.wait()

    async def guesses():
        who = identity.Identity(application().state.settings)
        monkeypatch.setattr(identity.asyncio, "sleep", hold)
        scope = {"client": ("10.0.0.9", 1), "headers": []}
        held = [asyncio.ensure_future(who.of_token(scope, f"wrong{n}")) for n in range(8)]
        while sum(who._waiting.values()) < 8:
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        with pytest.raises(identity.BadToken) as caught:
            await who.of_token(scope, "wrong")
        right = await who.of_token(scope, token)
        wait.set()
        await asyncio.gather(*held, return_exceptions=True)
        return caught.value.too_many, right.is_local

    assert asyncio.run(guesses()) == (True, True)


def test_signing_out_removes_the_cookie(web, alice):
    web.post("/sign-in", data={"token": alice})
    assert signed_in(web)
    assert web.post("/sign-out").headers["location"] == "/sign-in"
    assert not signed_in(web)


def test_pages_show_the_signed_in_user(web, alice):
    web.post("/sign-in", data={"token": alice})
    page = web.get("/", headers=PAGE).text
    assert "alice" in page.split("<gradio-app")[0]
    assert 'action="/sign-out"' in page


def test_an_invalid_cookie_asks_for_the_token_again(web, alice):
    web.post("/sign-in", data={"token": alice})
    with database.write() as session:
        accounts.rotate(session=session, name="alice")
    assert web.get("/", headers=PAGE).status_code == 401


def test_two_installations_on_a_machine_have_separate_cookies(tmp_path):
    names = {cookie_name(Settings(data_dir=tmp_path / name)) for name in ("one", "two")}
    assert len(names) == 2


def test_the_token_is_created_once_in_a_private_file(bare_home):
    settings = get_settings()
    settings.make_folders()
    created = server_token(settings)
    assert len(created) >= 43
    assert server_token(settings) == created
    assert (bare_home / tokens.TOKEN_FILE).stat().st_mode & 0o777 == 0o600
    assert tokens.rotate(settings) != created
    assert not tokens.is_server_token(settings, created)


def test_a_token_from_the_environment_overrides_the_file_and_is_not_printed(bare_home):
    settings = Settings(token="0123456789abcdef0123456789abcdef")
    assert tokens.is_server_token(settings, "0123456789abcdef0123456789abcdef")
    assert tokens.address_with_token("http://127.0.0.1:7860", settings) == "http://127.0.0.1:7860"
    assert "0123456789" not in repr(settings)


def test_a_short_token_is_refused_without_being_repeated(bare_home, monkeypatch):
    monkeypatch.setenv("LATHE_TOKEN", "hunter2")
    get_settings.cache_clear()
    with pytest.raises(SettingsError, match=r"LATHE_TOKEN: .*32 characters") as caught:
        get_settings()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "lathe.lan"])
def test_a_network_address_requires_a_configured_token(bare_home, host):
    settings = Settings(host=host)
    settings.make_folders()
    with pytest.raises(CannotStart, match=r"LATHE_HOST \(given: .*there is no token.*`lathe token`"):
        check_listening(settings)
    server_token(settings)
    check_listening(settings)


def test_loopback_requires_no_token(bare_home):
    for host in ("127.0.0.1", "::1", "localhost"):
        check_listening(Settings(host=host))


def proxied(headers, client=("10.1.2.3", 5), uid=None, **settings):
    """Returns the user of a request through a proxy."""
    configured = Settings.model_validate(
        {"trusted_proxies": "10.1.2.3, 127.0.0.1@33", "proxy_user_header": "X-Remote-User", **settings}
    )
    configured.make_folders()
    sent = {"host": "127.0.0.1"} | {name.lower(): value for name, value in headers.items()}
    raw = [(name.encode(), value.encode()) for name, value in sent.items()]
    scope = {"type": "http", "client": client, "headers": raw, "state": {"peer_uid": uid}}
    try:
        result = asyncio.run(identity.Identity(configured).of(scope))
    except identity.BadToken:
        return "refused"
    return result and (result.name, result.admin)


def test_a_trusted_proxy_sends_the_signed_in_user(home):
    with database.write() as session:
        accounts.add(session=session, name="carol", admin=True)
    assert proxied({"X-Remote-User": "erin"}) == ("erin", False)
    assert proxied({"X-Remote-User": "carol"}) == ("carol", True)
    assert proxied({"X-Remote-User": "erin"}, client=("::ffff:10.1.2.3", 5)) == ("erin", False)
    assert proxied({"X-Remote-User": "erin"}, client=("127.0.0.1", 5), uid=33) == ("erin", False)


def test_the_user_header_of_other_clients_is_ignored(home):
    assert proxied({"X-Remote-User": "erin"}, client=("10.1.2.4", 5)) is None
    assert proxied({"X-Remote-User": "erin"}, client=("127.0.0.1", 5), uid=4242) is None
    assert proxied({"X-Remote-User": "erin"}, proxy_user_header="") is None
    assert proxied({}) is None


@pytest.mark.parametrize("name", ["local", "a b", "../x", "x" * 65])
def test_a_proxy_cannot_send_the_server_s_user_or_an_invalid_name(home, name):
    assert proxied({"X-Remote-User": name}) == "refused"


def test_the_server_s_user_is_recognized_unless_the_connection_is_a_proxy(home):
    import os

    own = {"client": ("127.0.0.1", 5), "uid": os.geteuid()}
    assert proxied({}, **own) == ("local", False)
    assert proxied({"X-Forwarded-For": "10.0.0.1"}, **own) is None
    assert proxied({"Host": "lathe.example.org"}, **own) is None
    assert proxied({"X-Remote-User": "erin"}, **own) is None
    assert proxied({}, **own, trusted_proxies="127.0.0.1") is None
    assert proxied({}, **own, trusted_proxies="0.0.0.0/0") is None


@pytest.mark.parametrize("address", ["nonsense", "10.0.0.1@root", "10.0.0.0/40"])
def test_an_invalid_proxy_address_is_refused(bare_home, monkeypatch, address):
    monkeypatch.setenv("LATHE_TRUSTED_PROXIES", address)
    get_settings.cache_clear()
    with pytest.raises(SettingsError, match="LATHE_TRUSTED_PROXIES"):
        get_settings()


def test_a_preflight_of_an_allowed_origin_requires_no_token(home):
    web = TestClient(application(allowed_origins="https://other.example"), base_url=ADDRESS)
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    granted = web.options("/api/runs", headers={"Origin": "https://other.example", **asked})
    assert granted.headers["access-control-allow-origin"] == "https://other.example"
    assert web.options("/api/runs", headers={"Origin": "https://evil.example", **asked}).status_code == 401


def test_lathe_up_prints_the_address_with_the_token(home, capsys):
    from app.local.up import Everything

    settings = get_settings()
    Everything(settings, 7861)._announce()
    assert f"http://127.0.0.1:7861/?token={server_token(settings)}" in capsys.readouterr().out


def test_lathe_up_does_not_start_on_a_network_without_a_token(bare_home, capsys):
    from app.local.up import up

    assert up(Settings(host="0.0.0.0")) == 1
    assert "there is no token" in capsys.readouterr().err
