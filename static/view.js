// Pages that are read (app/pages/common/view.py): fills their parts again with what the server sends, follows links and forms that
// change only what the page shows, and sends what its buttons ask for to REST. A hidden page asks for nothing.
(() => {
  "use strict";
  const CONTROLS = "a, button, input, select, textarea, summary";
  const TYPING_MS = 250;
  const AGAIN_MS = 2000;
  const main = document.querySelector("main[data-live]");
  const ask = document.getElementById("ask");
  let shown = document.getElementById("shown").dataset.version;
  let present = location.search; // what the page shows
  let source = null;
  let filling = false;

  function address() {
    const query = new URLSearchParams(location.search);
    query.set("shown", shown);
    return `${main.dataset.live}?${query}`;
  }

  // True for a field whose value is not the one that the server has put there.
  function isChanged(field) {
    if (field.type === "checkbox") return field.checked !== field.defaultChecked;
    return field.options ? [...field.options].some((one) => one.selected !== one.defaultSelected) : field.value !== field.defaultValue;
  }

  // The focus stays on the same control of the same row, which the new part has again; what was typed, opened or scrolled remains so.
  function fill(part, html) {
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const key = focused?.closest("[data-key]")?.dataset.key;
    const rowOf = () => (key && rowIn(part, key)) || part;
    const index = focused && [...rowOf().querySelectorAll(CONTROLS)].indexOf(focused);
    // What is being typed stays, unless the page now shows another value there.
    const typed = focused?.matches("input, textarea") && focused.value !== focused.defaultValue ? focused.value : null;
    const folds = new Map([...part.querySelectorAll("details[id]")].map((fold) => [fold.id, fold.open]));
    const boxes = () => [...part.querySelectorAll("[data-scroll], .table-wrap")].map((box, index) => [box.dataset.scroll ?? index, box]);
    const scrolled = new Map(boxes().map(([key, box]) => [key, [box.scrollLeft, box.scrollTop]]));
    const fields = [...part.querySelectorAll("form[data-do] :is(input, textarea, select)[id]")].filter(isChanged);
    filling = true; // the browser tells of a change in the field that it removes
    part.innerHTML = html;
    filling = false;
    for (const { id, value, checked } of fields) Object.assign(document.getElementById(id) ?? {}, { value, checked });
    for (const [id, open] of folds) document.getElementById(id)?.toggleAttribute("open", open);
    for (const [key, box] of boxes()) [box.scrollLeft, box.scrollTop] = scrolled.get(key) ?? [0, 0];
    const again = focused?.id ? document.getElementById(focused.id) : focused && rowOf().querySelectorAll(CONTROLS)[index];
    if (typed !== null && again?.defaultValue === focused.defaultValue) again.value = typed;
    again?.focus({ preventScroll: true });
    part.dispatchEvent(new CustomEvent("filled", { bubbles: true }));
  }

  function rowIn(part, key) {
    return part.querySelector(`[data-key="${CSS.escape(key)}"]`);
  }

  // Only these rows of a part have changed.
  function fillRows(part, rows) {
    for (const [key, html] of Object.entries(rows)) {
      const row = rowIn(part, key);
      const template = Object.assign(document.createElement("template"), { innerHTML: html });
      const fresh = template.content.firstElementChild;
      for (const name of row.getAttributeNames()) row.removeAttribute(name);
      for (const { name, value } of fresh.attributes) row.setAttribute(name, value);
      fill(row, fresh.innerHTML);
    }
  }

  function show({ parts, unreachable, missing }) {
    if (missing) return void location.reload();
    document.getElementById("unreachable").hidden = !unreachable;
    for (const [name, content] of Object.entries(parts ?? {})) {
      const part = main.querySelector(`[data-part="${name}"]`);
      if (!part) return void location.reload(); // the page was made while the database was unreachable
      if (typeof content === "string") fill(part, content);
      else fillRows(part, content);
    }
    lathe.updateTimes();
  }

  // Asks the server for what has changed since `shown`, at once and as long as the page is open.
  function follow() {
    source?.close();
    source = null;
    // A page that has nothing to follow: one without parts, unless the database was unreachable, or of what does not exist.
    const isStill = !main.dataset.live || (shown && !main.querySelector("[data-part]"));
    if (document.hidden || isStill) return;
    source = new EventSource(address());
    source.addEventListener("message", (event) => {
      shown = event.lastEventId;
      main.removeAttribute("aria-busy");
      show(JSON.parse(event.data));
    });
    // After a lost connection the browser connects again itself; after a refusal, as of a proxy while the server starts, it does not.
    source.addEventListener("error", ({ target }) => {
      if (target.readyState === EventSource.CLOSED) setTimeout(() => target === source && follow(), AGAIN_MS);
    });
  }

  // Shows what an address of this page shows.
  function go(query, { replace = false } = {}) {
    history[replace ? "replaceState" : "pushState"](null, "", query === "?" ? location.pathname : query);
    main.setAttribute("aria-busy", "true");
    say("");
    renew();
  }

  // Asks for all parts again, whatever they are.
  function renew() {
    present = location.search;
    readAddress();
    shown = "another";
    follow();
  }

  // Shows what went wrong, or nothing.
  function say(text) {
    const said = document.getElementById("said");
    said.textContent = text;
    said.hidden = !text;
    document.getElementById("told").hidden = true;
    if (text) said.scrollIntoView({ block: "nearest" });
  }

  // Shows what was done: a text whose {key} are values of the server's answer, each with a button that copies it.
  function tell(text, answer) {
    const told = document.getElementById("told");
    told.replaceChildren(...text.split(/(\{\w+\})/).flatMap((piece) => {
      const key = piece.match(/^\{(\w+)\}$/)?.[1];
      if (!key) return [piece];
      const code = Object.assign(document.createElement("code"), { textContent: answer[key] });
      if (key !== "token") return [code];
      const copy = Object.assign(document.createElement("button"), { type: "button", className: "button small", textContent: lathe.gettext("Copy") });
      copy.dataset.copy = answer[key];
      return [code, " ", copy];
    }));
    told.hidden = false;
    told.scrollIntoView({ block: "nearest" });
  }

  // The values in the lines of a text, each of which is JSON.
  const objects = (text) => text.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line));

  // The values of a form. `name[]` is a list, of what is checked; a box that is alone is true or false; `outer/name` is a value in
  // another one. Fields with data-kind are numbers, lists or JSON; those with data-optional are left out if they are empty.
  function written(form) {
    const kinds = { number: Number, list: (text) => text.split(",").map((item) => item.trim()).filter(Boolean), json: objects };
    const body = {};
    for (const field of form.elements) {
      if (!field.name || (!field.value && ("optional" in field.dataset || field.tagName === "SELECT"))) continue;
      const path = field.name.replace("[]", "").split("/");
      const last = path.pop();
      const inner = path.reduce((outer, key) => (outer[key] ??= {}), body);
      if (field.name.endsWith("[]")) inner[last] = [...(inner[last] ?? []), ...(field.checked ? [field.value] : [])];
      else if (field.type === "checkbox") inner[last] = field.checked;
      else inner[last] = kinds[field.dataset.kind]?.(field.value) ?? field.value;
    }
    return body;
  }

  function bodyOf(source) {
    if (source.matches("form")) return written(source);
    if (source.matches("select")) return { [source.name]: source.value };
    return source.dataset.body && JSON.parse(source.dataset.body);
  }

  // Sends the request of a button, a form, or a list with what is chosen in it; what the server refuses is thrown.
  async function send(source, body = bodyOf(source)) {
    const [method, path] = source.dataset.do.split(" ", 2);
    const request = "query" in source.dataset ? [`${path}?${new URLSearchParams(body)}`, method] : [path, method, body];
    const answer = await lathe.request(...request);
    const { then, told } = source.dataset;
    const address = then?.replace(/\{(\w+)\}/g, (_, key) => encodeURIComponent(answer[key]));
    if (address && !address.startsWith("?")) return void location.assign(address);
    if (address) go(address, { replace: true });
    else if (!(waiting.get(source) > 1)) follow(); // what was pressed meanwhile is not on the server yet
    if (told) tell(told, answer);
  }

  // Shows in the form, or above the page, why its request was refused; or nothing.
  function refuse(source, text) {
    const alert = source.querySelector(".alert");
    if (!alert) return say(text);
    alert.textContent = text;
    alert.hidden = !text;
  }

  async function sent(source, body) {
    const button = source.matches("form") ? source.querySelector("[type=submit]") : source;
    if (button) button.disabled = true;
    refuse(source, "");
    try {
      await send(source, body);
      if (source.matches("form[data-do^=POST]:not([data-stays])")) source.reset();
      else for (const field of source.closest("dialog") ? source.elements : []) field.defaultValue = field.value;
      source.closest("dialog")?.close();
    } catch (error) {
      refuse(source, error.message);
      if (source.matches("form[data-at-once]")) source.reset(); // the boxes show what the server has
      for (const option of source.options ?? []) option.selected = option.defaultSelected;
    }
    if (button) button.disabled = false;
  }

  // Of a form with data-at-once the requests follow one another, so that the server ends with the last state.
  const sending = new WeakMap();
  const waiting = new WeakMap();
  function sentInOrder(form) {
    const body = bodyOf(form);
    const count = (change) => waiting.set(form, (waiting.get(form) ?? 0) + change);
    count(1);
    sending.set(form, (sending.get(form) ?? Promise.resolve()).then(() => sent(form, body)).finally(() => count(-1)));
  }

  // Asks in a dialog before `act` does something, and says why it was refused. `act` can change the dialog's text meanwhile.
  // Without a label there is nothing to do.
  function question({ heading, text, label }, act) {
    const confirm = ask.querySelector("[data-confirm]");
    const alert = ask.querySelector(".alert");
    const change = (words) => (document.getElementById("ask-text").textContent = words);
    document.getElementById("ask-heading").textContent = heading;
    change(text);
    confirm.textContent = label;
    confirm.hidden = !label;
    confirm.disabled = false;
    alert.hidden = true;
    confirm.onclick = async () => {
      confirm.disabled = true;
      try {
        await act(change);
        ask.close();
      } catch (error) {
        alert.textContent = error.message;
        alert.hidden = false;
      }
      confirm.disabled = false;
    };
    ask.showModal();
  }

  // A dialog that was left by Cancel or Escape opens without what was typed in it.
  function openDialog(dialog) {
    dialog.querySelector("form")?.reset();
    dialog.showModal();
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-do]");
    if (button) return void (button.dataset.ask ? question(JSON.parse(button.dataset.ask), () => send(button)) : sent(button));
    const opener = event.target.closest("[data-open]");
    if (opener) return void openDialog(document.getElementById(opener.dataset.open));
    if (event.target.closest("dialog [data-close]")) return void event.target.closest("dialog").close();
    const link = event.target.closest("main a[href^='?']");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(link.getAttribute("href"));
  });

  document.addEventListener("change", (event) => {
    if (event.target.matches("select[data-do]")) sent(event.target);
    else if (event.target.form?.matches("form[data-do][data-at-once]")) sentInOrder(event.target.form);
  });

  // Forms with data-live: the page shows what is typed; empty fields are not in the address. Of the rest of the address, what
  // data-keeps names stays. With data-live="change" the page shows a value when its field is left, or Enter is pressed in it; with
  // data-step, that is a step back in the browser's history.
  let typing = 0;
  const liveForm = (event, live) => (event.target.form?.matches(`form[data-live="${live}"]`) ? event.target.form : null);
  function read(form, replace) {
    clearTimeout(typing);
    const kept = (form.dataset.keeps ?? "").split(" ");
    const fields = [...new FormData(form)].filter(([name, value]) => value && !kept.includes(name));
    const others = [...new URLSearchParams(location.search)].filter(([name]) => kept.includes(name));
    for (const field of form.elements) field.defaultValue = field.value; // it is sent, and no longer being typed
    go(`?${new URLSearchParams([...fields, ...others])}`, { replace });
  }
  document.addEventListener("input", (event) => {
    const form = liveForm(event, "");
    if (!form) return;
    clearTimeout(typing);
    typing = setTimeout(() => read(form, true), TYPING_MS);
  });
  document.addEventListener("change", (event) => {
    const form = liveForm(event, "change");
    if (form && !filling) read(form, !("step" in form.dataset));
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-live], form[data-do]")) return;
    event.preventDefault();
    if (event.target.dataset.do) sent(event.target);
    else if (!event.target.dataset.live) read(event.target, false); // otherwise the change was read
  });

  // The fields of such forms outside of parts show what is in the address, apart from one in which a user types.
  function readAddress() {
    const query = new URLSearchParams(location.search);
    const forms = document.querySelectorAll("form[data-live]:not([data-part] *)");
    const fields = [...forms].flatMap((form) => [...form.elements]);
    for (const field of fields) {
      if (!field.name || field.type === "hidden" || field === document.activeElement) continue;
      if (["checkbox", "radio"].includes(field.type)) field.checked = (query.get(field.name) ?? "") === field.value;
      else field.value = query.get(field.name) ?? "";
    }
  }

  // Menus: one is open at a time; it closes on Escape, on a click outside, and when a link in it is chosen.
  const openMenus = () => [...document.querySelectorAll("details.menu[open]")];
  document.addEventListener("click", (event) => {
    for (const menu of openMenus()) if (!menu.contains(event.target) || event.target.closest(".menu-box a")) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      for (const menu of openMenus()) {
        menu.open = false;
        menu.querySelector("summary").focus();
      }
    } else if (event.key === "/" && !event.target.closest("input, textarea, select")) {
      const search = document.querySelector("main input[type=search]");
      if (!search) return;
      event.preventDefault();
      search.focus();
    }
  });

  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", () => source?.close());
  addEventListener("popstate", () => location.search !== present && renew()); // links to sections change nothing that is shown
  window.lathe.view = { fill, follow, go, question, renew, say };
  lathe.copies(document.body);
  follow();
  lathe.updateTimes();
  performance.mark("lathe-live");
})();
