"""The dialog of the button Share in a real browser."""

from browser import IN_BROWSER, opened, says
from forked_server import server
from prepared import prepared_installation  # noqa: F401

from worker.settings import get_settings
from worker.store import database, shares

pytestmark = IN_BROWSER

WITHOUT_CLIPBOARD = """Object.defineProperty(navigator, "clipboard", { value: undefined });
addEventListener("copy", () => { window.copied = document.activeElement.value })"""
"""As in a page without HTTPS."""


def users(kind, object_id):
    with database.read() as session:
        return shares.users(session=session, kind=kind, object_id=object_id)


def test_a_run_a_sweep_and_a_data_set_are_shared_with_accounts_and_by_link(request, prepared, home):
    with server(get_settings().data_dir, VISIBILITY="own") as served, opened(request.config, served.address) as page:
        for kind, address, object_id in (
            ("run", "/run", prepared.finished), ("sweep", "/sweep", prepared.sweep), ("dataset", "/dataset", prepared.dataset),
        ):  # fmt: skip
            page.goto(f"{served.address}{address}?id={object_id}")
            page.locator("[data-share]").click()
            page.fill("#share-users", "bbo")
            page.locator("dialog#share .primary").click()
            says(page, ".share-said", "cannot be shared with 'bbo': there is no such account.")
            page.fill("#share-users", "bob, alice")
            page.locator("dialog#share .primary").click()
            says(page, ".share-said", "Saved.")
            assert users(kind, object_id) == ["alice", "bob"]
            page.get_by_role("button", name="Make a link").click()
            says(page, "dialog#share code", f"{served.address}/shared/")
            named = users(kind, object_id)
            assert named[:2] == ["alice", "bob"] and page.locator("#share-users").input_value() == ", ".join(named)
            page.evaluate(WITHOUT_CLIPBOARD)
            page.locator("dialog#share").get_by_role("button", name="Copy").click()
            page.wait_for_function(f"() => window.copied?.startsWith('{served.address}/shared/')")
            page.keyboard.press("Escape")
            page.locator("dialog#share").wait_for(state="detached")
