// The page Run, live: its stream (/api/runs/ID/live) brings changed facts, new points and log lines. The parts of the page follow
// the changes of the page (view.js).
(() => {
  "use strict";
  const { gettext: _ } = window.lathe;
  const HIDDEN = 10_000; // milliseconds until the stream of a hidden page ends: a browser has few connections for a server
  const AGAIN = 3000; // milliseconds until a stream that the server has ended is opened again
  const MARKED = ["checkpoint", "resumed", "out_of_memory", "stop", "stopped", "failed", "requeued"];
  const standing = document.querySelector(".standing");
  if (!standing) return; // there is no such run, or the database is unreachable
  const runId = new URLSearchParams(location.search).get("id");

  function address(rest, query = {}) {
    const known = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
    return `/api/runs/${encodeURIComponent(runId)}/${rest}?${new URLSearchParams(known)}`;
  }

  const ask = (rest, query) => lathe.request(address(rest, query));

  async function load(axis, from, to, points, ranks) {
    const chosen = ranks.map((rank) => `&ranks=${rank}`).join("");
    const reply = await lathe.request(address("plots", { axis, from, to, points }) + chosen);
    return { ...reply, panels: reply.panels.map((panel) => ({ ...inLanguage(panel), marks: reply.marks })) };
  }

  function inLanguage(panel) {
    return { ...panel, title: _(panel.title), lines: panel.lines.map((line) => ({ ...line, label: _(line.label) })) };
  }

  const place = document.querySelector(".plots");
  const plots = lathe.plots(place, { load, axes: ["step", "time"], empty: place.dataset.empty || undefined });
  const log = lathe.log(document.querySelector(".log-viewer"), { ask, download: address("log.txt") });

  function show({ share, status, since, until, elapsed, ...texts }) {
    const place = (name) => standing.querySelector(`[data-fact="${name}"]`);
    for (const [name, value] of Object.entries(texts)) {
      if (place(name) && place(name).textContent !== value) place(name).textContent = value;
    }
    if (status) standing.querySelector(".bar").className = `bar wide ${status}`;
    if (share !== undefined) showShare(share);
    if (until !== undefined) place("until").replaceChildren(until === null ? "-" : counting("until", until));
    if (since !== undefined || elapsed !== undefined) place("elapsed").replaceChildren(since ? counting("since", since) : elapsed ?? "-");
    for (const fact of standing.querySelectorAll("dd")) fact.parentElement.hidden = fact.textContent === "-";
    lathe.updateTimes();
  }

  function counting(name, moment) {
    const span = document.createElement("span");
    span.dataset[name] = moment;
    return span;
  }

  function showShare(share) {
    const bar = standing.querySelector(".bar");
    bar.classList.toggle("unknown", share === null);
    bar.firstElementChild.style.width = share === null ? "" : `${(share * 100).toFixed(1)}%`;
    if (share === null) bar.removeAttribute("aria-valuenow");
    else bar.setAttribute("aria-valuenow", Math.round(share * 100));
  }

  function rows({ step, time, tokens, epoch, values }) {
    return step.map((at, index) => ({
      at: { step: at, time: time[index], ...(tokens?.[index] && { tokens: tokens[index] }), ...(epoch?.[index] && { epoch: epoch[index] }) },
      values: Object.fromEntries(Object.entries(values).map(([key, column]) => [key, column[index]]).filter(([, value]) => value !== "")),
    }));
  }

  function say(words) {
    const place = standing.querySelector(".connection");
    if (place.textContent !== words) place.textContent = words;
  }

  function receive(news) {
    say(news.unreachable ? _("Reconnecting ...") : "");
    if (news.facts) show(news.facts);
    if (news.points) plots.add(rows(news.points));
    if (news.reload || news.events === null || news.events?.some(([, , kind]) => MARKED.includes(kind))) plots.reload();
    if ("log" in news || news.reload) log.add(news.log);
  }

  let source = null;
  let gone = false;
  let leaving = 0;
  let cursor = standing.dataset.cursor;

  function close() {
    source?.close();
    source = null;
  }

  function connect() {
    if (source || gone || document.hidden) return;
    source = new EventSource(address("live", { since: cursor }));
    source.onopen = () => say("");
    source.onmessage = (event) => {
      cursor = event.lastEventId || cursor;
      const news = JSON.parse(event.data);
      gone ||= Boolean(news.gone); // deleted, or not shared any more
      if (gone) close();
      else receive(news);
    };
    source.onerror = () => {
      say(_("Reconnecting ..."));
      if (source?.readyState !== EventSource.CLOSED) return; // the browser connects again itself
      close();
      setTimeout(connect, AGAIN);
    };
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(leaving);
    if (document.hidden) leaving = setTimeout(close, HIDDEN);
    else connect();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && connect());
  // The index marks the section that stands at the top of the window, or at the end of the page the one that was chosen in it.
  const index = document.querySelector("nav.sections");
  function markSection() {
    const links = [...index.querySelectorAll("a")];
    const under = index.getBoundingClientRect().bottom + 24;
    const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 2 && scrollY > 0;
    const passed = links.filter((link) => document.querySelector(link.hash)?.getBoundingClientRect().top <= under);
    const chosen = links.find((link) => link.hash === location.hash);
    const current = atEnd ? chosen ?? links.at(-1) : passed.at(-1) ?? links[0];
    for (const link of links) {
      if (link === current) link.setAttribute("aria-current", "location");
      else link.removeAttribute("aria-current");
    }
  }
  addEventListener("scroll", markSection, { passive: true });
  addEventListener("hashchange", markSection);
  document.addEventListener("filled", markSection);
  markSection();

  lathe.plotsOfRun = () => plots;
  connect();
})();
