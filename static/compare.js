// The page Compare: copying, and the field that adds runs.
(() => {
  "use strict";
  const { gettext: _ } = window.lathe;
  const WAIT = 200; // milliseconds after a key before a search
  const MOST = 8; // runs in the list

  async function copy({ target }) {
    const button = target.closest("[data-copy-from], [data-copy-link]");
    if (!button) return;
    const status = button.parentElement.querySelector("[role=status]");
    try {
      const { copyFrom } = button.dataset;
      await write(copyFrom ? await text(copyFrom) : location.href);
      status.textContent = _("{what} copied.", button.dataset);
    } catch (error) {
      status.textContent = _("Could not copy: {reason}", { reason: error.message });
    }
    clearTimeout(copy.timer);
    copy.timer = setTimeout(() => (status.textContent = ""), 4000);
  }

  async function text(address) {
    const answer = await lathe.reach(address);
    if (!answer.ok) throw new Error(window.lathe.answered(answer));
    return answer.text();
  }

  // The clipboard needs HTTPS or this machine's own address; elsewhere the old command still works.
  async function write(words) {
    if (navigator.clipboard) return navigator.clipboard.writeText(words);
    const area = document.body.appendChild(document.createElement("textarea"));
    area.value = words;
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    if (!copied) throw new Error(_("the browser does not allow it."));
  }

  // The field that adds runs: a list of matching runs, finished ones first. Keys: arrows, Enter, Escape.
  function addRun(form) {
    const field = form.querySelector("input");
    const list = form.querySelector("ul");
    let timer = null;
    let call = 0;
    let at = -1;
    let searched = Promise.resolve(); // the latest search; Enter waits for it

    const search = () => (searched = find());

    async function find() {
      timer = null;
      const mine = (call += 1);
      const words = encodeURIComponent(field.value.trim());
      const ask = (query) => text(`/api/runs?search=${words}&limit=${MOST}${query}`).then((answer) => JSON.parse(answer).runs);
      try {
        const finished = await ask("&status=finished");
        const others = finished.length < MOST ? (await ask("")).filter((run) => run.status !== "finished") : [];
        if (mine === call) show([...finished, ...others].slice(0, MOST));
      } catch (error) {
        if (mine === call) show([], _("Could not search: {reason}", { reason: error.message }));
      }
    }

    function show(runs, none = _("No matching runs.")) {
      list.replaceChildren(...runs.map(item));
      if (!runs.length) list.append(Object.assign(document.createElement("li"), { className: "none", textContent: none }));
      choose(runs.length && field.value.trim() ? 0 : -1);
      open(true);
    }

    function item(run, index) {
      const part = (tag, className, textContent) => Object.assign(document.createElement(tag), { className, textContent });
      const line = part("li", "", "");
      Object.assign(line, { id: `add-run-${index}`, role: "option" });
      line.dataset.run = run.id;
      line.append(part("bdi", "", run.name), part("span", `status-${run.status}`, _(run.status)), part("span", "mono", run.id));
      return line;
    }

    function choose(index) {
      at = index;
      [...list.children].forEach((line, place) => line.setAttribute("aria-selected", String(place === at)));
      field.setAttribute("aria-activedescendant", at < 0 ? "" : `add-run-${at}`);
      list.children[at]?.scrollIntoView({ block: "nearest" });
    }

    function open(shown) {
      list.hidden = !shown;
      field.setAttribute("aria-expanded", String(shown));
    }

    function add(run) {
      if (!run) return;
      field.value = "";
      open(false);
      const query = new URLSearchParams(location.search);
      query.set("runs", [...(query.get("runs")?.split(",") ?? []), run].join(","));
      window.lathe.view.go(`?${query}`.replaceAll("%2C", ","));
    }

    // Enter right after typing adds the best match of what was typed, not of the list before.
    async function addChosen() {
      if (timer) {
        clearTimeout(timer);
        search();
      }
      await searched;
      add(list.hidden ? null : list.children[at]?.dataset.run);
    }

    field.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(search, WAIT);
    });
    field.addEventListener("focus", search);
    field.addEventListener("blur", () => open(false));
    list.addEventListener("mousedown", (event) => event.preventDefault()); // the field keeps the focus
    list.addEventListener("click", ({ target }) => add(target.closest("[data-run]")?.dataset.run));
    field.addEventListener("keydown", (event) => {
      const moves = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const options = list.querySelectorAll("[data-run]").length;
      if (event.key === "Escape") open(false);
      else if (event.key === "Enter") addChosen();
      else if (moves && options) choose((at + moves + options) % options);
      else return;
      if (event.key !== "Escape") event.preventDefault();
    });
  }

  document.addEventListener("click", copy);
  const field = document.querySelector(".add-run");
  if (field) addRun(field); // not if the database was unreachable
})();
