// Line plots under each other, with one cursor, one zoom and one set of options.
//
//   const handle = lathe.plots(element, {panels, load, axes, empty})
//
// panels  [{key, title, unit, scale, log, fromZero, height, lines, marks, limits}]
//           scale     factor from a stored value to one in `unit` (1)       log       the option "Log scale" applies (false)
//           fromZero  the value axis begins at 0 (false)                    height    of the plot in pixels (170)
//           lines     [{key, label, color, group, rank, ranks, dash, smooth}]
//                       key     unique within the element                   color     a variable of the style sheet ("--chart-1") or a color
//                       group   lines of a group have one entry in the readout and differ in dash by `rank`: a metric of 2 to 4 ranks
//                       ranks   the line sums up this many ranks: y is their median, low and high their extremes
//                       dash    number of a dash pattern, 0 for a solid line (rank, for lines of a group)
//                       smooth  the option "Smoothing" applies (false)
//           marks     [{kind, text, at: {step, tokens, epoch, time}}]       events: checkpoint, resumed, out_of_memory, evaluation, stop
//           limits    [{label, value, color}]                               horizontal lines, as stored (before `scale`)
// load    (axis, from, to, points, ranks) -> Promise<{lines: {key: {x, y, low, high, step, count, width}}, width, panels, axes}>
//           from and to are null for the whole length; x ascends in units of the axis (time in seconds); y may have nulls (gaps).
//           low and high (or null) bound each point. `ranks` are the chosen single ranks of lines that sum up: answer them as
//           "key/rank". For `add`: `width` steps to a point (1; a line's own first), `step` and `count` of rows of its last point.
//           `panels` and `axes` replace those in use.
// axes    of ["step", "tokens", "epoch", "time"], the ones to choose from (["step"])
// empty   what stands there without points
//
// handle.add([{at: {step, tokens, epoch, time}, values: {key: number | null | [median, low, high]}}])   new points, ascending steps
// handle.update(panels)   handle.reload() -> Promise   handle.destroy()
(() => {
  "use strict";
  const { AXES, add, nearest, span } = window.lathe.plotData;
  const { PlotPanel, make } = window.lathe;
  const { SMOOTHINGS, keep, read } = window.lathe.plotOptions;
  const { gettext: _ } = window.lathe;
  const POINTS = 400;
  const RELOAD = 5000; // milliseconds between reloads that new points cause
  const AROUND = "200px 0px"; // of the window, where plots are drawn
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");

  class Plots {
    constructor(element, { panels = [], load, axes = ["step"], empty = _("No metrics yet. The plots start with the first step.") }) {
      Object.assign(this, { element, load, axes, empty, ...read(element, axes) });
      this.range = null; // the zoom, or null for everything
      this.loaded = {};
      this.width = 1;
      this.ranks = [];
      this.hidden = new Set();
      this.pointed = null; // the entry of a readout, or the line, at which the user points
      this.tools = make("div", "plot-tools");
      this.note = make("p", "note");
      this.note.setAttribute("role", "status");
      this.list = make("div", "plot-list");
      element.replaceChildren(this.tools, this.note, this.list);
      element.setAttribute("aria-busy", "true"); // the style sheet keeps the place of the plots
      this.sight = new IntersectionObserver((entries) => this.sighted(entries), { rootMargin: AROUND });
      this.update(panels);
      this.observer = new ResizeObserver(() => this.panels.forEach((panel) => panel.resize()));
      this.observer.observe(element);
      this.recolor = () => this.panels.forEach((panel) => panel.plot?.redraw(false));
      scheme.addEventListener("change", this.recolor);
      this.print = () => this.arranged.forEach((panel) => panel.isStale && panel.draw());
      addEventListener("beforeprint", this.print);
      this.reload();
    }

    destroy() {
      this.observer.disconnect();
      this.sight.disconnect();
      scheme.removeEventListener("change", this.recolor);
      removeEventListener("beforeprint", this.print);
      clearTimeout(this.drawing);
      this.panels.forEach((panel) => panel.destroy());
      this.element.replaceChildren();
    }

    update(panels, draws = true) {
      const said = JSON.stringify([panels, this.axes]);
      if (said === this.said) return;
      this.said = said;
      const known = new Map((this.panels ?? []).map((panel) => [panel.spec.key, panel]));
      this.panels = panels.map((spec) => {
        const panel = known.get(spec.key);
        known.delete(spec.key);
        panel?.describe(spec);
        return panel ?? new PlotPanel(spec, this);
      });
      known.forEach((panel) => panel.destroy());
      this.arrange();
      if (draws && this.view) this.spread();
    }

    // Puts the plots where the user wants them: those in `order` first, none of those in `without`.
    arrange() {
      const place = ({ spec }) => (this.order.includes(spec.key) ? this.order.indexOf(spec.key) : this.order.length);
      this.arranged = this.panels.filter(({ spec }) => !this.without.includes(spec.key)).sort((one, other) => place(one) - place(other));
      this.list.replaceChildren(...this.arranged.map((panel) => panel.element));
      this.buildTools(Math.max(0, ...this.panels.flatMap(({ spec }) => spec.lines.map((line) => line.ranks ?? 0))));
    }

    // Moves a plot before the plot that stands before it, or after the next one.
    move(panel, by) {
      const seen = this.arranged.filter(({ element }) => !element.hidden);
      const other = seen[seen.indexOf(panel) + by];
      if (!other) return;
      const order = this.arranged.filter((one) => one !== panel);
      order.splice(order.indexOf(other) + (by > 0 ? 1 : 0), 0, panel);
      this.choose({ order: [...order.map(({ spec }) => spec.key), ...this.elsewhere(this.order)] });
      panel.element.scrollIntoView({ block: "nearest" });
    }

    // Plots of other pages, whose arrangement stays.
    elsewhere(keys) {
      return keys.filter((key) => !this.panels.some(({ spec }) => spec.key === key));
    }

    include(key, included) {
      this.choose({ without: [...this.without.filter((other) => other !== key), ...(included ? [] : [key])] });
    }

    async reload() {
      const call = (this.call = (this.call ?? 0) + 1);
      this.asked = Date.now();
      try {
        const reply = await this.load(this.axis, this.range?.[0] ?? null, this.range?.[1] ?? null, POINTS, this.ranks);
        if (call !== this.call) return; // a later call has been made meanwhile
        this.loaded = reply.lines;
        this.width = reply.width ?? 1;
        if (reply.axes) this.axes = reply.axes;
        if (reply.panels) this.update(reply.panels, false);
        this.spread();
      } catch (error) {
        if (call !== this.call) return;
        this.element.removeAttribute("aria-busy");
        this.say(`${_("Could not load the plots.")} `, _("Retry"));
        console.warn(error);
      }
    }

    // Gives each panel its points and its place, and draws those in view.
    spread() {
      this.panels.forEach((panel) => panel.set(this.loaded, this.ranks));
      const widths = this.panels.map(({ canvas }) => canvas.clientWidth); // one layout for all
      this.panels.forEach((panel, index) => panel.reserve(widths[index]));
      this.element.removeAttribute("aria-busy");
      this.draw();
      const any = this.panels.some((panel) => panel.lines.length);
      this.say(any ? "" : this.empty);
      this.tools.hidden = !any;
    }

    draw() {
      this.view = this.range ?? this.whole();
      this.scale = SMOOTHINGS[this.smoothing][0] * (this.view[1] - this.view[0]);
      for (const panel of this.arranged) {
        panel.isStale = panel.lines.length > 0;
        if (!panel.isStale || (panel.plot && panel.isNear)) panel.draw();
      }
      this.back.disabled = !this.range;
      this.drawNext();
    }

    // Plots are drawn when they are in the window, or soon will be.
    sighted(entries) {
      for (const { target, isIntersecting } of entries) {
        const panel = this.panels.find(({ element }) => element === target);
        if (panel) panel.isNear = isIntersecting;
      }
      this.drawNext();
    }

    // They are drawn one after the other, each in a task of its own, so that the page responds in between.
    drawNext() {
      if (this.drawing) return;
      const next = this.arranged.find((panel) => panel.isStale && panel.isNear);
      if (!next) return;
      next.draw();
      this.drawing = setTimeout(() => {
        this.drawing = 0;
        this.drawNext();
      });
    }

    whole() {
      const [from, to] = span(this.panels.flatMap((panel) => panel.lines)) ?? [0, 1];
      return from === to ? [from - 0.5, to + 0.5] : [from, to];
    }

    add(points) {
      const lines = new Map(this.panels.flatMap((panel) => panel.lines.map((line) => [line.key, [line, panel.spec.scale]])));
      const expected = new Set(this.panels.flatMap((panel) => panel.spec.lines.map((line) => line.key)));
      let missing = this.ranks.length > 0;
      for (const { at, values } of points) {
        const x = at[this.axis];
        if (x === undefined || (this.range && x > this.range[1])) continue;
        for (const [key, value] of Object.entries(values)) {
          const [line, scale] = lines.get(key) ?? [];
          const scaled = (number) => (number === null ? null : number * scale);
          if (line) add(line, x, at.step, Array.isArray(value) ? value.map(scaled) : scaled(value), line.width ?? this.width);
          else missing ||= !this.range || expected.has(key);
        }
      }
      const grown = [...lines.values()].some(([line]) => line.x.length > 1.5 * POINTS);
      if ((missing || grown) && Date.now() - this.asked > RELOAD) this.reload();
      else this.draw();
    }

    zoom(from, to) {
      const [first, last] = this.extent ?? (this.extent = this.whole());
      const middle = (from + to) / 2;
      const half = Math.max(to - from, AXES[this.axis].least) / 2;
      const range = [Math.max(middle - half, first), Math.min(middle + half, Math.max(last, this.whole()[1]))];
      if (range[0] <= first && range[1] >= last) return this.reset();
      this.range = range;
      this.draw(); // what is known at once, then finer data
      this.reload();
    }

    reset() {
      this.range = this.extent = null;
      this.reload();
    }

    choose(values) {
      if (values.axis && values.axis !== this.axis) this.range = this.extent = null;
      const reload = values.axis || values.ranks;
      Object.assign(this, values);
      keep(this.element, this);
      if (values.order || values.without) this.arrange();
      if (reload) this.reload();
      else this.draw();
    }

    toggle(key) {
      if (!this.hidden.delete(key)) this.hidden.add(key);
      this.panels.forEach((panel) => (panel.signature = null));
      this.draw();
    }

    // Shows the lines of one entry in all plots, and names the line in the plot in which it is pointed at.
    point(key, panel = null, line = null, left = 0, top = 0) {
      const moved = key !== this.pointed;
      this.pointed = key;
      for (const one of this.panels) if (one.plot && (moved || one === panel)) one.point(moved, one === panel ? line : null, left, top);
    }

    // The cursor of one plot is that of all.
    cursor(source, left, top) {
      if (this.moving) return;
      this.moving = true;
      const line = left < 0 ? null : source.lineAt(source.plot.posToVal(left, "x"), top);
      if (line || this.pointed) this.point(line && (line.group ?? line.key), source, line, left, top);
      const x = left < 0 ? null : source.plot.data[0][nearest(source.plot.data[0], source.plot.posToVal(left, "x"))];
      for (const panel of this.panels) {
        if (panel !== source) panel.plot?.setCursor({ left, top: left < 0 ? -10 : 1 });
        panel.show(x ?? null);
      }
      this.moving = false;
    }

    key(event, panel) {
      const { plot } = panel;
      const [from, to] = this.view;
      const steps = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
      if (!plot || (!steps && !factor && event.key !== "0")) return;
      event.preventDefault();
      const xs = plot.data[0];
      const at = plot.cursor.left >= 0 ? nearest(xs, plot.posToVal(plot.cursor.left, "x")) : xs.length;
      if (steps) {
        const next = xs[Math.min(Math.max(at + steps * (event.shiftKey ? 10 : 1), 0), xs.length - 1)];
        panel.readout.setAttribute("aria-live", "polite");
        plot.setCursor({ left: Math.max(plot.valToPos(next, "x"), 0), top: 1 });
      } else if (factor) {
        const center = xs[at] ?? (from + to) / 2;
        this.zoom(center - (center - from) * factor, center + (to - center) * factor);
      } else {
        this.reset();
      }
    }

    say(words, action) {
      this.note.textContent = words;
      this.note.hidden = !words;
      if (!action) return;
      const button = this.note.appendChild(make("button", "button small", action));
      button.type = "button";
      button.addEventListener("click", () => this.reload());
    }

    buildTools(ranks) {
      const said = JSON.stringify([this.axes, ranks, this.without, this.panels.map(({ spec }) => spec.title)]);
      if (said === this.offered) return;
      this.offered = said;
      this.opened = new Set([...this.tools.querySelectorAll("details[open]")].map((details) => details.className.split(" ")[1]));
      this.tools.replaceChildren();
      if (this.axes.length > 1) {
        this.select(_("X axis"), this.axes.map((axis) => [axis, AXES[axis].label]), this.axis, (axis) => this.choose({ axis }));
      }
      this.select(_("Smoothing"), Object.entries(SMOOTHINGS).map(([name, [, label]]) => [name, label]), this.smoothing, (smoothing) => this.choose({ smoothing }));
      this.check(_("Log scale"), this.log, (log) => this.choose({ log }));
      this.check(_("Clip outliers"), this.clip, (clip) => this.choose({ clip }));
      if (ranks) this.tools.append(this.rankChooser(ranks));
      if (this.panels.length > 1) this.tools.append(this.plotChooser());
      this.back = this.tools.appendChild(make("button", "button small", _("Reset zoom")));
      this.back.type = "button";
      this.back.disabled = !this.range;
      this.back.addEventListener("click", () => this.reset());
      this.tools.append(make("span", "hint", _("Drag to zoom, double-click to reset.")));
    }

    select(label, choices, value, chosen) {
      const box = this.tools.appendChild(make("label", "", label));
      const select = box.appendChild(make("select"));
      for (const [key, name] of choices) select.add(new Option(name, key, false, key === value));
      select.addEventListener("change", () => chosen(select.value));
    }

    check(label, value, chosen) {
      const box = this.tools.appendChild(make("label"));
      const input = box.appendChild(make("input"));
      Object.assign(input, { type: "checkbox", checked: value });
      input.addEventListener("change", () => chosen(input.checked));
      box.append(label);
    }

    plotChooser() {
      const { details, grid } = this.chooser(_("Plots"), "plot-choice");
      for (const { spec } of this.panels) {
        const box = grid.appendChild(make("label"));
        const input = box.appendChild(make("input"));
        Object.assign(input, { type: "checkbox", value: spec.key, checked: !this.without.includes(spec.key) });
        input.addEventListener("change", () => this.include(spec.key, input.checked));
        box.append(spec.title);
      }
      const usual = grid.appendChild(make("button", "button small", _("Usual arrangement")));
      usual.type = "button";
      usual.disabled = this.panels.every(({ spec }) => ![...this.order, ...this.without].includes(spec.key));
      usual.addEventListener("click", () => this.choose({ order: this.elsewhere(this.order), without: this.elsewhere(this.without) }));
      return details;
    }

    // What was open before the tools were made again stays open.
    chooser(label, name) {
      const details = make("details", `plot-ranks ${name}`);
      details.open = Boolean(this.opened?.has(name));
      details.append(make("summary", "", label));
      return { details, grid: details.appendChild(make("div")) };
    }

    rankChooser(count) {
      const { details, grid } = this.chooser(_("Single ranks"), "");
      for (let rank = 0; rank < count; rank += 1) {
        const box = grid.appendChild(make("label"));
        const input = box.appendChild(make("input"));
        Object.assign(input, { type: "checkbox", value: rank, checked: this.ranks.includes(rank) });
        box.append(String(rank));
      }
      grid.addEventListener("change", () => {
        const ranks = [...grid.querySelectorAll("input:checked")].map((input) => Number(input.value));
        this.choose({ ranks });
      });
      return details;
    }
  }

  window.lathe = Object.assign(window.lathe ?? {}, { plots: (element, options) => new Plots(element, options) });
})();
