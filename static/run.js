// The page Run, live: its stream (/api/runs/ID/live) brings changed facts, new points, events and log lines. What else depends on
// the run's state, Gradio draws anew when the stream says that the state has changed.
(() => {
  "use strict";
  const HIDDEN = 10_000; // milliseconds until the stream of a hidden page ends: a browser has few connections for a server
  const AGAIN = 1500; // milliseconds between two calls of Gradio; the server keeps what it read for one second
  const MARKED = ["checkpoint", "resumed", "out_of_memory", "stop", "stopped", "failed", "requeued"];
  let plots = null;
  let log = null;

  const runId = () => new URLSearchParams(location.search).get("id") ?? "";
  const standing = () => document.querySelector(".standing");

  function address(rest, query = {}) {
    const known = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
    return `/api/runs/${encodeURIComponent(runId())}/${rest}?${new URLSearchParams(known)}`;
  }

  async function ask(rest, query) {
    const response = await fetch(address(rest, query));
    if (!response.ok) throw new Error(`${rest}: ${response.status}`);
    return response.json();
  }

  async function load(axis, from, to, points, ranks) {
    const chosen = ranks.map((rank) => `&ranks=${rank}`).join("");
    const response = await fetch(address("plots", { axis, from, to, points }) + chosen);
    if (!response.ok) throw new Error(`plots: ${response.status}`);
    const reply = await response.json();
    return { ...reply, panels: reply.panels.map((panel) => ({ ...panel, marks: reply.marks })) };
  }

  // The server sends the panels with the page, so that their places are reserved before the points come.
  function runPlots(element, props, watch) {
    function begin() {
      if (plots || !props.value) return;
      const panels = JSON.parse(props.value);
      plots = window.lathe.plots(element.querySelector(".plots"), { panels, load, axes: ["step", "time"] });
    }
    watch("value", begin);
    begin();
  }

  function runLog(element) {
    log = window.lathe.log(element.querySelector(".log-viewer"), { ask, download: address("log.txt") });
  }

  function show(facts) {
    for (const [name, value] of Object.entries(facts)) {
      const place = document.querySelector(`[data-fact="${name}"]`);
      if (place && name !== "until" && place.textContent !== value) place.textContent = value;
    }
    if ("until" in facts) showEnd(facts.until);
    if ("share" in facts) showShare(facts.share);
  }

  function showEnd(until) {
    const place = document.querySelector('[data-fact="until"]');
    if (!place) return;
    if (until === null) return place.replaceChildren("-");
    const span = place.querySelector("span") ?? place.replaceChildren(document.createElement("span")) ?? place.firstChild;
    span.dataset.until = until;
    window.lathe.updateTimes();
  }

  function showShare(share) {
    const bar = standing()?.querySelector(".bar");
    if (!bar) return;
    bar.classList.toggle("unknown", share === null);
    bar.firstElementChild.style.width = share === null ? "" : `${(share * 100).toFixed(1)}%`;
    if (share === null) bar.removeAttribute("aria-valuenow");
    else bar.setAttribute("aria-valuenow", Math.round(share * 100));
  }

  // New events stand above the older ones; a phase is listed once, since training and evaluation alternate.
  function addEvents(events) {
    const list = document.querySelector("ol.events");
    if (!list) return false;
    const known = (id) => list.querySelector(`[data-id="${id}"]`);
    const listed = (text) => [...list.querySelectorAll(".phase span")].some((span) => span.textContent === text);
    for (const [id, time, kind, level, message] of events) {
      if (known(id) || (kind === "phase" && listed(message))) continue;
      const item = document.createElement("li");
      item.className = `${level} ${kind}`;
      item.dataset.id = id;
      const clock = item.appendChild(document.createElement("time"));
      clock.dataset.clock = time;
      item.appendChild(document.createElement("span")).textContent = message;
      list.prepend(item);
    }
    window.lathe.updateTimes();
    return true;
  }

  function rows({ step, time, tokens, epoch, values }) {
    return step.map((at, index) => ({
      at: { step: at, time: time[index], ...(tokens?.[index] && { tokens: tokens[index] }), ...(epoch?.[index] && { epoch: epoch[index] }) },
      values: Object.fromEntries(Object.entries(values).map(([key, column]) => [key, column[index]]).filter(([, value]) => value !== "")),
    }));
  }

  // The stream; `trigger` makes Gradio draw what has changed.
  function runNews(element, trigger) {
    let source = null;
    let cursor = "";
    let state = "";
    let asked = 0;
    let waiting = null;
    let leaving = null;

    function say(words) {
      const place = document.querySelector(".connection");
      if (place && place.textContent !== words) place.textContent = words;
    }

    function redraw() {
      waiting ??= setTimeout(() => {
        waiting = null;
        asked = Date.now();
        trigger("select", {});
        setTimeout(compare, 1000 + AGAIN);
      }, Math.max(0, AGAIN - (Date.now() - asked)));
    }

    function compare() {
      if (state && standing() && standing().dataset.state !== state) redraw();
    }

    function receive(news) {
      say(news.unreachable ? "Reconnecting ..." : "");
      if (news.gone || news.reload) redraw();
      if (news.facts) show(news.facts);
      state = news.facts?.state ?? state;
      compare();
      if (news.points) plots?.add(rows(news.points));
      if ("events" in news && !(news.events && addEvents(news.events))) redraw();
      if (news.reload || news.events?.some(([, , kind]) => MARKED.includes(kind))) plots?.reload();
      if ("log" in news || news.reload) log?.add(news.log);
    }

    function close() {
      source?.close();
      source = null;
    }

    function connect() {
      if (source || document.hidden || document.querySelector(".empty")) return;
      if (!standing()) {
        if (Date.now() - asked > 3000) redraw(); // the page is not drawn yet, or the database could not be read
        setTimeout(connect, 300);
        return;
      }
      source = new EventSource(address("live", { since: cursor || standing().dataset.cursor }));
      source.onopen = () => say("");
      source.onmessage = (event) => {
        cursor = event.lastEventId || cursor;
        receive(JSON.parse(event.data));
      };
      source.onerror = () => {
        say("Reconnecting ...");
        if (source?.readyState !== EventSource.CLOSED) return; // the browser connects again itself
        close();
        setTimeout(connect, 3000);
      };
    }

    document.addEventListener("visibilitychange", () => {
      clearTimeout(leaving);
      if (document.hidden) leaving = setTimeout(close, HIDDEN);
      else connect();
    });
    document.addEventListener("click", (event) => {
      const pressed = event.target.closest("[data-press]");
      if (pressed) document.getElementById(pressed.dataset.press)?.click();
    });
    asked = Date.now(); // Gradio draws the page itself at first
    connect();
  }

  window.lathe = Object.assign(window.lathe ?? {}, { plotsOfRun: () => plots, runLog, runNews, runPlots });
})();
