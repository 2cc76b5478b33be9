// Loads a page again if one of its files or answers did not arrive, and says so if it does not become live. A browser can drop requests
// under way (Chromium does when an address of its machine changes: ERR_NETWORK_CHANGED), and neither it nor Gradio repeats them.
// The server writes this script into the page, so that it needs no request itself.
(() => {
  "use strict";
  const KEY = "lathe-reloads"; // how many times in a row this tab has loaded the page again
  const MOST = 3;
  const WAIT_MS = 500;
  const RETRY_MS = 2000;
  const SLOW_MS = 30000;
  // Its texts in the language of the page are in its own element: the file with those of the other scripts may be what is missing.
  const texts = JSON.parse(document.currentScript.dataset.texts ?? "{}");
  const _ = (english, values = {}) => (texts[english] ?? english).replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
  let missing = 0;
  let live = false;
  let notice = null;

  function reloads() {
    try {
      return Number(sessionStorage.getItem(KEY));
    } catch {
      return MOST; // no storage: without a count, it could reload without end
    }
  }

  function setReloads(count) {
    try {
      sessionStorage.setItem(KEY, String(count));
    } catch {
      // no storage
    }
  }

  function show(title, text) {
    if (!document.body) return void document.addEventListener("DOMContentLoaded", () => show(title, text));
    notice ??= Object.assign(document.createElement("div"), { id: "loading-notice", className: "alert", role: "alert" });
    const button = Object.assign(document.createElement("button"), { type: "button", className: "button small", textContent: _("Reload") });
    button.addEventListener("click", () => {
      setReloads(0);
      location.reload();
    });
    notice.replaceChildren(Object.assign(document.createElement("b"), { textContent: title }), ` ${text} `, button);
    const header = document.querySelector("header.top");
    if (header) header.after(notice);
    else document.body.prepend(notice);
  }

  // The server must answer first: otherwise the browser's error page would replace what this page already shows.
  async function reload() {
    const answer = await fetch("/healthz", { cache: "no-store" }).catch(() => null);
    if (answer?.ok) {
      setReloads(reloads() + 1);
      location.reload();
    } else {
      show(_("The server does not answer."), _("This page loads again when it does."));
      setTimeout(reload, RETRY_MS);
    }
  }

  // A handler that fills the page ended with an error, which the page shows.
  function failed() {
    onMissing(null, _("Its content did not arrive even after {number} reloads. Check the server's log.", { number: MOST }));
  }

  function onMissing(_event, lost = _("Some of its files did not arrive even after {number} reloads. Check the connection to the server.", { number: MOST })) {
    if (live) return; // a part that is loaded later, when something may be typed
    missing += 1;
    if (missing > 1) return;
    if (reloads() < MOST) setTimeout(reload, WAIT_MS * 2 ** reloads());
    else show(_("This page did not load completely."), lost);
  }

  // Called when all handlers that fill the page have answered.
  function loaded() {
    live = true;
    if (missing) return;
    setReloads(0);
    notice?.remove();
  }

  const FILES = "script[src], link[rel=stylesheet], link[rel=modulepreload]";
  addEventListener("error", (event) => event.target instanceof Element && event.target.matches(FILES) && onMissing(event), true);
  addEventListener("vite:preloadError", onMissing); // from Gradio's loader of modules
  setTimeout(() => {
    if (!live && !missing) show(_("This page is still loading."), _("Its controls do not work yet, after {number} s.", { number: SLOW_MS / 1000 }));
  }, SLOW_MS);

  window.lathe = { loaded, failed };
})();
