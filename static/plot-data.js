// Numbers of line plots: smoothing, value ranges, nearest points, new points and texts. Pure functions for plots.js.
(() => {
  "use strict";
  const { gettext: _ } = window.lathe;
  const NONE = "-";

  // The time-weighted exponential moving average, debiased: a value that lies `scale` back in x counts e times less.
  function smoothed(x, y, scale) {
    let mean = 0;
    let weight = 0;
    let last = x[0];
    return y.map((value, index) => {
      if (value === null) return null;
      const decay = Math.exp((last - x[index]) / scale);
      last = x[index];
      mean = mean * decay + value;
      weight = weight * decay + 1;
      return mean / weight;
    });
  }

  // The first index whose x is not below `value`; x ascends.
  function lowerBound(x, value) {
    let low = 0;
    let high = x.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (x[middle] < value) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  function nearest(x, value) {
    const index = Math.min(lowerBound(x, value), x.length - 1);
    return index > 0 && value - x[index - 1] < x[index] - value ? index - 1 : index;
  }

  // The smallest and largest x of the lines, or null without points.
  function span(lines) {
    const ends = lines.filter((line) => line.x.length).map((line) => [line.x[0], line.x[line.x.length - 1]]);
    if (!ends.length) return null;
    return [Math.min(...ends.map(([first]) => first)), Math.max(...ends.map(([, last]) => last))];
  }

  function quantile(sorted, share) {
    const place = share * (sorted.length - 1);
    const index = Math.floor(place);
    const next = sorted[Math.min(index + 1, sorted.length - 1)];
    return sorted[index] + (next - sorted[index]) * (place - index);
  }

  function visible(line, [from, to], columns) {
    const first = Math.max(lowerBound(line.x, from) - 1, 0);
    const last = lowerBound(line.x, to) + 1;
    return columns.flatMap((column) => (column ?? []).slice(first, last)).filter((value) => value !== null);
  }

  // The value range of what is visible: of all values, or from their 1st to their 99th percentile. `values` are always inside.
  function bounds(lines, range, { clip, log, fromZero, values = [] }) {
    let shown = lines.flatMap((line) => visible(line, range, clip ? [line.y] : [line.y, line.low, line.high]));
    if (log) shown = shown.filter((value) => value > 0);
    if (!shown.length) return log ? [0.1, 1] : [0, 1];
    shown.sort((a, b) => a - b);
    const ends = clip ? [quantile(shown, 0.01), quantile(shown, 0.99)] : [shown[0], shown[shown.length - 1]];
    const low = Math.min(ends[0], ...values);
    const high = Math.max(ends[1], ...values);
    if (log) return [low / 1.08, high * 1.08];
    const margin = (high - low || Math.abs(high) || 1) * 0.06;
    return [fromZero && low >= 0 ? 0 : low - margin, high + margin];
  }

  // Adds a point at the resolution of the others: into the last one, if both lie in the same bucket of `width` steps.
  // `value` is a number or null; of a line that sums up ranks [median, low, high].
  function add(line, x, step, value, width) {
    const [middle, low, high] = Array.isArray(value) ? value : [value, value, value];
    const last = line.x.length - 1;
    const bucket = Math.floor(step / width);
    if (last >= 0 && step <= line.step) return;
    if ((low !== high || width > 1) && !line.low) [line.low, line.high] = [[...line.y], [...line.y]];
    if (last >= 0 && Math.floor(line.step / width) === bucket && line.y[last] !== null && middle !== null) {
      line.y[last] += (middle - line.y[last]) / (line.count + 1);
      line.low[last] = Math.min(line.low[last], low);
      line.high[last] = Math.max(line.high[last], high);
      line.x[last] = x;
      line.count += 1;
    } else {
      line.x.push(x);
      line.y.push(middle);
      line.low?.push(low);
      line.high?.push(high);
      line.count = 1;
    }
    line.step = step;
  }

  function text(value) {
    if (value === null || value === undefined) return NONE;
    const size = Math.abs(value);
    if (size && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
    return value.toLocaleString("en-US", size >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 4 });
  }

  function clock(seconds) {
    const whole = Math.max(0, Math.round(seconds));
    const two = (value) => String(value).padStart(2, "0");
    return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
  }

  const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 4 });
  const WHOLE = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((factor) => factor * 10 ** power)).flat();
  const AXES = {
    step: { label: _("Step"), where: _("step"), text: (value) => (Math.round(value) || 0).toLocaleString("en-US"), least: 4, incrs: WHOLE },
    tokens: { label: _("Tokens"), where: _("tokens"), text: (value) => compact.format(value), least: 4 },
    epoch: { label: _("Epoch"), where: _("epoch"), text: (value) => String(Number(value.toFixed(3))), least: 1e-3 },
    time: { label: _("Elapsed"), where: _("elapsed"), text: clock, least: 2, incrs: [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800] },
  };

  window.lathe = Object.assign(window.lathe ?? {}, {
    plotData: { AXES, add, bounds, lowerBound, nearest, smoothed, span, text },
  });
})();
