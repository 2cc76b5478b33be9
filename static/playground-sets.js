// The page Playground: prompt sets, and the table of their answers.
(() => {
  "use strict";
  const { gettext: _ } = window.lathe;
  const MOST_WORDS = 400;

  // The words and spaces of `text`, each with whether it is not in the longest common subsequence with `other`.
  function marked(other, text) {
    const [before, after] = [other, text].map((one) => one.split(/(\s+)/).filter(Boolean).slice(0, MOST_WORDS));
    const length = before.map(() => new Uint16Array(after.length + 1));
    length.push(new Uint16Array(after.length + 1));
    for (let i = before.length - 1; i >= 0; i--) {
      for (let j = after.length - 1; j >= 0; j--) {
        length[i][j] = before[i] === after[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
      }
    }
    const found = [];
    for (let i = 0, j = 0; j < after.length;) {
      if (i < before.length && before[i] === after[j]) found.push([after[j++], false, i++]);
      else if (i < before.length && length[i + 1][j] >= length[i][j + 1]) i += 1;
      else found.push([after[j++], true]);
    }
    const rest = text.slice(after.join("").length);
    return (rest ? [...found, [rest, false]] : found).map(([word, isNew]) => [word, isNew && Boolean(word.trim())]);
  }

  // `page` has prompt(), chosen(), label(model), ready(models) and the parts of the page.
  function playgroundSets(root, page) {
    const { ask, element, json, sampling } = window.lathe.playgroundParts;
    const chooser = root.querySelector("#set-chosen");
    const name = root.querySelector("#set-name");
    const note = root.querySelector("#set-note");
    const table = root.querySelector("#set-table");
    const every = root.querySelector("#set-every");
    const against = root.querySelector("#set-against");
    const order = root.querySelector("#set-order");
    const buttons = { run: root.querySelector("#set-run"), remove: root.querySelector("#set-delete") };
    let sets = [];
    let running = false;

    const chosen = () => sets.find((one) => one.id === chooser.value);

    async function askEvery() {
      const body = { every_result: every.checked };
      try {
        await json(`/api/prompt-sets/${chosen().id}/every-result`, { method: "PUT", body });
        await load(chosen().id);
        note.textContent = body.every_result ? _("Every run that finishes from now on answers this set, when a device is free.") : "";
      } catch (error) {
        await load(chosen().id);
        note.textContent = error.message;
      }
    }

    function draw() {
      const kept = chooser.value;
      chooser.replaceChildren(new Option(_("choose a set"), ""));
      for (const one of sets) chooser.append(new Option(`${one.name} (${one.prompts.length})`, one.id));
      chooser.closest("label").hidden = !sets.length;
      root.querySelector("#set-about").hidden = Boolean(sets.length);
      chooser.value = sets.some((one) => one.id === kept) ? kept : "";
      update();
    }

    // The chooser of the model from whose answers differences are marked; returns the chosen one, or "".
    function drawAgainst(answered) {
      const kept = against.value;
      against.replaceChildren(new Option(_("none"), ""), ...answered.map((model) => new Option(page.label(model), model)));
      against.value = answered.includes(kept) ? kept : "";
      return against.value;
    }

    // A row of the table, and how many words of its answers differ from those of the model `first`.
    function row(set, prompt, index, models, first) {
      const drawn = element("tr");
      let differing = 0;
      drawn.insertCell().appendChild(element("div", "text", prompt.user));
      const other = first && set.answers[first]?.[index]?.text;
      for (const model of models) {
        const said = set.answers[model]?.[index];
        const cell = drawn.insertCell();
        cell.dataset.model = model;
        const text = cell.appendChild(element("div", "text"));
        text.classList.toggle("bad", Boolean(said?.error));
        if (!first || model === first || said?.text === undefined || other === undefined) {
          text.textContent = said ? said.error ?? said.text : "";
          continue;
        }
        for (const [word, isNew] of marked(other, said.text)) {
          differing += isNew;
          text.append(isNew ? element("ins", "", word) : word);
        }
        if (said.text !== other) differing += 1;
      }
      return { drawn, differing };
    }

    function update() {
      const set = chosen();
      buttons.run.disabled = running || !set || !page.chosen().length;
      buttons.remove.disabled = running || !set;
      every.disabled = running || !set;
      for (const part of [buttons.run, buttons.remove, every.closest(".controls")]) part.hidden = !set;
      every.checked = Boolean(set?.every_result);
      table.replaceChildren();
      if (!set) return;
      const models = [...new Set([...Object.keys(set.answers), ...page.chosen()])];
      const first = drawAgainst(models.filter((model) => set.answers[model]));
      const drawn = table.appendChild(element("table", "set-answers"));
      const head = drawn.createTHead().insertRow();
      for (const title of [_("Prompt"), ...models.map(page.label)]) head.appendChild(element("th", "", title));
      const body = drawn.createTBody();
      const rows = set.prompts.map((prompt, index) => row(set, prompt, index, models, first));
      if (order.value === "differ") rows.sort((one, other) => other.differing - one.differing);
      body.append(...rows.map((one) => one.drawn));
      const missing = models.filter((model) => !set.answers[model]);
      if (!running) note.textContent = missing.length ? _("Not answered yet: {models}.", { models: missing.map(page.label).join(", ") }) : "";
    }

    async function load(select) {
      try {
        sets = (await json("/api/prompt-sets")).prompt_sets;
      } catch (error) {
        note.textContent = error.message;
      }
      draw();
      if (select) chooser.value = select;
      update();
    }

    async function add() {
      const prompt = page.prompt();
      const set = name.value.trim() ? sets.find((one) => one.name === name.value.trim()) : chosen();
      const into = name.value.trim() || set?.name;
      if (!into) return void (note.textContent = _("Choose a set, or name a new one."));
      if (!prompt.user) return void (note.textContent = _("Write a prompt first."));
      const { system, user, mode } = prompt;
      const prompts = [...(set?.prompts ?? []), { system, user, mode }];
      try {
        const saved = await json("/api/prompt-sets", { method: "POST", body: { name: into, prompts } });
        name.value = "";
        await load(saved.id);
      } catch (error) {
        note.textContent = error.message;
      }
    }

    async function answered(set, model, values) {
      const answers = [];
      for (const [index, prompt] of set.prompts.entries()) {
        note.textContent = _("{model}: prompt {place} of {number}", { model: page.label(model), place: index + 1, number: set.prompts.length });
        try {
          const { text, tokens, end } = await ask(model, prompt, values, undefined, () => {});
          answers.push({ text, tokens, end });
        } catch (error) {
          answers.push({ error: error.message });
        }
      }
      return answers;
    }

    async function run() {
      const set = chosen();
      running = true;
      update();
      try {
        const values = sampling(root);
        await page.ready(page.chosen());
        for (const model of page.chosen()) {
          const answers = await answered(set, model, values);
          await json(`/api/prompt-sets/${set.id}/answers`, { method: "POST", body: { model, answers } });
          await load(set.id);
        }
        note.textContent = "";
      } catch (error) {
        note.textContent = error.message;
      }
      running = false;
      update();
    }

    async function remove() {
      const set = chosen();
      if (!confirm(_('Delete the prompt set "{name}" with its {number} prompts and all answers?', { name: set.name, number: set.prompts.length }))) return;
      try {
        await json(`/api/prompt-sets/${set.id}`, { method: "DELETE" });
      } catch (error) {
        note.textContent = error.message;
      }
      await load();
    }

    for (const chooses of [chooser, against, order]) chooses.addEventListener("change", update);
    every.addEventListener("change", askEvery);
    root.querySelector("#set-add").addEventListener("click", add);
    buttons.run.addEventListener("click", run);
    buttons.remove.addEventListener("click", remove);
    load();
    return { update };
  }

  window.lathe = Object.assign(window.lathe ?? {}, { playgroundSets });
})();
