// The plots of the pages Compare and Sweep: their runs in one plot for each metric, by plots.js.
(() => {
  "use strict";
  const { gettext: _ } = window.lathe;
  const GIB = 1024 ** 3;
  const LONGEST = 600; // points of a line, at which the server thins it again
  const PANELS = [
    { key: "loss", title: _("Training loss"), log: true, height: 220, smooth: true },
    { key: "eval_loss", title: _("Evaluation loss"), log: true, height: 220 },
    { key: "reward", title: _("Reward"), height: 220, smooth: true },
    { key: "eval_reward", title: _("Evaluation reward"), height: 220 },
    { key: "learning_rate", title: _("Learning rate") },
    { key: "grad_norm", title: _("Gradient norm"), log: true, smooth: true },
    { key: "tokens_per_second", title: _("Speed"), unit: "tokens/s", fromZero: true, smooth: true },
    { key: "memory", title: _("Memory of the fullest rank"), unit: "GiB", scale: 1 / GIB, fromZero: true },
  ];

  function panels(runs) {
    const line = (run, panel) => ({
      key: `${run.id}/${panel.key}`,
      group: run.id, // its entry in a readout hides the run in all plots
      label: run.label,
      color: run.color,
      dash: run.dash,
      smooth: Boolean(panel.smooth),
    });
    return PANELS.map((panel) => ({ ...panel, lines: runs.map((run) => line(run, panel)) }));
  }

  const attempt = (stored) => stored.split(".")[0];

  // From where a run's lines can grow, or null where they are not known or have become too long.
  function tail(lines) {
    const known = Object.values(lines ?? {});
    if (!known.length || known.some((line) => line.x.length > LONGEST)) return null;
    const { width } = known[0];
    return { first_step: Math.floor(Math.max(...known.map((line) => line.step)) / width) * width, width };
  }

  // A line and the points that it has grown by; the first of them can be its last point with more rows.
  function joined(line, more, first) {
    if (!line) return more;
    const kept = line.step >= first ? line.x.length - 1 : line.x.length;
    const column = (name) => [...(line[name] ?? line.y).slice(0, kept), ...(more[name] ?? more.y)];
    const bounds = line.low || more.low ? { low: column("low"), high: column("high") } : {};
    return { ...more, x: column("x"), y: column("y"), ...bounds };
  }

  // Draws the runs that the page's part `plotted` lists.
  function comparePlots() {
    const box = document.querySelector(".compare-plots");
    const relations = window.lathe.relations(document.querySelector(".compare-relations"));
    let plots = null;
    let runs = [];
    let kept = { view: "", answers: new Map() }; // the lines of each run for one view of the plots

    // Asks only for runs of which new metrics are stored, and of a known run only for what it has grown by. A new attempt repeats
    // steps after its checkpoint, so its lines are asked for whole.
    async function load(axis, from, to, points) {
      const view = JSON.stringify([axis, from, to, points]);
      if (kept.view !== view) kept = { view, answers: new Map() };
      const { answers } = kept;
      const now = runs;
      const stale = now.filter((run) => answers.get(run.id)?.stored !== run.stored);
      const continues = (run, known) => known && attempt(known.stored) === attempt(run.stored) && tail(known.lines);
      const grown = to === null ? stale.filter((run) => continues(run, answers.get(run.id))) : [];
      const asked = async (some, more) => {
        const query = new URLSearchParams({ runs: some.map((run) => run.id).join(","), axis, points, ...more });
        if (from !== null) query.set("start", from);
        if (to !== null) query.set("end", to);
        const answer = await lathe.reach(`/api/compare/series?${query}`);
        if (!answer.ok) throw new Error(window.lathe.answered(answer));
        return Object.entries((await answer.json()).lines);
      };
      const whole = stale.filter((run) => !grown.includes(run));
      if (whole.length) {
        const lines = await asked(whole, {});
        for (const run of whole) answers.set(run.id, { stored: run.stored, lines: {} });
        for (const [key, line] of lines) answers.get(key.split("/")[0]).lines[key] = line;
      }
      for (const run of grown) {
        const { lines } = answers.get(run.id);
        const end = tail(lines);
        for (const [key, line] of await asked([run], end)) lines[key] = joined(lines[key], line, end.first_step);
        answers.get(run.id).stored = run.stored;
      }
      return { lines: Object.assign({}, ...now.map((run) => answers.get(run.id)?.lines)) };
    }

    function draw() {
      const before = JSON.stringify(runs.map((run) => run.id));
      runs = JSON.parse(document.querySelector("[data-runs]").dataset.runs);
      box.hidden = !runs.length;
      relations.update(runs);
      if (!runs.length) return;
      if (!plots) {
        const empty = _("No metrics yet. The plots start with the first step of a run.");
        const place = Object.assign(document.createElement("div"), { className: "plots" });
        box.replaceChildren(Object.assign(document.createElement("h2"), { textContent: _("Plots") }), place);
        plots = window.lathe.plots(place, { panels: panels(runs), load, axes: ["step", "tokens", "epoch", "time"], empty });
        return;
      }
      if (before !== JSON.stringify(runs.map((run) => run.id))) plots.update(panels(runs));
      plots.reload();
    }
    document.addEventListener("filled", ({ target }) => target.dataset.part === "plotted" && draw());
    draw();
  }

  if (document.querySelector("[data-runs]")) comparePlots(); // not if the run or the database is missing
})();
