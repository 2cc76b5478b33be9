// What the scripts of all pages share: relative times, colors, requests, copies; and what components of Gradio call from `js_on_load`.
(() => {
  "use strict";
  // A text in the language of the page, with the values of its {names}; app/web/assets.py serves the other language's texts.
  const texts = window.lathe?.texts ?? {};
  const wordings = new Intl.PluralRules(document.documentElement.lang || "en");
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
  const gettext = (english, values = {}) => fill([texts[english] ?? english].flat()[0], values); // a text with a plural has several
  const ngettext = (one, many, number, values = {}) => {
    const forms = texts[one] ?? [one, many];
    return fill(forms[wordings.select(number) === "one" ? 0 : 1], { number, ...values });
  };

  const UNITS = [[86400, gettext("d")], [3600, gettext("h")], [60, gettext("min")], [1, gettext("s")]];

  function duration(seconds) {
    const whole = Math.max(0, Math.round(seconds));
    const index = UNITS.findIndex(([size]) => whole >= size);
    if (index < 0) return `0 ${UNITS.at(-1)[1]}`;
    const [size, unit] = UNITS[index];
    const next = UNITS[index + 1];
    const rest = next ? Math.floor((whole % size) / next[0]) : 0;
    return `${Math.floor(whole / size)} ${unit}` + (rest ? ` ${rest} ${next[1]}` : "");
  }

  function ago(seconds) {
    if (seconds < 5) return gettext("just now");
    const [size, unit] = UNITS.find(([unitSize]) => seconds >= unitSize) ?? UNITS[3];
    return gettext("{time} ago", { time: `${Math.floor(seconds / size)} ${unit}` });
  }

  function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function updateTitle() {
    const heading = document.querySelector("h1")?.textContent;
    const title = heading && location.pathname !== "/" ? `${heading} - Lathe` : "Lathe";
    if (document.title !== title) document.title = title;
  }

  // Times are of this computer, or of the zone chosen on the page Settings.
  const zone = { timeZone: document.cookie.match(/(?:^|; )lathe-zone=([^;]+)/)?.[1] };
  let dates = null; // made once: that takes as long as writing a hundred dates
  const written = (moment) => (dates ??= new Intl.DateTimeFormat([], { ...zone, dateStyle: "medium", timeStyle: "long" })).format(moment);

  const clock = (moment) => new Date(moment).toLocaleTimeString([], { hour12: false, ...zone });

  function updateTimes() {
    const now = Date.now() / 1000;
    const counted = (window.lathe.lostAt ?? Date.now()) / 1000; // what runs may have ended since the server last answered
    updateTitle();
    for (const element of document.querySelectorAll("time[data-ago]")) {
      const moment = Number(element.dataset.ago);
      setText(element, ago(now - moment));
      element.title ||= written(new Date(moment * 1000));
    }
    for (const element of document.querySelectorAll("time[data-clock]:not([title])")) {
      const moment = new Date(Number(element.dataset.clock) * 1000);
      setText(element, clock(moment));
      element.title = written(moment);
    }
    for (const element of document.querySelectorAll("[data-since]")) {
      setText(element, duration(counted - Number(element.dataset.since)));
    }
    for (const element of document.querySelectorAll("[data-until]")) {
      setText(element, duration(Number(element.dataset.until) - counted));
    }
  }

  // Sends the data-send value of a pressed element to the component's select event.
  function sendClicks(element, trigger) {
    element.addEventListener("click", (event) => {
      const source = event.target.closest("[data-send]");
      if (source && element.contains(source)) trigger("select", JSON.parse(source.dataset.send));
    });
  }

  // Marks the fields that the problems of all steps name, and scrolls to a field on click.
  function problems(element, trigger, watch) {
    function mark() {
      for (const field of document.querySelectorAll(".wrong")) field.classList.remove("wrong");
      for (const item of document.querySelectorAll(".problems [data-field]")) {
        document.getElementById(`setting-${item.dataset.field}`)?.classList.add("wrong");
      }
    }
    element.addEventListener("click", (event) => {
      const item = event.target.closest("[data-goto]");
      if (!item) return;
      lathe.reveal(item.dataset.goto);
      const field = document.getElementById(`setting-${item.dataset.goto}`) ?? document.querySelector(".start-card");
      field?.scrollIntoView({ behavior: "smooth", block: "center" });
      field?.querySelector("input, textarea, select")?.focus({ preventScroll: true });
    });
    sendClicks(element, trigger);
    watch("value", mark);
    mark();
  }

  // The data of a new run: clicks, and fields of the table of several data sets. A new table keeps the focus and what was typed.
  function mixture(element, trigger, watch) {
    let focused = null;
    sendClicks(element, trigger);
    element.addEventListener("focusin", (event) => {
      focused = event.target.closest("[data-key]");
    });
    element.addEventListener("change", (event) => {
      const field = event.target.closest("[data-key]");
      if (field) trigger("select", { set: Number(field.dataset.set), key: field.dataset.key, value: field.value });
    });
    watch("value", () => {
      if (!focused || document.activeElement !== document.body) return;
      const { set, key } = focused.dataset;
      const again = element.querySelector(`[data-set="${set}"][data-key="${key}"]`);
      if (!again) return;
      if (again.matches("input")) again.value = focused.value;
      again.focus();
    });
  }

  // Called after each of the handlers that fill a page of Gradio; after the last one, the page takes the place of its skeleton.
  let filled = 0;
  function live(handlers) {
    filled += 1;
    if (filled < handlers) return;
    window.lathe.loaded?.(); // static/loading.js
    requestAnimationFrame(() => {
      document.dispatchEvent(new Event("lathe-live"));
      document.getElementById("skeleton")?.remove();
      performance.mark("lathe-live");
    });
  }

  // Gradio sets another base address, at which #main would be a part of the page Runs.
  document.querySelector(".skip")?.addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  });

  setInterval(updateTimes, 1000);

  // The menu of a phone does not stay open when the screen becomes wide.
  matchMedia("(max-width: 700px)").addEventListener("change", () => document.getElementById("pages")?.hidePopover());

  // A color of the style sheets by its name, such as --red, as a canvas takes it. To compute one, the browser has to lay out the page.
  const probe = document.createElement("span");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colors = new Map();
  function color(name) {
    const key = `${name} ${dark.matches} ${document.documentElement.dataset.theme}`;
    if (!colors.has(key)) {
      if (!probe.isConnected) document.documentElement.append(probe);
      probe.style.color = `var(${name})`;
      colors.set(key, getComputedStyle(probe).color);
    }
    return colors.get(key);
  }

  const answered = ({ status }) => gettext("The server answered {status}.", { status });

  // The server's answer to a request of REST; an error has a line for each problem, with the fix.
  async function request(address, method = "GET", body) {
    const sent = body ? { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } } : {};
    const answer = await lathe.reach(address, { method, ...sent });
    const content = await answer.json().catch(() => ({})); // 204 has none
    if (answer.ok) return content;
    const problems = content.problems ?? [content.error ?? { message: answered(answer) }];
    throw new Error(problems.map(sentence).join("\n"));
  }

  function sentence({ field, value, message, fix }) {
    const name = value == null ? field : gettext("{field} (given: {value})", { field, value: JSON.stringify(value) });
    return [name && `${name}:`, message, fix].filter(Boolean).join(" ");
  }

  // Buttons that copy their data-copy. Without HTTPS a browser has no clipboard object, so the text is selected and copied.
  function copies(element) {
    element.addEventListener("click", async (event) => {
      const button = event.target.closest("[data-copy]");
      if (!button) return;
      if (navigator.clipboard) await navigator.clipboard.writeText(button.dataset.copy);
      else {
        const box = Object.assign(document.createElement("textarea"), { value: button.dataset.copy });
        button.after(box); // in the button's dialog: what is outside of an open one cannot be selected
        box.select();
        document.execCommand("copy");
        box.remove();
        button.focus();
      }
      const label = (button.dataset.label ??= button.textContent);
      button.textContent = gettext("Copied");
      setTimeout(() => (button.textContent = label), 1500);
    });
  }

  window.lathe = Object.assign(window.lathe ?? {}, { answered, clock, color, copies, gettext, live, mixture, ngettext, problems, request, sendClicks, updateTimes });
})();
