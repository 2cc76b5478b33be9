// Notifications of the browser: an open page asks for messages and shows them. Nothing is asked before the user has allowed
// notifications with a press on the page Settings.
(() => {
  "use strict";
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
    if (!window.isSecureContext) return "needs https";
    if (!supported()) return "does not support notifications";
    if (Notification.permission === "denied") return "blocks notifications of this page; allow them in its site settings";
    if (!active()) return "shows nothing until you allow it";
    return line.dataset.events ? "shows messages while a page of Lathe is open" : "is allowed; choose an event";
  }

  // The panel of channels on the page Settings.
  function settings(element, trigger, watch) {
    function draw() {
      lathe.updateTimes();
      const line = element.querySelector("[data-browser]");
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
        if (!line.dataset.events) trigger("select", { browser: true, events: ["finished", "failed", "diverged"] });
      }
      draw();
    }
    function test(line) {
      const outcome = line.querySelector("[data-browser-outcome]");
      try {
        show("Lathe can reach you here", "This is a test message.", "", "lathe-test");
        outcome.textContent = "The browser has accepted the test.";
      } catch (error) {
        outcome.textContent = `The browser refused the test: ${error.message}`;
      }
    }
    element.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      const line = button.closest("[data-browser]");
      if ("allow" in button.dataset) allow(line);
      else if ("testBrowser" in button.dataset) test(line);
      else if (button.dataset.send) {
        if (button.dataset.busy) Object.assign(button, { disabled: true, textContent: button.dataset.busy });
        trigger("select", JSON.parse(button.dataset.send));
      }
    });
    watch("value", draw);
    draw();
  }

  window.lathe = Object.assign(window.lathe ?? {}, { settings });
  round();
})();
