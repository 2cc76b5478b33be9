// Charts: figures come from app/pages/run/charts.py as JSON, Plotly from Gradio's files. New points update the drawing in place,
// so the zoom stays; colors written as var(--name) are looked up in the style sheet.
(() => {
  "use strict";
  const OPTIONS = { displayModeBar: false, responsive: true, doubleClick: "reset+autosize" };
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  let loading;

  function plotly() {
    if (window.Plotly) return Promise.resolve(window.Plotly);
    const address = document.querySelector('meta[name="lathe-plotly"]').content;
    loading ??= import(address).then(() => window.Plotly);
    return loading;
  }

  function coloured(value, style) {
    if (typeof value === "string") {
      const name = /^var\((--[\w-]+)\)$/.exec(value);
      return name ? style.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) {
      return typeof value[0] === "number" ? value : value.map((item) => coloured(item, style));
    }
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item, style)]));
    }
    return value;
  }

  // Gradio calls this for each chart component: `element` is its box, `props.value` the figure as JSON, or empty.
  function chart(element, props, watch) {
    const place = element.querySelector(".chart");
    const message = element.querySelector(".chart-empty");
    async function draw() {
      const asked = props.value;
      message.hidden = Boolean(asked);
      place.hidden = !asked;
      if (!asked) return;
      const figure = JSON.parse(asked);
      place.style.height = `${figure.layout.height}px`;
      const library = await plotly();
      if (asked !== props.value) return; // a newer figure came while Plotly was loading
      const { data, layout } = coloured(figure, getComputedStyle(document.documentElement));
      await library.react(place, data, layout, OPTIONS);
    }
    watch("value", draw);
    scheme.addEventListener("change", draw);
    draw();
  }

  window.lathe = Object.assign(window.lathe ?? {}, { chart });
})();
