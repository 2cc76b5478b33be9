// The page New run: groups that open, a search over all settings, a line of help below each choice, and keys.
(() => {
  "use strict";
  const { gettext: _ } = window.lathe;
  const SHOWN = 3; // settings without effect that the search names
  let index = {};
  let find = null;
  let asked = false; // for the strategy

  const block = (name) => document.getElementById(`setting-${name}`);
  const column = () => document.querySelector(".form-column");

  function setText(element, text) {
    if (element && element.textContent !== text) element.textContent = text;
  }

  function open(group, state) {
    group.toggleAttribute("data-open", state);
    group.querySelector(".fold").setAttribute("aria-expanded", String(state));
  }

  // While there is one device, one trains on it alone: the strategy is in the way of the other settings.
  function hideStrategy() {
    const single = block("strategy")?.querySelector("input[value=single]")?.checked;
    const one = document.querySelector("[data-devices]")?.dataset.devices === "1";
    column().toggleAttribute("data-one-device", Boolean(one && single && !asked));
  }

  // Shows a setting: ends the search and opens its group.
  function reveal(name) {
    if (name === "strategy") asked = true;
    hideStrategy();
    const group = document.getElementById(index[name]?.group);
    if (find?.value) clear();
    if (group) open(group, true);
  }

  function clear() {
    find.value = "";
    search();
  }

  // The choice that a component shows: the value of a button, or of the label in a list. None while a label is typed.
  function chosen(element, choices) {
    const button = element.querySelector("input[type=radio]:checked");
    const label = button ? null : element.querySelector("input[role=combobox]")?.value;
    return choices.find(([value, name]) => (button ? value === button.value : name === label));
  }

  function describe(name, { help, choices }) {
    const element = block(name);
    const line = element?.querySelector(".info-text");
    if (!line) return;
    const choice = choices.length ? chosen(element, choices) : null;
    if (choice) setText(line, choice[2]);
    if (line.title === help) return;
    for (const part of element.querySelectorAll(".info-text, [data-testid=block-info], .label-text")) part.title = help;
    for (const field of element.querySelectorAll("input, textarea")) field.setAttribute("aria-description", help);
  }

  function describeAll() {
    hideStrategy();
    for (const [name, item] of Object.entries(index)) describe(name, item);
    // Buttons with one name are one stop of the Tab key, with the arrow keys among them.
    for (const button of document.querySelectorAll("fieldset[id] input[type=radio]")) {
      const name = button.closest("fieldset").id;
      if (button.name !== name) button.name = name;
    }
    document.getElementById("start")?.setAttribute("title", _("Ctrl+Enter starts the run too"));
  }

  function matches(words) {
    return Object.entries(index).filter(([name, item]) => {
      const labels = item.choices.map(([, label]) => label).join(" ");
      const text = `${item.label} ${name} ${item.help} ${item.elsewhere} ${labels}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }

  function result(found) {
    if (!found.length) return _('No setting matches "{text}". Press Escape to show all.', { text: find.value.trim() });
    const without = found.filter(([name]) => !block(name));
    if (!without.length) return "";
    const named = without.slice(0, SHOWN).map(([, item]) => _("{setting} (applies to {values})", { setting: item.label, values: item.applies }));
    const settings = named.join("; ");
    if (without.length <= SHOWN) return _("Without effect on this run: {settings}.", { settings });
    return _("Without effect on this run: {settings} and {number} more.", { settings, number: without.length - SHOWN });
  }

  function search() {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = words.length ? matches(words) : [];
    const names = new Set(found.map(([name]) => `setting-${name}`));
    column().toggleAttribute("data-searching", words.length > 0);
    for (const element of column().querySelectorAll(".setting")) element.toggleAttribute("data-hit", names.has(element.id));
    for (const row of column().querySelectorAll(".group, .group .row")) {
      row.toggleAttribute("data-hit", Boolean(row.querySelector(".setting[data-hit]")));
    }
    setText(document.getElementById("find-result"), words.length ? result(found) : "");
  }

  function onFindKey(event) {
    if (event.key === "Escape") clear();
    else if (event.key === "Enter") column().querySelector(".setting[data-hit] :is(input, textarea)")?.focus();
  }

  // Wires the form. `element` has the lines of the folded groups, new after each change; it sends settings that were chosen elsewhere.
  function newRun(element, trigger, watch) {
    window.lathe.setSettings = (changes) => trigger("select", { changes });
    find = document.getElementById("find-setting");
    index = JSON.parse(find.closest("[data-index]").dataset.index);
    find.addEventListener("input", search);
    find.addEventListener("keydown", onFindKey);
    column().addEventListener("click", (event) => {
      const button = event.target.closest(".fold");
      if (button) open(button.closest(".foldable"), button.getAttribute("aria-expanded") !== "true");
      const hidden = event.target.closest("[data-reveal]")?.dataset.reveal;
      if (!hidden) return;
      reveal(hidden);
      block(hidden).querySelector("input:checked")?.focus();
    });
    column().addEventListener("change", describeAll);
    let waiting = false;
    new MutationObserver(() => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        describeAll();
        if (find.value) search();
      });
    }).observe(column(), { childList: true, subtree: true });
    function show() {
      for (const line of element.querySelectorAll("[data-group]")) {
        setText(document.querySelector(`#${line.dataset.group} .differs`), line.textContent);
      }
      describeAll();
    }
    watch("value", show);
    show();
  }

  // A list of Gradio can stay open, over other fields, when the focus has left it.
  document.addEventListener("focusout", ({ target }) => {
    if (!target.matches?.("input[role=combobox]")) return;
    setTimeout(() => {
      const left = document.activeElement !== target && target.getAttribute("aria-expanded") === "true";
      if (left) target.dispatchEvent(new FocusEvent("blur"));
    }, 50);
  });

  // A list commits what was typed when it loses the focus; Start comes after that.
  function start(event) {
    event.preventDefault();
    event.stopPropagation();
    document.activeElement?.blur();
    setTimeout(() => document.querySelector("#start:not(:disabled)")?.click(), 50);
  }

  document.addEventListener(
    "keydown",
    (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && document.getElementById("start")) start(event);
      else if (event.key === "/" && find && !event.target.closest?.("input, textarea, select, [contenteditable=true]")) {
        event.preventDefault();
        find.focus();
      } else if (event.key === "Tab") {
        // Chromium stops at a list that scrolls, which then closes and leaves the focus nowhere.
        for (const list of document.querySelectorAll(".options:has(> [role=listbox]), [role=listbox]")) list.tabIndex = -1;
      }
    },
    true,
  );

  window.lathe = Object.assign(window.lathe ?? {}, { newRun, reveal });
})();
