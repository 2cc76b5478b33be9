// Data, model, task and Start of New run until Gradio is live: what is chosen is kept as what is typed (static/draft.js), and the live
// page takes it over. Start before that waits for the check of all settings, which only the live page can show.
(() => {
  "use strict";
  const KEY = "lathe-first"; // what the live page showed last: the draft itself is read by Gradio only
  const form = document.getElementById("first-form");
  const NAMES = ["data", "model", "task"];
  const at = (name) => document.getElementById(`first-${name}`);
  const live = (name) => document.querySelector(`#setting-${name} input`);
  let starts = false;

  function stored() {
    try {
      return JSON.parse(localStorage.getItem(KEY)) ?? {};
    } catch {
      return {};
    }
  }

  function restore(name, value, label) {
    const select = at(name);
    if (!value && !label) return;
    const option = [...select.options].find((one) => (value ? one.value === value : one.text === label));
    if (option) option.selected = true;
    else select.add(new Option(value || label, value || label, true, true));
  }

  function check() {
    at("start").disabled = starts || !at("data").value || !at("model").value;
  }

  // The live page has what was chosen before it; what was chosen meanwhile is sent to it.
  function takeOver(focused) {
    const focus = () => focused && live(focused)?.focus();
    const pending = window.lathe.pendingTyped();
    if (!Object.keys(pending).length) {
      focus();
      return answered();
    }
    document.addEventListener("lathe-set", () => requestAnimationFrame(focus), { once: true }); // a list keeps its text while it has the focus
    window.lathe.setSettings(pending);
  }

  // Called after each answer of the server: keeps what the form shows, and starts the run if that was asked for.
  function answered() {
    try {
      localStorage.setItem(KEY, JSON.stringify(Object.fromEntries(NAMES.map((name) => [name, live(name)?.value ?? ""]))));
    } catch {
      // no storage
    }
    if (!starts || document.getElementById("skeleton") || Object.keys(window.lathe.pendingTyped()).length) return;
    startWhenReady();
  }

  // The button follows the check a frame later. A problem ends the wish: the page shows it.
  function startWhenReady() {
    const button = document.getElementById("start");
    const wrong = document.querySelector(".step-head:is([data-state=open], [data-state=wrong]), .start-card .blocking");
    if (!starts || (button.disabled && !wrong)) return void (starts && requestAnimationFrame(startWhenReady));
    starts = false;
    if (!button.disabled) button.click();
  }

  window.lathe = Object.assign(window.lathe ?? {}, { formAnswered: answered });
  if (!form) return;
  const query = new URLSearchParams(location.search);
  const before = query.has("data") || query.has("model") ? {} : stored();
  if (query.has("clone")) form.inert = true; // its settings are not known here
  for (const name of NAMES) restore(name, query.get(name), before[name]);
  check();
  form.addEventListener("change", ({ target }) => {
    window.lathe.keepTyped(target.dataset.first, target.value);
    check();
  });
  at("start").addEventListener("click", () => {
    starts = true;
    check();
    document.getElementById("first-says").textContent = lathe.gettext("The run starts when all settings are checked.");
  });
  document.addEventListener("lathe-live", () => setTimeout(takeOver, 0, document.activeElement?.dataset?.first));
})();
