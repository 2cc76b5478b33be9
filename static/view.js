// Pages that are read: fills their parts again with what the server sends (app/pages/common/view.py). A hidden page asks for nothing.
(() => {
  "use strict";
  const main = document.querySelector("main[data-live]");
  let shown = main.dataset.shown;
  let source = null;

  function address() {
    const query = new URLSearchParams(location.search);
    query.set("shown", shown);
    return `${main.dataset.live}?${query}`;
  }

  // The focus stays on the same control, which the new part has again.
  function fill(part, html) {
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const place = focused && [...part.querySelectorAll("a, button, input, select, textarea, summary")].indexOf(focused);
    part.innerHTML = html;
    if (focused) part.querySelectorAll("a, button, input, select, textarea, summary")[place]?.focus({ preventScroll: true });
  }

  function show({ parts, unreachable }) {
    document.getElementById("unreachable").hidden = !unreachable;
    for (const [name, html] of Object.entries(parts ?? {})) {
      const part = main.querySelector(`[data-part="${name}"]`);
      if (!part) return void location.reload(); // the page was made while the database was unreachable
      fill(part, html);
    }
    lathe.updateTimes();
  }

  function follow() {
    source?.close();
    source = null;
    if (document.hidden) return;
    source = new EventSource(address());
    source.addEventListener("message", (event) => {
      shown = event.lastEventId;
      show(JSON.parse(event.data));
    });
  }

  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", () => source?.close());
  follow();
  lathe.updateTimes();
  performance.mark("lathe-live");
})();
