// One plot of plots.js: its readout, its uPlot and what is drawn into it. Texts of people are set as text, never as HTML.
(() => {
  "use strict";
  const { gettext: _ } = window.lathe;
  const { AXES, bounds, lowerBound, nearest, smoothed, text } = window.lathe.plotData;
  const DASHES = [[], [2, 3], [7, 4], [10, 3, 2, 3], [14, 3]];
  const VALUE_AXIS = 64; // pixels, equal in all plots so that they align
  const FEW = 40; // points of a line that are drawn as dots
  const REACH = 24; // pixels between a line and the pointer
  const [ROWS, ROW] = [4, 20]; // rows of a readout and their height, in pixels

  const style = window.lathe.color;
  const color = (name) => (name.startsWith("--") ? style(name) : name);
  const pale = (name, percent) => `color-mix(in srgb, ${color(name)} ${percent}%, transparent)`;

  function make(tag, classes, content) {
    const element = document.createElement(tag);
    if (classes) element.className = classes;
    if (content !== undefined) element.textContent = content;
    return element;
  }

  // `shared` is the state of all plots (axis, range, scale of smoothing, log, clip, hidden) with the calls cursor, zoom and reset.
  class PlotPanel {
    constructor(spec, shared) {
      this.shared = shared;
      this.element = make("section", "plot");
      this.element.hidden = true; // until it has points
      const header = this.element.appendChild(make("header"));
      this.menu = window.lathe.plotMenu(this);
      this.more = make("button", "plot-more");
      this.more.type = "button";
      this.more.addEventListener("click", () => {
        this.named = !this.named;
        this.offerMore();
      });
      this.named = false; // the readout has as many rows as it needs
      header.append((this.title = make("h3")), (this.readout = make("div", "plot-readout")), this.more, this.menu.menu);
      this.canvas = this.element.appendChild(make("div", "plot-canvas"));
      this.canvas.tabIndex = 0;
      this.canvas.setAttribute("role", "img");
      this.canvas.addEventListener("keydown", (event) => shared.key(event, this));
      this.canvas.addEventListener("blur", () => this.readout.removeAttribute("aria-live"));
      this.pointed = make("div", "plot-pointed");
      this.describe(spec);
      shared.sight.observe(this.element);
    }

    describe(spec) {
      this.spec = { scale: 1, unit: "", marks: [], limits: [], height: 170, ...spec };
      this.name();
      this.canvas.style.height = `${window.lathe.heightOfPlot(this)}px`;
      this.canvas.setAttribute("aria-label", this.title.textContent); // until there are points
      this.lines = [];
    }

    name() {
      this.title.textContent = this.spec.unit ? `${this.spec.title}, ${this.spec.unit}` : this.spec.title;
      this.menu.name(this.title.textContent);
    }

    // Memory below 1 GiB is in MiB.
    adapt(loaded) {
      if (this.spec.unit !== "GiB") return;
      const most = this.spec.lines.flatMap((line) => loaded[line.key]?.high ?? loaded[line.key]?.y ?? []).reduce((high, value) => Math.max(high, value), 0);
      if (most && most * this.spec.scale < 1) Object.assign(this.spec, { unit: "MiB", scale: this.spec.scale * 1024 });
      this.name();
    }

    // Takes the loaded points of its lines, in the panel's unit.
    set(loaded, picked) {
      this.adapt(loaded);
      const scaled = (column) => column && column.map((value) => (value === null ? null : value * this.spec.scale));
      const wanted = this.spec.lines.flatMap((line) => [
        line,
        ...(line.ranks ? picked.map((rank) => ({ ...line, key: `${line.key}/${rank}`, rank, ranks: 0, picked: true })) : []),
      ]);
      this.lines = wanted
        .filter((line) => loaded[line.key]?.x.length)
        .map((line) => {
          const { x, y, low, high, step, count, width } = loaded[line.key];
          const last = { step: step ?? x[x.length - 1], count: count ?? 1, width };
          return { ...line, ...last, x: [...x], y: scaled(y), low: scaled(low), high: scaled(high) };
        });
      this.element.hidden = !this.lines.length;
      const known = new Map(this.lines.map((line) => [line.key, line]));
      this.cells = this.cells?.map(([cell, line]) => [cell, known.get(line.key) ?? line]);
    }

    get shown() {
      return this.lines.filter((line) => !this.shared.hidden.has(entryOf(line)));
    }

    // The line at most REACH pixels from a place in the plot; null if there is none, or only one line at all.
    lineAt(x, top) {
      const away = (line) => {
        const y = line.y[nearest(line.x, x)];
        return y === null || x < line.x[0] || x > line.x[line.x.length - 1] ? Infinity : Math.abs(this.plot.valToPos(y, "y") - top);
      };
      const { shown } = this;
      if (shown.length < 2) return null;
      const [first] = shown.map((line) => [away(line), line]).sort(([one], [other]) => one - other);
      return first[0] <= REACH ? first[1] : null;
    }

    // Draws the lines besides that of the pointed entry pale, and names it where it was pointed at.
    point(moved, line, left, top) {
      if (moved) {
        this.plot.redraw(false);
        for (const [key, button] of this.buttons) button.classList.toggle("pointed", key === this.shared.pointed);
      }
      if (!line) return this.pointed.remove();
      this.pointed.replaceChildren(swatchOf(line), make("bdi", "", line.label));
      this.plot.over.append(this.pointed);
      const { offsetWidth: width } = this.pointed;
      this.pointed.style.left = `${Math.max(0, Math.min(left + 12, this.plot.over.clientWidth - width))}px`;
      this.pointed.style.top = `${top > 40 ? top - 32 : top + 14}px`;
    }

    destroy() {
      this.plot?.destroy();
      this.plot = null;
    }

    // Draws; a new uPlot only if its series or scales differ, so that the cursor stays.
    draw() {
      this.isStale = false;
      if (!this.lines.length) return this.destroy();
      const { series, bands, tables } = this.columns();
      const signature = JSON.stringify([series.map((one) => one.key), this.logarithmic, this.shared.axis]);
      const data = tables.length ? uPlot.join(tables) : [[]];
      if (!this.plot || signature !== this.signature) {
        this.destroy();
        this.signature = signature;
        this.plot = new uPlot(this.options(series, bands), data, this.canvas);
        this.buildReadout();
      } else {
        this.plot.setData(data);
      }
      this.show(null);
    }

    get logarithmic() {
      return Boolean(this.spec.log && this.shared.log);
    }

    columns() {
      const series = [{ key: "x" }];
      const bands = [];
      const tables = [];
      const { scale } = this.shared;
      const part = (line, key, column, options) => {
        tables.push([line.x, column]);
        series.push({ key: `${line.key} ${key}`, spanGaps: false, points: { show: false }, ...options });
      };
      const { shared } = this;
      for (const line of this.shown) {
        const isAside = () => shared.pointed !== null && shared.pointed !== entryOf(line);
        const ink = () => (isAside() ? pale(line.color, 16) : color(line.color));
        if (line.low) {
          part(line, "high", line.high, { width: 0 });
          part(line, "low", line.low, { width: 0 });
          bands.push({ series: [series.length - 2, series.length - 1], fill: () => pale(line.color, isAside() ? 4 : 18) });
        }
        const smooth = scale && line.smooth && line.x.length > 2;
        const dash = DASHES[(line.dash ?? (line.picked || line.group ? line.rank : 0)) % DASHES.length];
        const points = { show: () => this.few(line.key), size: 5, fill: ink };
        part(line, "raw", line.y, { stroke: smooth ? () => pale(line.color, isAside() ? 6 : 35) : ink, width: smooth ? 1 : 1.6, dash, points });
        if (smooth) part(line, "smooth", smoothed(line.x, line.y, scale), { stroke: ink, width: 1.8, dash });
      }
      return { series, bands, tables };
    }

    few(key) {
      const [from, to] = this.shared.view;
      const line = this.lines.find((one) => one.key === key); // a uPlot outlives the points, and the lines, it was made with
      return line && lowerBound(line.x, to) - lowerBound(line.x, from) < FEW;
    }

    options(series, bands) {
      const { shared } = this;
      const axis = AXES[shared.axis];
      const lines = { stroke: () => style("--grid"), width: 1 };
      const common = { stroke: () => style("--muted"), font: "11px system-ui, sans-serif", grid: lines, ticks: { show: false } };
      const texts = (_, splits) => splits.map((value) => (value === null ? null : text(value)));
      const ownTicks = this.logarithmic ? { splits: (_, __, low, high) => logTicks(low, high), filter: (_, splits) => splits } : {};
      return {
        ...this.size(), series, bands, legend: { show: false }, padding: [6, 24, 0, 0],
        scales: {
          x: { time: false, range: () => shared.view },
          y: { distr: this.logarithmic ? 3 : 1, range: () => this.bounds() },
        },
        axes: [
          { ...common, size: 24, gap: 3, space: 80, values: (_, splits) => splits.map(axis.text), ...(axis.incrs && { incrs: axis.incrs }) },
          { ...common, size: VALUE_AXIS, gap: 4, space: 30, values: texts, ...ownTicks },
        ],
        cursor: {
          y: false, points: { show: false }, drag: { x: true, y: false, setScale: false, dist: 4 },
          bind: { dblclick: () => () => shared.reset() },
        },
        hooks: {
          setCursor: [(plot) => shared.cursor(this, plot.cursor.left, plot.cursor.top)],
          setSelect: [(plot) => this.selected(plot)],
          drawAxes: [(plot) => this.drawMarks(plot)],
        },
      };
    }

    size() {
      return { width: Math.max(this.canvas.clientWidth, 120), height: window.lathe.heightOfPlot(this) };
    }

    // Limits far above the values are not in the range; they are named at the upper edge.
    bounds() {
      const options = { clip: this.shared.clip, log: this.logarithmic, fromZero: this.spec.fromZero };
      const [low, high] = bounds(this.shown, this.shared.view, options);
      const near = this.limits.map((limit) => limit.value).filter((value) => value > low && value < 2.5 * high);
      return near.length ? bounds(this.shown, this.shared.view, { ...options, values: near }) : [low, high];
    }

    get limits() {
      return this.spec.limits.map((limit) => ({ ...limit, value: limit.value * this.spec.scale }));
    }

    get marks() {
      return this.spec.marks.filter((mark) => mark.at[this.shared.axis] !== undefined);
    }

    selected(plot) {
      const { left, width } = plot.select;
      if (!width) return;
      plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      this.shared.zoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
    }

    drawMarks(plot) {
      const { ctx, bbox } = plot;
      const ratio = uPlot.pxRatio ?? devicePixelRatio;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      ctx.lineWidth = ratio;
      for (const mark of this.marks) {
        const x = Math.round(plot.valToPos(mark.at[this.shared.axis], "x", true));
        stroke(ctx, markColor(mark.kind), ["checkpoint", "evaluation"].includes(mark.kind) ? [ratio, 3 * ratio] : [], [x, bbox.top, x, bbox.top + bbox.height]);
      }
      ctx.font = `${11 * ratio}px system-ui, sans-serif`;
      const [above, inside] = [true, false].map((over) => this.limits.filter((limit) => limit.value > plot.scales.y.max === over));
      above.forEach((limit, index) => this.drawLimit(plot, limit, ratio, index));
      for (const limit of inside) this.drawLimit(plot, limit, ratio, 0);
      ctx.restore();
    }

    // The labels of limits above the range are below each other: `place` is that of this one.
    drawLimit({ ctx, bbox, scales, valToPos }, limit, ratio, place) {
      const above = limit.value > scales.y.max;
      const y = above ? bbox.top : Math.round(valToPos(limit.value, "y", true));
      const ink = color(limit.color ?? "--red");
      if (!above) stroke(ctx, ink, [6 * ratio, 4 * ratio], [bbox.left, y, bbox.left + bbox.width, y]);
      const label = `${above ? "\u2191 " : ""}${limit.label} ${text(limit.value)} ${this.spec.unit}`;
      ctx.fillStyle = ink;
      ctx.textAlign = above ? "left" : "right";
      ctx.fillText(label, above ? bbox.left + 6 * ratio : bbox.left + bbox.width - 4 * ratio, y + (y < bbox.top + 16 * ratio ? 13 + 14 * place : -4) * ratio);
    }

    resize() {
      this.canvas.style.height = `${window.lathe.heightOfPlot(this)}px`;
      this.plot?.setSize(this.size());
      this.reserve(this.canvas.clientWidth);
      if (this.plot) this.offerMore();
    }

    // The readout: for each line, or group of lines, a button that hides it and its values.
    buildReadout() {
      const entries = new Map();
      for (const line of this.lines) {
        const key = entryOf(line);
        entries.set(key, [...(entries.get(key) ?? []), line]);
      }
      this.where = make("span", "plot-where");
      this.readout.replaceChildren(this.where);
      this.cells = [];
      this.buttons = new Map();
      for (const [key, lines] of entries) {
        const button = this.readout.appendChild(make("button", "plot-line"));
        this.buttons.set(key, button);
        button.type = "button";
        button.setAttribute("aria-pressed", String(!this.shared.hidden.has(key)));
        button.title = this.shared.hidden.has(key) ? _("Show") : _("Hide");
        button.addEventListener("click", () => this.shared.toggle(key));
        for (const event of ["mouseenter", "focus"]) button.addEventListener(event, () => this.shared.point(entries.size > 1 ? key : null));
        for (const event of ["mouseleave", "blur"]) button.addEventListener(event, () => this.shared.point(null));
        button.append(swatchOf(lines[0]), make("span", "", lines[0].label));
        for (const line of lines) {
          const cell = button.appendChild(make("b"));
          if (line.rank !== undefined && !line.ranks) cell.title = _("rank {rank}", line);
          this.cells.push([cell, line]);
        }
      }
      this.happened = this.readout.appendChild(make("span", "plot-event"));
      this.offerMore();
    }

    // "+ 12" beside a readout in which that many lines have no room; it makes room.
    offerMore() {
      this.element.classList.remove("named");
      const end = this.readout.getBoundingClientRect().top + ROWS * ROW - 1;
      const without = [...this.buttons.values()].filter((button) => button.getBoundingClientRect().top >= end).length;
      this.element.classList.toggle("named", this.named && without > 0);
      this.more.hidden = !without;
      this.more.textContent = this.named ? _("Fewer") : `+ ${without}`;
      this.more.title = this.named ? "" : _("Show all lines by name");
      this.more.setAttribute("aria-expanded", String(this.named));
    }

    // The height of the readout in a plot of this width, so that it changes neither with the values nor when they are drawn.
    reserve(width) {
      const room = Math.max(width - 60 - 7 * this.title.textContent.length, 200);
      let [rows, left] = [1, room - 80];
      for (const line of this.lines) {
        const wide = Math.min(80 + 6.6 * ((line.ranks ? 14 : 0) + (line.rank ? 0 : line.label.length)), room);
        if (wide > left) [rows, left] = [rows + 1, room];
        left -= wide;
      }
      this.readout.style.height = `${Math.min(rows, ROWS) * ROW}px`;
    }

    // Shows the values nearest to `x`; the last ones without it.
    show(x) {
      if (!this.cells) return;
      for (const [cell, line] of this.cells) {
        const index = x === null ? line.x.length - 1 : nearest(line.x, x);
        const summed = line.ranks && line.low;
        const value = text(line.y[index]) + (summed ? ` (${_("{from} to {to}", { from: text(line.low[index]), to: text(line.high[index]) })})` : "");
        cell.textContent = line.picked ? `${_("rank {rank}", line)}: ${value}` : value;
      }
      this.where.textContent = x === null ? _("last") : `${AXES[this.shared.axis].where} ${AXES[this.shared.axis].text(x)}`;
      this.happened.textContent = x === null ? "" : this.eventAt(x);
      if (x === null) this.canvas.setAttribute("aria-label", this.summary());
    }

    eventAt(x) {
      const [from, to] = this.shared.view;
      const close = ((to - from) / Math.max(this.canvas.clientWidth, 1)) * 5;
      const here = this.marks.filter((mark) => Math.abs(mark.at[this.shared.axis] - x) <= close);
      return here.map((mark) => mark.text).join(" ");
    }

    summary() {
      const name = ({ label, rank }) => (rank > 0 ? _("{line} of rank {rank}", { line: label, rank }) : label);
      const values = this.cells.map(([cell, line]) => `${name(line)} ${cell.textContent}`);
      const known = { title: this.title.textContent, values: values.join(", ") };
      return _("{title}. Last values: {values}. Arrow keys move the cursor, plus and minus zoom, 0 shows all.", known);
    }
  }

  // What hides a line and names it: its group, or itself.
  const entryOf = (line) => line.group ?? line.key;

  function swatchOf(line) {
    const swatch = make("i");
    const ink = line.color.startsWith("--") ? `var(${line.color})` : line.color;
    const dash = DASHES[(line.dash ?? 0) % DASHES.length];
    swatch.classList.toggle("dashed", dash.length > 0);
    swatch.style.background = dash.length ? dashed(ink, dash) : ink;
    return swatch;
  }

  // The dash pattern of a line as a background.
  function dashed(ink, dash) {
    let at = 0;
    const stops = dash.map((length, index) => `${index % 2 ? "transparent" : ink} ${at}px ${(at += length)}px`);
    return `repeating-linear-gradient(90deg, ${stops.join(", ")})`;
  }

  function stroke(ctx, ink, dash, [fromX, fromY, toX, toY]) {
    ctx.strokeStyle = ink;
    ctx.setLineDash(dash);
    ctx.beginPath();
    ctx.moveTo(fromX, fromY);
    ctx.lineTo(toX, toY);
    ctx.stroke();
    ctx.setLineDash([]);
  }

  function markColor(kind) {
    return style({ resumed: "--amber", stop: "--amber", out_of_memory: "--red", failed: "--red" }[kind] ?? "--line-strong");
  }

  // Ticks of a logarithmic axis: 1, 2 and 5 times powers of ten, or steps of equal size within less than a decade.
  function logTicks(low, high) {
    if (high / low < 10) {
      const unit = 10 ** Math.floor(Math.log10((high - low) / 3));
      const step = [1, 2, 5, 10].map((factor) => factor * unit).find((size) => (high - low) / size <= 5);
      const first = Math.ceil(low / step);
      return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, index) => (first + index) * step);
    }
    const powers = Array.from({ length: 60 }, (_, index) => index - 30);
    const factors = high / low > 1e4 ? [1] : [1, 2, 5];
    return powers.flatMap((power) => factors.map((factor) => factor * 10 ** power)).filter((tick) => tick >= low && tick <= high);
  }

  window.lathe = Object.assign(window.lathe ?? {}, { PlotPanel, make });
})();
