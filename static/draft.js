// Keeps what is typed on New run in the browser at each input, until the server has answered it: Gradio sends nothing after a request
// that failed, and loads the page again when the server is back. What the server has answered is in the draft (app/pages/common/form.py).
(() => {
  "use strict";
  const KEY = "lathe-typed";
  let index = null;
  let sent = {};
  let asked = false; // for the draft: what is chosen later, before the page is live, is in no field yet
  const late = new Set();
  const known = new Map(); // what each field showed when it was last looked at

  function read() {
    try {
      return JSON.parse(localStorage.getItem(KEY)) ?? {};
    } catch {
      return {};
    }
  }

  function write(typed) {
    try {
      if (Object.keys(typed).length) localStorage.setItem(KEY, JSON.stringify(typed));
      else localStorage.removeItem(KEY);
    } catch {
      // no storage
    }
  }

  // The value that a setting's component shows; none while the label of a choice is being typed.
  function shown(element) {
    index ??= JSON.parse(document.querySelector("[data-index]").dataset.index);
    const { choices } = index[element.id.replace("setting-", "")];
    const list = element.querySelector("input[role=combobox]");
    if (list) return choices.length ? choices.find(([, label]) => label === list.value)?.[0] : list.value;
    const box = element.querySelector("input[type=checkbox]");
    if (box) return box.checked;
    return (element.querySelector("input[type=radio]:checked") ?? element.querySelector("textarea, input"))?.value;
  }

  const settingOf = (element) => element?.closest?.(".form-column .setting[id^=setting-]");

  function keep(element) {
    const value = element?.isConnected ? shown(element) : undefined;
    if (value === undefined || value === known.get(element.id)) return;
    known.set(element.id, value);
    write({ ...read(), [element.id.replace("setting-", "")]: value });
  }

  // A setting that was chosen before the page is live.
  function keepTyped(name, value) {
    if (asked) late.add(name);
    write({ ...read(), [name]: value });
  }

  document.addEventListener("focusin", ({ target }) => {
    const element = settingOf(target);
    if (element) known.set(element.id, shown(element));
  });
  for (const name of ["input", "change", "focusout"]) {
    document.addEventListener(name, ({ target }) => {
      const element = settingOf(target);
      if (!element) return;
      if (name === "input") keep(element);
      setTimeout(() => keep(element)); // after the component has taken the event
    });
  }
  // A choice of a list is in no event of the field.
  document.addEventListener("pointerup", () => setTimeout(() => keep(settingOf(document.activeElement))));

  // The draft with what was typed since its last answer.
  function withTyped(draft, ...others) {
    asked = true;
    sent = read();
    return [Object.keys(sent).length ? { ...draft, values: { ...draft?.values, ...sent } } : draft, ...others];
  }

  function sendTyped(...values) {
    sent = Object.fromEntries(Object.entries(read()).filter(([name]) => !late.has(name)));
    return values;
  }

  // The fields have what was chosen late; their change is sent next.
  function typedIsSet() {
    late.clear();
    document.dispatchEvent(new Event("lathe-set"));
  }

  // What was typed since the settings were sent last.
  function pendingTyped() {
    return Object.fromEntries(Object.entries(read()).filter(([name, value]) => value !== sent[name]));
  }

  // The server has answered what was sent last: it is in the draft.
  function typedIsKept() {
    write(pendingTyped());
    window.lathe.formAnswered();
  }

  window.lathe = Object.assign(window.lathe ?? {}, { keepTyped, pendingTyped, withTyped, sendTyped, typedIsKept, typedIsSet });
})();
