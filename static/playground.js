// The page Playground: which models are served, the state of their process, and one prompt for all of them.
(() => {
  "use strict";
  const { gettext: _, ngettext } = window.lathe;
  const MOST = 5;
  const WORDS = { waiting: ["queued", _("Waiting")], starting: ["running", _("Starting")], ready: ["finished", _("Ready")], ended: ["stopped", _("Ended")] };

  function playground(root) {
    const { ask, column, element, json, sampling } = window.lathe.playgroundParts;
    const at = (id) => root.querySelector(`#playground-${id}`);
    const asked = new URLSearchParams(location.search);
    let offered = [];
    let served = null;
    let queue = [];
    let history = [];
    let suggestions = [];
    let cancel = null;
    let sets = null;
    let opened = false;

    const models = () => offered[at("base").selectedIndex]?.models ?? [];
    const chosen = () => [...at("models").querySelectorAll("input:checked")].map((box) => box.value);
    const known = () => offered.flatMap((base) => base.models);
    const inWords = (model) => (model.kind === "base" ? _("base model") : model.label);
    const label = (name) => known().filter((model) => model.name === name).map(inWords)[0] ?? name;
    const prompt = () => ({ system: at("system").value, user: at("user").value, mode: at("mode").value, history });
    const serves = (one, names) => one?.state === "ready" && names.every((name) => one.models.includes(name));
    const will = (one, names) => one.state !== "ended" && names.every((name) => [...one.models, ...one.loads].includes(name));

    function drawBases() {
      at("base").replaceChildren(...offered.map((base) => new Option(base.base)));
      const wanted = asked.get("run");
      const index = offered.findIndex((base) => base.models.some((model) => model.run_id === wanted || served?.models.includes(model.name)));
      at("base").selectedIndex = Math.max(index, 0);
      drawModels();
    }

    // Checked at first: the run in the address, or what is served, or the newest result (a checkpoint if there is none); and the
    // base model.
    function first() {
      const of = (test) => models().filter(test).map((model) => model.name);
      const wanted = of((model) => model.run_id === asked.get("run") && model.kind !== "base").slice(0, 1);
      const present = served?.state !== "ended" ? of((model) => served?.models.includes(model.name)) : [];
      const newest = [...of((model) => model.kind === "result"), ...of((model) => model.kind === "checkpoint")].slice(0, 1);
      if (present.length && (!wanted.length || present.includes(wanted[0]))) return present;
      return [baseModel()?.name, ...(wanted.length ? wanted : newest)];
    }

    // Every run names the same base model: the name that is served, or that of the oldest run, which stays the same.
    function baseModel() {
      const bases = models().filter((model) => model.kind === "base");
      return bases.find((model) => served?.models.includes(model.name)) ?? bases.at(-1);
    }

    function drawModels() {
      const checked = first();
      const box = (model) => modelBox(model, checked.includes(model.name));
      const trained = models().filter((model) => model.kind === "result");
      const [front, back] = [true, false].map((is) => trained.filter((model) => checked.includes(model.name) === is));
      const results = [baseModel(), ...front, ...back].filter(Boolean); // the list scrolls: the checked ones are seen
      const checkpoints = models().filter((model) => model.kind === "checkpoint");
      at("models").replaceChildren(at("models").querySelector("legend"), ...results.map(box));
      if (checkpoints.length) at("models").append(folded(checkpoints, box));
      changed();
    }

    function modelBox(model, checked) {
      const line = element("label", "model");
      Object.assign(line.appendChild(element("input")), { type: "checkbox", value: model.name, checked });
      line.append(element("span", "", inWords(model)), element("span", "faint", about(model)));
      line.title = `${inWords(model)}: ${model.name}`;
      return line;
    }

    // The checkpoints below a heading, opened if one of them is checked or it was opened before.
    function folded(checkpoints, box) {
      const fold = element("details", "checkpoints");
      fold.append(element("summary", "", _("Checkpoints ({number})", { number: checkpoints.length })), ...checkpoints.map(box));
      fold.open = opened || Boolean(fold.querySelector("input:checked"));
      fold.addEventListener("toggle", () => (opened = fold.open));
      return fold;
    }

    // The run of a model whose label another has too, and the status of one that has not finished.
    function about(model) {
      if (model.kind === "base") return "";
      const twin = models().some((other) => other !== model && other.label === model.label);
      return [twin && model.run_id, model.status !== "finished" && _(model.status)].filter(Boolean).join(", ");
    }

    function changed() {
      const full = chosen().length >= MOST;
      for (const box of at("models").querySelectorAll("input")) box.disabled = full && !box.checked;
      at("ask").disabled = Boolean(cancel) || !chosen().length;
      drawState();
      loadRows();
      sets?.update();
    }

    function drawState() {
      const place = at("state");
      const parts = [];
      if (!served) {
        parts.push(element("span", "note", _("No model is loaded. Ask starts a process on the worker, which loads them.")));
      } else {
        const [status, word] = WORDS[served.state];
        const state = element("span", `status status-${served.state === "ended" && served.reason.includes("killed") ? "failed" : status}`);
        state.append(element("i"), word);
        parts.push(state, element("span", "note", words()));
        if (served.state === "starting") {
          const since = element("span", "note");
          since.dataset.since = served.created_at;
          parts.push(since);
        }
        if (served.state === "starting" || served.state === "waiting") {
          const bar = element("span", "bar unknown");
          bar.appendChild(element("i"));
          parts.push(bar);
        }
        if (served.state === "ended") parts.push(button(_("Start again"), () => start(chosen())));
        else parts.push(button(_("End"), () => end(served)));
      }
      for (const one of queue) {
        const line = element("div", "queued");
        line.append(element("span", "note", inQueue(one, one.models.map(label).join(", "))), button(_("Do not wait"), () => end(one)));
        parts.push(line);
      }
      const drawn = element("div");
      drawn.append(...parts);
      if (place.innerHTML !== drawn.innerHTML) place.replaceChildren(...drawn.childNodes);
      window.lathe.updateTimes();
    }

    function words() {
      const on = served.device ? _("on {device}", served) : _("on the CPU");
      if (served.state === "waiting") return inQueue(served, "");
      if (served.state === "ended") return served.reason;
      const asChosen = chosen().length === served.models.length && served.models.every((name) => chosen().includes(name));
      const names = asChosen ? "" : served.models.map(label).join(", ");
      if (served.state === "starting") return _("Loading {names} {on}", { names, on }).replace("  ", " ");
      const note = served.reason ? `; ${served.reason}` : "";
      const loads = served.loads.length && _("{names} will join them", { names: served.loads.map(label).join(", ") });
      return _("{names} {on}, process {pid}", { names, on, pid: served.pid }).trim() + (loads ? `; ${loads}` : "") + note;
    }

    // What waits, its place in the queue, and why.
    function inQueue(one, names) {
      const place = one.position ? _("number {position} in the queue", one) : "";
      return [[names, place].filter(Boolean).join(", "), one.reason].filter(Boolean).join(". ");
    }

    function button(text, action) {
      const made = element("button", "button small", text);
      made.type = "button";
      made.addEventListener("click", () => action().catch((error) => { at("state").textContent = error.message; }));
      return made;
    }

    async function start(names) {
      const asked = await json("/api/served", { method: "POST", body: { models: names } });
      await refresh();
      return asked;
    }

    async function end(one) {
      await json(`/api/served/${one.id}`, { method: "DELETE" });
      await refresh();
    }

    const refresh = async () => show(await json("/api/served"));

    function show(found) {
      ({ served, queue } = found);
      const before = JSON.stringify(offered.map((base) => base.models.map((model) => model.name)));
      offered = found.offered;
      const isNew = JSON.stringify(offered.map((base) => base.models.map((model) => model.name))) !== before;
      root.querySelector(".playground").hidden = !offered.length;
      at("empty").hidden = Boolean(offered.length);
      if (isNew && !cancel) keepingChoice(drawBases);
      drawState();
    }

    // Redraws the lists; what the user has checked stays checked.
    function keepingChoice(redraw) {
      const before = [at("base").value, chosen()];
      redraw();
      if (!before[1].length) return;
      at("base").value = before[0];
      drawModels();
      for (const box of at("models").querySelectorAll("input")) box.checked = before[1].includes(box.value);
      changed();
    }

    // Resolves when these models are served, starting them if they are not.
    async function ready(names) {
      let one = serves(served, names) ? served : await start(names);
      while (!serves(one, names)) {
        if (one.state === "ended") throw new Error(one.reason);
        if (cancel?.signal.aborted) throw new DOMException("stopped", "AbortError");
        await new Promise((resolve) => setTimeout(resolve, 400));
        await refresh();
        one = await json(`/api/served/${one.id}`);
        if (one.state !== "ended" && !will(one, names)) one = await start(names); // what could not join waits for a place of its own
      }
    }

    async function answer(model, box, given, values) {
      try {
        box.finish(await ask(model, given, values, cancel.signal, (part) => box.show(part)));
      } catch (error) {
        if (error.name === "AbortError") box.cancelled();
        else box.fail(error.message);
      }
    }

    async function askAll() {
      const names = chosen();
      const given = prompt();
      if (!given.user) return at("user").focus();
      const boxes = names.map((name) => column(name, label(name), given));
      at("answers").replaceChildren(...boxes.map((one) => one.box));
      cancel = new AbortController();
      at("ask").disabled = true;
      at("cancel").disabled = false;
      try {
        const values = sampling(root);
        await ready(names);
        await Promise.all(names.map((name, index) => answer(name, boxes[index], given, values)));
      } catch (error) {
        for (const one of boxes) error.name === "AbortError" ? one.cancelled() : one.fail(error.message);
      }
      cancel = null;
      at("cancel").disabled = true;
      changed();
      refresh().catch(() => {});
    }

    let rowsOf = null;
    async function loadRows() {
      const run = known().find((model) => model.name === (chosen().at(-1) ?? ""))?.run_id;
      if (!run || run === rowsOf) return;
      rowsOf = run;
      suggestions = (await json(`/api/runs/${run}/prompts`).catch(() => ({ suggestions: [] }))).suggestions;
      const options = suggestions.map((one, index) => {
        const text = one.prompt ?? one.messages.at(-1).content;
        return new Option(`${one.label}: ${text.length > 80 ? `${text.slice(0, 80)}…` : text}`, index);
      });
      at("rows").replaceChildren(new Option(options.length ? _("choose a row") : _("none"), ""), ...options);
    }

    function useRow() {
      const row = suggestions[Number(at("rows").value)];
      if (at("rows").value === "" || !row) return;
      const messages = row.messages ?? [];
      const system = messages[0]?.role === "system" ? messages[0] : null;
      history = messages.slice(system ? 1 : 0, -1);
      at("system").value = system?.content ?? "";
      at("user").value = row.prompt ?? messages.at(-1).content;
      at("mode").value = row.messages ? "chat" : "text";
      const turns = ngettext("{number} earlier message is sent too.", "{number} earlier messages are sent too.", history.length);
      const parts = [history.length && turns, row.expected && _("Expected: {text}", { text: row.expected })];
      expects(parts.filter(Boolean).join(" "));
    }

    function expects(text) {
      at("expected").textContent = text;
      at("expected").hidden = !text;
    }

    at("base").addEventListener("change", drawModels);
    at("models").addEventListener("change", changed);
    at("rows").addEventListener("change", useRow);
    at("user").addEventListener("input", () => { history = []; expects(""); at("rows").value = ""; });
    at("ask").addEventListener("click", askAll);
    at("cancel").addEventListener("click", () => cancel?.abort());
    root.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !at("ask").disabled) askAll();
    });
    sets = window.lathe.playgroundSets(root, { prompt, chosen, label, ready });
    const now = () => show(JSON.parse(root.querySelector("[data-part=now]").textContent));
    document.addEventListener("filled", ({ target }) => target.dataset.part === "now" && now());
    now();
  }

  if (document.querySelector(".playground")) playground(document.querySelector("main")); // not if the database was unreachable
})();
