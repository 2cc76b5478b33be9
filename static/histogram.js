// The histogram of lengths with a draggable maximum length. The page contains the numbers of every stop, so dragging needs no
// request.
(() => {
  "use strict";
  const { gettext: _, ngettext } = window.lathe;
  const SVG = "http://www.w3.org/2000/svg";
  const HEIGHT = 260, LEFT = 64, RIGHT = 24, TOP = 30, BOTTOM = 40, ROW_TICKS = 4;
  const number = (value) => value.toLocaleString("en-US");

  function share(part, whole) {
    if (!whole || !part) return "0%";
    const percent = (100 * part) / whole;
    if (percent < 0.1) return _("under {share}", { share: "0.1%" });
    return part < whole && percent > 99.9 ? _("over {share}", { share: "99.9%" }) : `${percent.toFixed(1)}%`;
  }

  // The sentence of `cost` in app/pages/templates/dataset/lengths.html.
  function cost(curve, place) {
    const limit = _("<b>At {number} tokens</b>,", { number: number(curve.stops[place]) });
    const cut = curve.rows_cut[place], lost = curve.tokens_lost[place], none = curve.untrained[place];
    if (!cut && !none) return _("{limit} no row is truncated.", { limit });
    const sentence = _("{limit} {cut} of {rows} rows ({cutShare}) are truncated, losing {lost} of {tokens} tokens ({lostShare}).", {
      limit, cut: number(cut), rows: number(curve.rows), cutShare: share(cut, curve.rows),
      lost: number(lost), tokens: number(curve.tokens), lostShare: share(lost, curve.tokens),
    });
    if (!none) return `${sentence} ${_("Every row has tokens with loss.")}`;
    const without = ngettext("{number} row has no loss tokens.", "{number} rows have no loss tokens.", none, { number: number(none) });
    return `${sentence} <b class="bad">${without}</b>`;
  }

  function draw(name, attributes, parent) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent.append(made);
    return made;
  }

  function nearest(stops, wanted) {
    let best = 0;
    for (let place = 1; place < stops.length; place += 1) {
      if (Math.abs(Math.log(stops[place] / wanted)) < Math.abs(Math.log(stops[best] / wanted))) best = place;
    }
    return best;
  }

  // Round numbers of rows for the y axis, from 0 to at least `most`.
  function rowTicks(most) {
    const rough = most / ROW_TICKS, power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, [1, 2, 5, 10].find((times) => times * power >= rough) * power);
    return Array.from({ length: Math.ceil(most / step) + 1 }, (_, index) => index * step);
  }

  class Histogram {
    constructor(box, send) {
      this.box = box;
      this.send = send;
      this.curve = JSON.parse(box.dataset.curve);
      this.limit = Number(box.dataset.limit);
      this.place = this.curve.stops.indexOf(this.limit);
      this.low = Math.log(this.curve.stops[0]);
      this.high = Math.log(this.curve.stops.at(-1));
      this.resting = 0;
      box.addEventListener("pointerdown", (event) => this.grab(event));
      box.addEventListener("pointermove", (event) => {
        if (box.hasPointerCapture(event.pointerId)) this.move(this.under(event));
        else this.tell(this.barAt(this.tokensAt(event)));
      });
      box.addEventListener("pointerleave", () => this.tell(this.barAt(this.curve.stops[this.place])));
      box.addEventListener("pointerup", () => this.settle());
      box.addEventListener("keydown", (event) => this.step(event));
      new ResizeObserver(() => this.paint()).observe(box);
    }

    scale(tokens) {
      return LEFT + ((Math.log(tokens) - this.low) / (this.high - this.low || 1)) * (this.width - LEFT - RIGHT);
    }

    paint() {
      this.width = this.box.clientWidth;
      if (!this.width) return;
      const floor = HEIGHT - BOTTOM;
      const svg = document.createElementNS(SVG, "svg");
      for (const [key, value] of [["width", this.width], ["height", HEIGHT], ["aria-hidden", "true"]]) svg.setAttribute(key, value);
      this.rowAxis(svg, floor);
      for (let tick = 1; tick <= this.curve.stops.at(-1); tick *= 2) {
        if (tick < this.curve.stops[0]) continue;
        const x = this.scale(tick);
        draw("line", { x1: x, x2: x, y1: TOP, y2: floor, class: "grid" }, svg);
        draw("text", { x, y: floor + 16, class: "tick" }, svg).textContent = number(tick);
      }
      this.bars(svg, floor);
      this.beyond = draw("rect", { y: TOP, height: floor - TOP, class: "beyond" }, svg);
      draw("line", { x1: LEFT, x2: this.width - RIGHT, y1: floor, y2: floor, class: "axis" }, svg);
      draw("text", { x: this.width - RIGHT, y: HEIGHT - 2, class: "axis-name" }, svg).textContent = _("tokens per row");
      this.readout = draw("text", { x: LEFT, y: HEIGHT - 2, class: "readout" }, svg);
      this.line = draw("g", { class: "cut-off" }, svg);
      draw("line", { y1: TOP - 4, y2: floor }, this.line);
      draw("rect", { x: -5, y: TOP - 4, width: 10, height: 18, rx: 3 }, this.line);
      this.label = draw("text", { y: TOP - 11, class: "cut-label" }, svg);
      this.box.replaceChildren(svg);
      this.move(this.place);
    }

    rowAxis(svg, floor) {
      const ticks = rowTicks(Math.max(...this.curve.counts, 1));
      this.most = ticks.at(-1);
      for (const rows of ticks) {
        const y = floor - (rows / this.most) * (floor - TOP);
        if (rows) draw("line", { x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y, class: "grid" }, svg);
        draw("text", { x: LEFT - 8, y: y + 4, class: "tick rows" }, svg).textContent = number(rows);
      }
      draw("text", { x: LEFT - 8, y: TOP - 15, class: "tick rows" }, svg).textContent = _("rows");
    }

    bars(svg, floor) {
      const { counts, edges, stops } = this.curve;
      this.rects = [];
      counts.forEach((count, index) => {
        if (!count) return;
        const left = this.scale(Math.max(edges[index], stops[0]));
        const wide = Math.max(1, this.scale(edges[index + 1]) - left - 1);
        const tall = Math.max(2, (count / this.most) * (floor - TOP));
        this.rects[index] = draw("rect", { x: left, y: floor - tall, width: wide, height: tall, class: "bar-of" }, svg);
      });
    }

    // What a bar holds, as a sentence.
    bar(index) {
      const { counts, edges } = this.curve, last = edges[index + 1] - 1;
      const span = edges[index] === last ? number(last) : _("{from} to {to}", { from: number(edges[index]), to: number(last) });
      return ngettext("{span} tokens: {number} row", "{span} tokens: {number} rows", counts[index], { span, number: number(counts[index]) });
    }

    // The bar that holds rows of this length; -1 if the axis has none there.
    barAt(tokens) {
      return this.curve.edges.findIndex((edge, index) => edge <= tokens && tokens < this.curve.edges[index + 1]);
    }

    tell(index) {
      this.rects.forEach((rect, place) => rect.classList.toggle("chosen", place === index));
      this.readout.textContent = index < 0 ? "" : this.bar(index);
    }

    move(to) {
      const { stops } = this.curve;
      this.place = Math.max(0, Math.min(stops.length - 1, to));
      const limit = stops[this.place], x = this.scale(limit);
      this.line.setAttribute("transform", `translate(${x} 0)`);
      this.beyond.setAttribute("x", x);
      this.beyond.setAttribute("width", Math.max(0, this.width - RIGHT - x));
      this.label.textContent = ngettext("{number} token", "{number} tokens", limit, { number: number(limit) });
      this.label.setAttribute("x", Math.max(LEFT + 44, Math.min(this.width - 44, x)));
      const sentence = this.box.parentElement.querySelector(".cost");
      sentence.innerHTML = cost(this.curve, this.place); // contains only our own numbers
      this.box.setAttribute("aria-valuenow", limit);
      const bar = this.barAt(limit);
      this.tell(bar);
      this.box.setAttribute("aria-valuetext", `${sentence.textContent} ${bar < 0 ? "" : _("Bar at the line: {bar}.", { bar: this.bar(bar) })}`.trim());
    }

    tokensAt(event) {
      const share = (event.clientX - this.box.getBoundingClientRect().left - LEFT) / (this.width - LEFT - RIGHT);
      return Math.exp(this.low + share * (this.high - this.low));
    }

    under(event) {
      return nearest(this.curve.stops, this.tokensAt(event));
    }

    grab(event) {
      this.box.setPointerCapture(event.pointerId);
      this.box.focus({ preventScroll: true });
      this.move(this.under(event));
    }

    step(event) {
      const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -20, PageUp: 20 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.move(this.place + by);
      clearTimeout(this.resting);
      this.resting = setTimeout(() => this.settle(), 700);
    }

    settle() {
      const limit = this.curve.stops[this.place];
      if (limit !== this.limit) this.send("max_length", limit);
    }
  }

  // Draws in a figure with data-curve and data-limit; a chosen maximum length is sent as ("max_length", tokens).
  window.lathe.histogram = (box, send) => new Histogram(box, send);
})();
