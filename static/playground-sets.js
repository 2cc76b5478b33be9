// The page Playground: prompt sets, and the table of their answers.
(() => {
  "use strict";

  // `page` has prompt(), chosen(), label(model), ready(models) and the parts of the page.
  function playgroundSets(root, page) {
    const { ask, element, json, sampling } = window.lathe.playgroundParts;
    const chooser = root.querySelector("#set-chosen");
    const name = root.querySelector("#set-name");
    const note = root.querySelector("#set-note");
    const table = root.querySelector("#set-table");
    const buttons = { run: root.querySelector("#set-run"), remove: root.querySelector("#set-delete") };
    let sets = [];
    let running = false;

    const chosen = () => sets.find((one) => one.id === chooser.value);

    function draw() {
      const kept = chooser.value;
      chooser.replaceChildren(new Option(sets.length ? "choose a set" : "no set kept yet", ""));
      for (const one of sets) chooser.append(new Option(`${one.name} (${one.prompts.length})`, one.id));
      chooser.value = sets.some((one) => one.id === kept) ? kept : "";
      update();
    }

    function update() {
      const set = chosen();
      buttons.run.disabled = running || !set || !page.chosen().length;
      buttons.remove.disabled = running || !set;
      table.replaceChildren();
      if (!set) return;
      const models = [...new Set([...Object.keys(set.answers), ...page.chosen()])];
      const drawn = table.appendChild(element("table", "set-answers"));
      const head = drawn.createTHead().insertRow();
      for (const title of ["Prompt", ...models.map(page.label)]) head.appendChild(element("th", "", title));
      const body = drawn.createTBody();
      set.prompts.forEach((prompt, index) => {
        const row = body.insertRow();
        row.insertCell().appendChild(element("div", "text", prompt.user));
        for (const model of models) {
          const said = set.answers[model]?.[index];
          const cell = row.insertCell();
          cell.dataset.model = model;
          cell.appendChild(element("div", "text", said ? said.error ?? said.text : "")).classList.toggle("bad", Boolean(said?.error));
        }
      });
      const missing = models.filter((model) => !set.answers[model]);
      if (!running) note.textContent = missing.length ? `Not answered yet: ${missing.map(page.label).join(", ")}.` : "";
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
      if (!into) return void (note.textContent = "Choose a set, or name a new one.");
      if (!prompt.user) return void (note.textContent = "Write a prompt first.");
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
        note.textContent = `${page.label(model)}: prompt ${index + 1} of ${set.prompts.length}`;
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
      if (!confirm(`Delete the prompt set "${set.name}" with its ${set.prompts.length} prompts and all answers?`)) return;
      try {
        await json(`/api/prompt-sets/${set.id}`, { method: "DELETE" });
      } catch (error) {
        note.textContent = error.message;
      }
      await load();
    }

    chooser.addEventListener("change", update);
    root.querySelector("#set-add").addEventListener("click", add);
    buttons.run.addEventListener("click", run);
    buttons.remove.addEventListener("click", remove);
    load();
    return { update };
  }

  window.lathe = Object.assign(window.lathe ?? {}, { playgroundSets });
})();
