"""Signing in with a token: the page, the cookie, the address that brings it, and proxies that sign people in."""

import asyncio
import re

import pytest
from starlette.testclient import TestClient
from web import ADDRESS, application

from app import identity, tokens
from app.lock import CannotStart
from app.tokens import check_listening, cookie_name, server_token
from worker import accounts, database
from worker.settings import Settings, SettingsError, get_settings

PAGE = {"Accept": "text/html"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A wrong token is answered at once."""
    monkeypatch.setattr(identity, "BAD_TOKEN_SECONDS", 0)


@pytest.fixture
def web(home):
    """A client without a token, as another user's browser would be."""
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


def test_a_page_without_a_token_asks_for_it_and_leads_on(web):
    response = web.get("/run?id=abc&x=%22%3E", headers=PAGE)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert 'name="next" value="/run?id=abc&amp;x=%22%3E"' in response.text
    assert 'type="password"' in response.text


def test_the_sign_in_page_needs_no_script_and_no_other_file(web):
    page = web.get("/sign-in")
    assert page.status_code == 200
    assert not re.search(r"<(script|link|img)|url\(|@import", page.text)
    assert "prefers-color-scheme: dark" in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none';")
    assert page.headers["x-frame-options"] == "DENY"


def test_the_form_keeps_the_token_in_a_cookie_that_no_script_and_no_other_site_can_use(web, token):
    answer = web.post("/sign-in", data={"token": f" {token}\n", "next": "/run?id=abc"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/run?id=abc")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert signed_in(web)


def test_behind_tls_the_cookie_is_sent_through_tls_alone(web, token):
    answer = web.post("/sign-in", data={"token": token}, headers={"X-Forwarded-Proto": "https"})
    assert "Secure" in answer.headers["set-cookie"].split("; ")


def test_an_address_with_the_token_signs_in_and_loses_it(web, token):
    answer = web.get(f"/runs-of?token={token}&search=a%20b", headers=PAGE)
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs-of?search=a+b")
    assert answer.headers["cache-control"] == "no-store"
    assert signed_in(web)


def test_another_site_cannot_sign_a_browser_in(web, token):
    """It would else make a person work under its own name."""
    answer = web.get(f"/?token={token}", headers={**PAGE, "Sec-Fetch-Site": "cross-site"})
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
    assert "http-equiv" not in answer.text
    answer = web.post("/sign-in", data={"token": token}, headers={"Origin": "https://evil.example"})
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


def test_a_link_on_another_site_is_followed_once_more_from_here(web):
    """The browser sends the cookie, which is for this site's own requests, only then."""
    first = web.get("/run?id=abc", headers={**PAGE, "Sec-Fetch-Site": "cross-site"})
    assert '<meta http-equiv="refresh" content="0">' in first.text
    assert "http-equiv" not in web.get("/run?id=abc", headers={**PAGE, "Sec-Fetch-Site": "same-origin"}).text


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:x", "", "/sign-out", "/a\nb"]
)
def test_signing_in_leads_to_no_other_site(web, token, wanted):
    assert web.post("/sign-in", data={"token": token, "next": wanted}).headers["location"] == "/"


@pytest.mark.parametrize("given", ["", "wrong", "x" * 2000, "\u00e9"])
def test_a_wrong_token_is_told_so_and_not_kept(web, given):
    answer = web.post("/sign-in", data={"token": given})
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
    assert "Invalid token" in answer.text
    told = web.get("/api/runs", headers={"Authorization": f"Bearer {given}".encode()})
    assert (told.status_code, told.json()["error"]["field"]) == (401, "token")
    assert "lathe token" in told.json()["error"]["fix"]


def test_many_wrong_tokens_at_once_are_not_all_waited_for(web, token, monkeypatch):
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


def test_signing_out_takes_the_cookie_away(web, alice):
    web.post("/sign-in", data={"token": alice})
    assert signed_in(web)
    assert web.post("/sign-out").headers["location"] == "/sign-in"
    assert not signed_in(web)


def test_pages_name_who_is_signed_in(web, alice):
    web.post("/sign-in", data={"token": alice})
    page = web.get("/", headers=PAGE).text
    assert "alice" in page.split("<gradio-app")[0]
    assert 'action="/sign-out"' in page


def test_a_cookie_that_is_not_known_any_more_asks_again(web, alice):
    web.post("/sign-in", data={"token": alice})
    with database.write() as session:
        accounts.rotate(session=session, name="alice")
    assert web.get("/", headers=PAGE).status_code == 401


def test_two_installations_on_a_machine_do_not_overwrite_each_other_s_cookie(tmp_path):
    names = {cookie_name(Settings(data_dir=tmp_path / name)) for name in ("one", "two")}
    assert len(names) == 2


def test_the_token_is_made_once_in_a_file_of_its_owner_s_alone(bare_home):
    settings = get_settings()
    settings.make_folders()
    made = server_token(settings)
    assert len(made) >= 43
    assert server_token(settings) == made
    assert (bare_home / tokens.TOKEN_FILE).stat().st_mode & 0o777 == 0o600
    assert tokens.rotate(settings) != made
    assert not tokens.is_server_token(settings, made)


def test_a_token_of_the_environment_takes_the_file_s_place_and_is_not_printed(bare_home):
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
def test_an_address_that_others_can_reach_needs_a_token_that_was_set_up(bare_home, host):
    settings = Settings(host=host)
    settings.make_folders()
    with pytest.raises(CannotStart, match=r"LATHE_HOST \(given: .*no token is set up.*`lathe token`"):
        check_listening(settings)
    server_token(settings)
    check_listening(settings)


def test_loopback_needs_none(bare_home):
    for host in ("127.0.0.1", "::1", "localhost"):
        check_listening(Settings(host=host))


def proxied(headers, client=("10.1.2.3", 5), uid=None, **settings):
    """Who a request is of, by a proxy's word."""
    given = Settings.model_validate(
        {"trusted_proxies": "10.1.2.3, 127.0.0.1@33", "proxy_user_header": "X-Remote-User", **settings}
    )
    given.make_folders()
    sent = {"host": "127.0.0.1"} | {name.lower(): value for name, value in headers.items()}
    raw = [(name.encode(), value.encode()) for name, value in sent.items()]
    scope = {"type": "http", "client": client, "headers": raw, "state": {"peer_uid": uid}}
    try:
        found = asyncio.run(identity.Identity(given).of(scope))
    except identity.BadToken:
        return "refused"
    return found and (found.name, found.admin)


def test_a_trusted_proxy_names_who_has_signed_in(home):
    with database.write() as session:
        accounts.add(session=session, name="carol", admin=True)
    assert proxied({"X-Remote-User": "erin"}) == ("erin", False)
    assert proxied({"X-Remote-User": "carol"}) == ("carol", True)
    assert proxied({"X-Remote-User": "erin"}, client=("::ffff:10.1.2.3", 5)) == ("erin", False)
    assert proxied({"X-Remote-User": "erin"}, client=("127.0.0.1", 5), uid=33) == ("erin", False)


def test_nobody_else_names_anybody(home):
    assert proxied({"X-Remote-User": "erin"}, client=("10.1.2.4", 5)) is None
    assert proxied({"X-Remote-User": "erin"}, client=("127.0.0.1", 5), uid=4242) is None
    assert proxied({"X-Remote-User": "erin"}, proxy_user_header="") is None
    assert proxied({}) is None


@pytest.mark.parametrize("name", ["local", "a b", "../x", "x" * 65])
def test_a_proxy_cannot_name_the_server_s_user_nor_what_is_no_name(home, name):
    assert proxied({"X-Remote-User": name}) == "refused"


def test_the_server_s_user_is_known_by_the_connection_unless_it_is_a_proxy_s(home):
    import os

    own = {"client": ("127.0.0.1", 5), "uid": os.geteuid()}
    assert proxied({}, **own) == ("local", False)
    assert proxied({"X-Forwarded-For": "10.0.0.1"}, **own) is None
    assert proxied({"Host": "lathe.example.org"}, **own) is None
    assert proxied({"X-Remote-User": "erin"}, **own) is None
    assert proxied({}, **own, trusted_proxies="127.0.0.1") is None
    assert proxied({}, **own, trusted_proxies="0.0.0.0/0") is None


@pytest.mark.parametrize("given", ["nonsense", "10.0.0.1@root", "10.0.0.0/40"])
def test_an_address_of_a_proxy_that_is_none_is_refused(bare_home, monkeypatch, given):
    monkeypatch.setenv("LATHE_TRUSTED_PROXIES", given)
    get_settings.cache_clear()
    with pytest.raises(SettingsError, match="LATHE_TRUSTED_PROXIES"):
        get_settings()


def test_a_preflight_of_a_named_origin_needs_no_token(home):
    web = TestClient(application(allowed_origins="https://other.example"), base_url=ADDRESS)
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    granted = web.options("/api/runs", headers={"Origin": "https://other.example", **asked})
    assert granted.headers["access-control-allow-origin"] == "https://other.example"
    assert web.options("/api/runs", headers={"Origin": "https://evil.example", **asked}).status_code == 401


def test_lathe_up_prints_the_address_with_the_token(home, capsys):
    from app.up import Everything

    settings = get_settings()
    Everything(settings, 7861)._announce()
    assert f"http://127.0.0.1:7861/?token={server_token(settings)}" in capsys.readouterr().out


def test_lathe_up_does_not_start_on_a_network_without_a_token(bare_home, capsys):
    from app.up import up

    assert up(Settings(host="0.0.0.0")) == 1
    assert "no token is set up" in capsys.readouterr().err
