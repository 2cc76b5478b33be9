// The page Runs: selection of runs with a bar of actions, columns, and the queue's order by drag.
(() => {
  "use strict";
  const { gettext: _, ngettext } = window.lathe;
  const COOKIE = "lathe_columns";
  const MOST_NAMED = 8;
  const list = document.querySelector('[data-part="list"]');
  const bar = document.querySelector(".selection");
  const edit = document.getElementById("edit");
  const selected = new Map(); // what the box of each selected run says about it, by id
  let last = null; // the row that was clicked last: Shift selects from there

  const ACTIONS = {
    pin: [(number) => ngettext("{number} run pinned.", "{number} runs pinned.", number, shown(number)), (id) => change(id, { pinned: true })],
    unpin: [(number) => ngettext("{number} run unpinned.", "{number} runs unpinned.", number, shown(number)), (id) => change(id, { pinned: false })],
    archive: [(number) => ngettext("{number} run archived.", "{number} runs archived.", number, shown(number)), (id) => change(id, { archived: true })],
    unarchive: [(number) => ngettext("{number} run returned from the archive.", "{number} runs returned from the archive.", number, shown(number)), (id) => change(id, { archived: false })],
    stop: [(number) => ngettext("{number} run asked to stop.", "{number} runs asked to stop.", number, shown(number)), (id) => lathe.request(`/api/runs/${id}/stop`, "POST")],
    delete: [(number) => ngettext("{number} run deleted.", "{number} runs deleted.", number, shown(number)), (id) => lathe.request(`/api/runs/${id}`, "DELETE").then(() => selected.delete(id))],
  };

  const change = (id, values) => lathe.request(`/api/runs/${id}`, "PATCH", values);
  const shown = (number) => ({ number: number.toLocaleString("en") });
  const count = (number) => ngettext("{number} run", "{number} runs", number, shown(number));
  const rows = () => [...list.querySelectorAll("input[data-pick]")];
  const boxes = () => rows().filter((box) => box.offsetParent); // without those of folded groups

  // Selection

  function apply() {
    for (const box of rows()) {
      if (selected.has(box.dataset.pick)) selected.set(box.dataset.pick, box.dataset);
      box.checked = selected.has(box.dataset.pick);
      box.closest("tr").classList.toggle("selected", box.checked);
    }
    const all = list.querySelector("input[data-pick-all]");
    const picked = boxes().filter((box) => box.checked).length;
    if (all) {
      all.checked = picked > 0 && picked === boxes().length;
      all.indeterminate = picked > 0 && !all.checked;
    }
    showBar();
  }

  function showBar() {
    bar.hidden = selected.size === 0;
    const ids = [...selected.keys()].join(",");
    bar.querySelector("b").textContent = _("{number} selected", { number: selected.size });
    for (const link of bar.querySelectorAll("[data-link]")) {
      link.href = link.dataset.link === "compare" ? `/compare?runs=${ids}` : `/api/runs.${link.dataset.link}?ids=${ids}`;
    }
  }

  function select(box, on) {
    if (on) selected.set(box.dataset.pick, box.dataset);
    else selected.delete(box.dataset.pick);
  }

  function pick(box, range) {
    const order = boxes();
    const from = range && last ? order.findIndex((other) => other.dataset.pick === last) : -1;
    const to = order.indexOf(box);
    const between = from < 0 ? [box] : order.slice(Math.min(from, to), Math.max(from, to) + 1);
    for (const other of between) select(other, box.checked);
    last = box.dataset.pick;
    apply();
  }

  list.addEventListener("click", (event) => {
    const box = event.target.closest("input[data-pick]");
    if (box) pick(box, event.shiftKey);
  });
  list.addEventListener("change", (event) => {
    if (!event.target.matches("[data-pick-all]")) return;
    for (const box of boxes()) select(box, event.target.checked);
    apply();
  });
  list.addEventListener("filled", apply);
  list.addEventListener("toggle", apply, true);
  apply();

  // Actions

  // Changes one run after the other; a refusal does not keep the others from being changed. Returns what was refused, by name.
  async function each(runs, act, tell) {
    const refused = [];
    let done = 0;
    for (const [id, { name }] of runs) {
      tell?.(_("{done} of {runs}", { done: done.toLocaleString("en"), runs: count(runs.length) }));
      try {
        await act(id);
      } catch (error) {
        refused.push([name, error.message]);
      }
      done += 1;
    }
    lathe.view.follow();
    return refused;
  }

  function element(tag, text, attributes = {}) {
    return Object.assign(document.createElement(tag), { textContent: text, ...attributes });
  }

  function refusals(refused) {
    const alert = element("div", "", { className: "alert", role: "alert" });
    const items = element("ul", "");
    items.append(...refused.slice(0, MOST_NAMED).map(([name, reason]) => element("li", `${name}: ${reason}`)));
    alert.append(element("b", ngettext("{number} run unchanged.", "{number} runs unchanged.", refused.length, shown(refused.length))), items);
    return alert;
  }

  function tellOutcome(said, done, refused) {
    const notice = element("p", said(done), { className: "notice" });
    document.getElementById("outcome").replaceChildren(...(done || !refused.length ? [notice] : []), ...(refused.length ? [refusals(refused)] : []));
  }

  async function perform(action, runs, tell) {
    const [said, act] = ACTIONS[action];
    const refused = await each(runs, act, tell);
    tellOutcome(said, runs.length - refused.length, refused);
    apply();
  }

  function named(runs) {
    const names = runs.slice(0, MOST_NAMED).map(([, { name }]) => name).join(", ");
    return runs.length > MOST_NAMED ? _("{names} and {number} more", { names, number: runs.length - MOST_NAMED }) : names;
  }

  const isActive = ([, { status }]) => ["queued", "running"].includes(status);

  function askToStop(runs) {
    const active = runs.filter(isActive);
    const running = active.filter(([, { status }]) => status === "running").length;
    if (!active.length) return lathe.view.question({ heading: _("Nothing to do"), text: _("None of the selected runs is queued or running.") });
    const text = [
      running && _("{number} running: each saves a checkpoint after the current step and exits; Resume continues from it.", { number: running }),
      active.length > running && _("{number} queued: removed from the queue.", { number: active.length - running }),
      named(active),
    ];
    lathe.view.question({ heading: ngettext("Stop {number} run?", "Stop {number} runs?", active.length, shown(active.length)), text: text.filter(Boolean).join("\n"), label: _("Stop") },
      (tell) => perform("stop", active, tell));
  }

  async function askToDelete(runs) {
    const ended = runs.filter((run) => !isActive(run));
    const kept = runs.length - ended.length;
    if (!ended.length) return lathe.view.question({ heading: _("Nothing to do"), text: _("All selected runs are queued or running. Stop them first.") });
    const sizes = await lathe.request(`/api/system/runs?ids=${ended.map(([id]) => id).join(",")}`);
    const bytes = Object.values(sizes.runs).reduce((sum, size) => sum + size.bytes, 0);
    const results = ended.filter(([, data]) => "result" in data).length;
    const lost = results
      ? ngettext("Settings, metrics, log and checkpoints are lost, and the results of {number} finished run.",
        "Settings, metrics, log and checkpoints are lost, and the results of {number} finished runs.", results, shown(results))
      : _("Settings, metrics, log and checkpoints are lost.");
    const text = [
      [_("This frees {size} on disk.", { size: size(bytes) }), lost, _("This cannot be undone; archiving hides runs and keeps everything.")].join(" "),
      kept && _("Not deleted, because queued or running: {runs}. Stop them first.", { runs: count(kept) }),
      named(ended),
    ];
    lathe.view.question({ heading: ngettext("Delete {number} run?", "Delete {number} runs?", ended.length, shown(ended.length)), text: text.filter(Boolean).join("\n"), label: _("Delete") },
      (tell) => perform("delete", ended, tell));
  }

  function size(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    const power = Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), units.length - 1);
    return `${(bytes / 1024 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
  }

  // The form Edit: name, notes and users of a single run; tags that are added or removed in it, for all selected runs.

  const words = (text) => text.split(",").map((word) => word.trim()).filter(Boolean);
  const field = (name) => edit.querySelector(`[name=${name}]`);

  async function openEdit(runs) {
    const single = runs.length === 1;
    const shared = runs.map(([, { tags }]) => words(tags)).reduce((some, tags) => some.filter((tag) => tags.includes(tag)));
    document.getElementById("edit-heading").textContent = single ? _("Edit the run") : _("Tags of {runs}", { runs: count(runs.length) });
    edit.querySelector(".alert").hidden = true;
    for (const label of edit.querySelectorAll(".single")) label.hidden = !single;
    field("tags").value = field("tags").dataset.before = shared.join(", ");
    if (single) await fillSingle(runs[0][0]);
    edit.showModal();
  }

  async function fillSingle(id) {
    const run = await lathe.request(`/api/runs/${id}`);
    const { users } = field("users") ? await lathe.request(`/api/runs/${id}/shares`).catch(() => ({ users: [] })) : {};
    for (const [name, value] of Object.entries({ name: run.name, notes: run.notes, tags: run.tags.join(", "), users: users?.join(", ") })) {
      if (field(name)) field(name).value = field(name).dataset.before = value;
    }
  }

  function changes(single) {
    const before = words(field("tags").dataset.before);
    const after = words(field("tags").value.toLowerCase());
    if (!single) return { add_tags: after.filter((tag) => !before.includes(tag)), remove_tags: before.filter((tag) => !after.includes(tag)) };
    const users = field("users");
    const shared = users && users.value !== users.dataset.before ? { users: words(users.value) } : {};
    return { name: field("name").value, notes: field("notes").value, tags: after, ...shared };
  }

  edit.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const runs = [...selected];
    const values = changes(runs.length === 1);
    const refused = await each(runs, (id) => change(id, values));
    const alert = edit.querySelector(".alert");
    alert.hidden = !refused.length;
    if (refused.length) return alert.replaceChildren(...refusals(refused).childNodes); // what was typed stays
    edit.close();
    tellOutcome((number) => ngettext("{number} run changed.", "{number} runs changed.", number, shown(number)), runs.length, []);
  });

  bar.addEventListener("click", async (event) => {
    const action = event.target.closest("[data-action]")?.dataset.action;
    const runs = [...selected];
    if (event.target.closest("[data-clear]")) {
      selected.clear();
      apply();
    }
    if (!action) return;
    lathe.view.say("");
    document.getElementById("outcome").replaceChildren();
    const act = { edit: openEdit, stop: askToStop, delete: askToDelete }[action] ?? ((all) => perform(action, all));
    try {
      await act(runs);
    } catch (error) {
      lathe.view.say(error.message);
    }
  });

  // Columns: those shown are in the address, and stay in this browser.

  function show(names) {
    document.cookie = `${COOKIE}=${encodeURIComponent(names.join(","))}; path=/; max-age=31536000; samesite=lax`;
    const query = new URLSearchParams(location.search);
    query.delete("columns");
    if (names.length) query.set("columns", names.join(","));
    lathe.view.go(`?${query}`, { replace: true });
  }

  const menu = document.querySelector('[data-part="columns"]');
  menu.addEventListener("change", ({ target }) => {
    const form = target.closest("form");
    const others = form.dataset.columns.split(",").filter((name) => name !== target.value);
    const names = target.matches("[type=checkbox]:not(:checked)") ? others : [...others, target.value];
    form.dataset.columns = names.join(","); // several boxes are clicked before the answer comes
    if (target.value) show(names);
  });
  menu.addEventListener("click", (event) => {
    if (event.target.closest("[data-reset]")) show([]);
  });

  // The queue: a row is dragged to its place; buttons and the list of priorities do the same by keyboard.

  const queue = document.querySelector('[data-part="queue"]');
  let dragged = null;
  const row = (event) => event.target.closest?.("tr[data-key]");
  queue.addEventListener("filled", ({ target }) => {
    if (target === queue) dragged = null; // not after a change inside of rows, which stay
  });
  queue.addEventListener("dragstart", (event) => {
    dragged = row(event);
    event.dataTransfer.effectAllowed = "move";
    dragged?.classList.add("dragged");
  });
  queue.addEventListener("dragover", (event) => {
    const over = row(event);
    if (!dragged || !over) return;
    event.preventDefault();
    const box = over.getBoundingClientRect();
    const after = event.clientY > box.top + box.height / 2;
    if (over !== dragged) over.parentNode.insertBefore(dragged, after ? over.nextSibling : over);
  });
  queue.addEventListener("drop", (event) => event.preventDefault());
  queue.addEventListener("dragend", async () => {
    if (!dragged) return;
    dragged.classList.remove("dragged");
    const before = dragged.nextElementSibling?.dataset.key ?? null;
    try {
      await lathe.request(`/api/runs/${dragged.dataset.key}/move`, "POST", { before });
    } catch (error) {
      lathe.view.say(error.message);
    }
    lathe.view.renew();
  });
})();
