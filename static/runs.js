// The page Runs: selection of runs with a bar of actions, columns, grouping, and the queue's order by drag.
(() => {
  "use strict";
  const COOKIE = "lathe_columns";

  // The list: the address holds its view, so that a refresh and a shared link show the same.
  function runs(element, trigger, watch) {
    const selected = new Set();
    let chosen = null; // columns that were asked for and are not shown yet
    let later = 0;
    let last = null; // the row that was clicked last: Shift selects from there
    const bar = selectionBar(selected, trigger, apply);

    const boxes = () => [...element.querySelectorAll("input[data-pick]")];

    function apply() {
      for (const box of boxes()) {
        box.checked = selected.has(box.dataset.pick);
        box.closest("tr").classList.toggle("selected", box.checked);
      }
      const all = element.querySelector("input[data-pick-all]");
      const picked = boxes().filter((box) => box.checked).length;
      if (all) {
        all.checked = picked > 0 && picked === boxes().length;
        all.indeterminate = picked > 0 && !all.checked;
      }
      bar.show();
    }

    function keep() {
      const list = element.querySelector("[data-query]");
      if (list && chosen?.join(",") === list.dataset.columns) chosen = null;
      if (list) {
        const query = list.dataset.query;
        history.replaceState(null, "", query ? `/?${query}` : "/");
      }
      apply();
      lathe.updateTimes();
    }

    function pick(box, range) {
      const order = boxes();
      const from = range && last ? order.findIndex((other) => other.dataset.pick === last) : -1;
      const to = order.indexOf(box);
      const between = from < 0 ? [box] : order.slice(Math.min(from, to), Math.max(from, to) + 1);
      for (const other of between) selected[box.checked ? "add" : "delete"](other.dataset.pick);
      last = box.dataset.pick;
      apply();
    }

    function columnsChosen(names) {
      chosen = names ? names.split(",") : null;
      document.cookie = `${COOKIE}=${encodeURIComponent(names)}; path=/; max-age=31536000; samesite=lax`;
      clearTimeout(later); // several boxes are one change
      later = setTimeout(() => trigger("select", { columns: names }), 250);
    }

    element.addEventListener("click", (event) => {
      const box = event.target.closest("input[data-pick]");
      if (box) return pick(box, event.shiftKey);
      const chip = event.target.closest("[data-search]");
      if (chip) return trigger("select", { search: chip.dataset.search });
      const reset = event.target.closest("button[data-columns]");
      if (reset) columnsChosen("");
    });
    element.addEventListener("change", (event) => {
      const field = event.target;
      const shown = () => chosen ?? element.querySelector("[data-columns]").dataset.columns.split(",");
      if (field.matches("[data-pick-all]")) {
        for (const box of boxes()) selected[field.checked ? "add" : "delete"](box.dataset.pick);
        apply();
      } else if (field.matches("[data-group]")) trigger("select", { group: field.value });
      else if (field.matches("[data-add-column]") && field.value) columnsChosen([...shown(), field.value].join(","));
      else if (field.matches("[data-column]")) {
        const names = shown().filter((name) => name !== field.dataset.column);
        columnsChosen((field.checked ? [...names, field.dataset.column] : names).join(","));
      }
    });
    lathe.sendClicks(element, trigger);
    element.addEventListener("lathe:rows", apply);
    document.addEventListener("lathe:gone", (event) => {
      for (const id of event.detail) selected.delete(id);
      apply();
    });
    watch("value", keepingMenus(element, keep));
    keep();
  }

  // A new list keeps an open menu open and the focus in it.
  function keepingMenus(element, then) {
    let open = null;
    let focused = null;
    element.addEventListener("toggle", (event) => {
      if (event.target.matches("details.menu")) open = event.target.open ? event.target.querySelector("summary").textContent : null;
    }, true);
    element.addEventListener("focusin", (event) => { focused = event.target.dataset?.column ?? null; });
    return () => {
      for (const menu of element.querySelectorAll("details.menu")) {
        if (menu.querySelector("summary").textContent === open) menu.open = true;
      }
      if (focused && document.activeElement === document.body) element.querySelector(`[data-column="${focused}"]`)?.focus();
      then();
    };
  }

  // The bar at the foot of the window while runs are selected.
  function selectionBar(selected, trigger, apply) {
    const bar = document.createElement("div");
    bar.className = "selection";
    bar.setAttribute("role", "toolbar");
    bar.setAttribute("aria-label", "Selected runs");
    bar.hidden = true;
    bar.innerHTML = `<b></b><a class="button primary small" data-link="compare">Compare</a>
      <button class="button small" data-action="edit">Edit</button>
      <button class="button small" data-action="pin">Pin</button><button class="button small" data-action="unpin">Unpin</button>
      <button class="button small" data-action="archive">Archive</button><button class="button small" data-action="unarchive">Unarchive</button>
      <details class="menu upwards"><summary class="button small">Export</summary><div class="menu-box">
      <a data-link="csv" download>CSV</a><a data-link="json" download>JSON</a><a data-link="markdown" download>Markdown</a></div></details>
      <button class="button small" data-action="stop">Stop</button>
      <button class="button small danger" data-action="delete">Delete</button>
      <button class="button small quiet" data-clear>Clear</button>`;
    document.querySelectorAll("div.selection").forEach((old) => old.remove());
    document.body.append(bar);
    bar.addEventListener("click", (event) => {
      const button = event.target.closest("[data-action]");
      if (button) trigger("select", { action: button.dataset.action, runs: [...selected] });
      if (event.target.closest("[data-clear]")) {
        selected.clear();
        apply();
      }
    });
    function show() {
      bar.hidden = selected.size === 0;
      const ids = [...selected].join(",");
      bar.querySelector("b").textContent = `${selected.size} selected`;
      for (const link of bar.querySelectorAll("[data-link]")) {
        link.href = link.dataset.link === "compare" ? `/compare?runs=${ids}` : `/api/runs.${link.dataset.link}?ids=${ids}`;
      }
    }
    return { show };
  }

  // What an action did: deleted runs are no longer selected.
  function outcome(element, watch) {
    watch("value", () => {
      const gone = element.querySelector("[data-gone]")?.dataset.gone;
      if (gone) document.dispatchEvent(new CustomEvent("lathe:gone", { detail: gone.split(" ") }));
    });
  }

  // Rows that changed since the last look take the place of the old ones.
  function patchRows(element, watch) {
    watch("value", () => {
      const template = element.querySelector("template");
      const list = document.querySelector(".history");
      if (!template || !list) return;
      for (const row of template.content.querySelectorAll("tr[data-run]")) {
        list.querySelector(`tr[data-run="${row.dataset.run}"]`)?.replaceWith(row.cloneNode(true));
      }
      list.querySelector("[data-query]")?.dispatchEvent(new CustomEvent("lathe:rows", { bubbles: true }));
      lathe.updateTimes();
    });
  }

  // The queue: a row is dragged to its place; buttons and the list of priorities do the same by keyboard.
  function queue(element, send, watch) {
    let dragged = null;
    let waiting = 0;
    // One change at a time: the answer to an earlier one would put the queue back.
    function trigger(event, change) {
      if (element.dataset.busy) return;
      element.dataset.busy = "1";
      clearTimeout(waiting);
      waiting = setTimeout(rest, 3000);
      send(event, change);
    }
    function rest() {
      delete element.dataset.busy;
    }
    watch("value", rest);
    const row = (event) => event.target.closest?.("tr[data-waiting]");
    element.addEventListener("dragstart", (event) => {
      dragged = row(event);
      event.dataTransfer.effectAllowed = "move";
      dragged?.classList.add("dragged");
    });
    element.addEventListener("dragover", (event) => {
      const over = row(event);
      if (!dragged || !over) return;
      event.preventDefault();
      const box = over.getBoundingClientRect();
      const after = event.clientY > box.top + box.height / 2;
      if (over !== dragged) over.parentNode.insertBefore(dragged, after ? over.nextSibling : over);
    });
    element.addEventListener("drop", (event) => event.preventDefault());
    element.addEventListener("dragend", () => {
      if (!dragged) return;
      dragged.classList.remove("dragged");
      trigger("select", { move: dragged.dataset.waiting, before: dragged.nextElementSibling?.dataset.waiting ?? "" });
      dragged = null;
    });
    element.addEventListener("change", (event) => {
      const field = event.target.closest("[data-priority]");
      if (field) trigger("select", { priority: Number(field.value), run: field.dataset.priority });
    });
    lathe.sendClicks(element, trigger);
  }

  window.lathe = Object.assign(window.lathe ?? {}, { outcome, patchRows, queue, runs });
})();
