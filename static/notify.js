// Notifications of the browser: an open page asks for messages and shows them. Nothing is asked before the user has allowed
// notifications with a press on the page Settings.
(() => {
  "use strict";
  const { gettext: _ } = window.lathe;
  const ON = "lathe-notify";
  const AFTER = "lathe-notify-after";
  const SECONDS = 10;

  const supported = () => window.isSecureContext && "Notification" in window;
  const active = () => supported() && Notification.permission === "granted" && localStorage.getItem(ON) === "on";

  function show(title, body, address, tag) {
    const shown = new Notification(title, { body, tag });
    shown.onclick = () => {
      window.focus();
      if (address) window.location.assign(address);
    };
  }

  async function ask() {
    const after = localStorage.getItem(AFTER);
    const answer = await fetch(`/api/notifications/browser${after === null ? "" : `?after=${after}`}`);
    if (!answer.ok) return;
    const { messages, next } = await answer.json();
    localStorage.setItem(AFTER, next);
    for (const { id, title, text, address } of messages) show(title, text, address, `lathe-${id}`);
  }

  // One page asks at a time, so that several open pages do not show a message twice.
  async function round() {
    if (active()) {
      try {
        await navigator.locks.request("lathe-notify", { ifAvailable: true }, (lock) => lock && ask());
      } catch {
        // the server does not answer: the next round asks again
      }
    }
    setTimeout(round, SECONDS * 1000);
  }

  function words(line) {
    if (!window.isSecureContext) return _("needs https");
    if (!supported()) return _("does not support notifications");
    if (Notification.permission === "denied") return _("blocks notifications of this page; allow them in its site settings");
    if (!active()) return _("shows nothing until you allow it");
    return line.dataset.events ? _("shows messages while a page of Lathe is open") : _("is allowed; choose an event");
  }

  // The line of this browser on the page Settings.
  function draw() {
    const line = document.querySelector("[data-browser]");
    if (!line) return;
    line.querySelector("[data-browser-state]").textContent = words(line);
    line.querySelector("[data-allow]").hidden = !supported() || active() || Notification.permission === "denied";
    line.querySelector("[data-test-browser]").hidden = !active();
  }

  async function allow(line) {
    if ((await Notification.requestPermission()) === "granted") {
      localStorage.setItem(ON, "on");
      localStorage.removeItem(AFTER);
      await ask();
      const events = line.dataset.usual.split(",");
      if (!line.dataset.events) await lathe.request("/api/notifications/browser", "PUT", { events });
      lathe.view.follow();
    }
    draw();
  }

  function test(line) {
    const outcome = line.querySelector("[data-browser-outcome]");
    try {
      show(_("Lathe can reach you here"), _("This is a test message."), "", "lathe-test");
      outcome.textContent = _("The browser has accepted the test.");
    } catch (error) {
      outcome.textContent = _("The browser refused the test: {reason}", { reason: error.message });
    }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-allow], [data-test-browser]");
    if (!button) return;
    if ("allow" in button.dataset) allow(button.closest("[data-browser]"));
    else test(button.closest("[data-browser]"));
  });
  document.addEventListener("filled", draw);

  draw();
  round();
})();
