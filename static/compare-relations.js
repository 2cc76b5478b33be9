// Relations between settings and results on the page Compare: a scatter plot, and parallel coordinates. Plotly, which Gradio
// includes, is loaded when somebody opens them.
(() => {
  "use strict";
  const { gettext: _ } = window.lathe;
  const FEWEST = 3; // runs for which this is worth a look
  const LOSSES = ["best_loss", "final_loss"];
  const WIDE = 50; // ratio of largest to smallest value from which an axis is logarithmic
  const OPTIONS = { displayModeBar: false, responsive: true };
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  let loading;

  function plotly() {
    if (window.Plotly) return Promise.resolve(window.Plotly);
    loading ??= import(document.querySelector("[data-plotly]").dataset.plotly).then(() => window.Plotly);
    return loading;
  }

  const style = window.lathe.color;
  const escaped = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const isNumber = (value) => typeof value === "number";
  const differs = (values) => new Set(values.filter((value) => value !== null)).size > 1;

  function font() {
    return { family: "system-ui, sans-serif", size: 12, color: style("--muted") };
  }

  function axis(label, values) {
    const known = values.filter(isNumber);
    const logarithmic = Math.min(...known) > 0 && Math.max(...known) / Math.min(...known) > WIDE;
    const line = { gridcolor: style("--grid"), linecolor: style("--line-strong"), zeroline: false };
    return { title: { text: escaped(label) }, type: logarithmic ? "log" : "linear", tickformat: "~g", automargin: true, ...line };
  }

  function layout(height) {
    const surface = style("--surface");
    return { height, paper_bgcolor: surface, plot_bgcolor: surface, font: font(), margin: { l: 70, r: 20, t: 20, b: 56 } };
  }

  function colored(values, label) {
    const bar = { title: { text: escaped(label), side: "right" }, thickness: 12, outlinewidth: 0 };
    const stops = ["--scale-1", "--scale-2", "--scale-3"].map(style);
    return { color: values, colorscale: stops.map((stop, index) => [index / 2, stop]), showscale: true, colorbar: bar };
  }

  // A dimension of the parallel coordinates; texts and missing values become places with names.
  function dimension(label, values) {
    if (values.every(isNumber)) return { label: escaped(label), values, tickformat: "~g" };
    const kinds = [...new Set(values.map((value) => (value === null ? "-" : String(value))))];
    const places = values.map((value) => kinds.indexOf(value === null ? "-" : String(value)));
    const names = kinds.map((kind) => escaped(kind.length > 24 ? `${kind.slice(0, 23)}…` : kind));
    return { label: escaped(label), values: places, tickvals: kinds.map((_, index) => index), ticktext: names };
  }

  class Relations {
    constructor(box) {
      this.box = box;
      this.details = box.appendChild(document.createElement("details"));
      const heading = this.details.appendChild(document.createElement("summary"));
      heading.appendChild(Object.assign(document.createElement("h2"), { textContent: _("Scatter and parallel coordinates") }));
      this.note = this.add("p", "note");
      this.note.setAttribute("role", "status");
      this.tools = this.add("div", "plot-tools");
      this.scatter = this.add("div", "scatter");
      this.hint = this.add("p", "hint");
      this.parallel = this.add("div", "parallel");
      this.chosen = {};
      this.details.addEventListener("toggle", () => this.load());
      scheme.addEventListener("change", () => this.draw());
    }

    add(tag, className) {
      return this.details.appendChild(Object.assign(document.createElement(tag), { className }));
    }

    update(runs) {
      this.runs = runs;
      this.box.hidden = runs.length < FEWEST;
      this.load();
    }

    async load() {
      const { runs } = this;
      const state = JSON.stringify(runs);
      if (!this.details.open || this.box.hidden || state === this.state) return;
      this.note.textContent = this.state ? "" : _("Loading");
      try {
        const query = new URLSearchParams({ runs: runs.map((run) => run.id).join(","), all_settings: true });
        const [answer] = await Promise.all([lathe.reach(`/api/compare?${query}`), plotly()]);
        if (!answer.ok) throw new Error(window.lathe.answered(answer));
        if (runs !== this.runs) return; // newer runs came meanwhile
        this.found = await answer.json();
        this.state = state;
        this.note.textContent = "";
        this.choose();
        this.draw();
      } catch (error) {
        this.note.textContent = _("Could not load the plots. {reason}", { reason: error.message });
      }
    }

    get columns() {
      return { ...this.found.measures, ...this.found.settings };
    }

    // The menus: any numeric setting that differs, or result, on each axis and as the color.
    choose() {
      const { settings, measures, labels } = this.found;
      const numeric = (columns) => Object.keys(columns).filter((key) => columns[key].some(isNumber) && columns[key].every((value) => value === null || isNumber(value)));
      const varied = numeric(settings).filter((key) => differs(settings[key]));
      const keys = [...varied, ...numeric(measures)];
      const usual = { x: keys[0], y: LOSSES.find((key) => keys.includes(key)) ?? keys[1] ?? keys[0], color: "" };
      this.tools.replaceChildren();
      for (const [name, label] of [["x", _("X axis")], ["y", _("Y axis")], ["color", _("Color")]]) {
        if (!keys.includes(this.chosen[name])) this.chosen[name] = usual[name];
        const box = this.tools.appendChild(Object.assign(document.createElement("label"), { textContent: label }));
        const select = box.appendChild(document.createElement("select"));
        if (name === "color") select.add(new Option(_("By run"), ""));
        for (const key of keys) select.add(new Option(labels[key], key));
        select.value = this.chosen[name];
        select.addEventListener("change", () => {
          this.chosen[name] = select.value;
          this.draw();
        });
      }
    }

    draw() {
      if (!this.found || !this.details.open) return;
      this.drawScatter();
      this.drawParallel();
    }

    drawScatter() {
      const { x, y, color } = this.chosen;
      const { columns } = this;
      const { labels } = this.found;
      const colors = this.runs.map((run) => style(run.color));
      const marker = color ? colored(columns[color], labels[color]) : { color: colors };
      const text = this.runs.map((run) => escaped(run.label));
      const hovertemplate = `<b>%{text}</b><br>${escaped(labels[x])}: %{x}<br>${escaped(labels[y])}: %{y}<extra></extra>`;
      const trace = { type: "scatter", mode: "markers", x: columns[x], y: columns[y], text, hovertemplate, marker: { size: 10, ...marker } };
      const axes = { xaxis: axis(labels[x], columns[x]), yaxis: axis(labels[y], columns[y]), hovermode: "closest" };
      window.Plotly.react(this.scatter, [trace], { ...layout(380), ...axes }, OPTIONS);
    }

    // The settings that differ and the losses, one line for each run that has a loss.
    drawParallel() {
      const { settings, measures, labels } = this.found;
      const losses = LOSSES.filter((key) => measures[key]?.some(isNumber));
      const places = this.runs.map((_, index) => index).filter((index) => losses.every((key) => isNumber(measures[key][index])));
      const pick = (values) => places.map((index) => values[index]);
      const keys = Object.keys(settings).filter((key) => differs(pick(settings[key])));
      this.parallel.hidden = !(losses.length && keys.length && places.length > 1);
      this.hint.hidden = this.parallel.hidden;
      this.hint.textContent = _("Drag along an axis to choose a range, click it to choose everything. Drag a name to move its axis.");
      if (this.parallel.hidden) return;
      const dimensions = [...keys.map((key) => dimension(labels[key], pick(settings[key]))), ...losses.map((key) => dimension(labels[key], pick(measures[key])))];
      const line = { ...colored(pick(measures[losses[0]]), labels[losses[0]]), reversescale: true };
      const trace = { type: "parcoords", dimensions, line, labelfont: font(), tickfont: font(), rangefont: { ...font(), color: "rgba(0, 0, 0, 0)" } };
      window.Plotly.react(this.parallel, [trace], { ...layout(360), margin: { l: 90, r: 40, t: 60, b: 24 } }, OPTIONS);
    }
  }

  window.lathe = Object.assign(window.lathe ?? {}, { relations: (box) => new Relations(box) });
})();
