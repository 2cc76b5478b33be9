// The menu of one plot (plot-panel.js): full screen, its picture as PNG, its points as CSV, and its place among the others.
(() => {
  "use strict";
  const { gettext: _ } = window.lathe;
  const MARGIN = 70; // pixels around a plot that fills the screen
  const HEADING = 26; // pixels of the title above a picture

  function save(content, panel, ending) {
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(content), download: `${panel.spec.key}.${ending}` });
    link.click();
    URL.revokeObjectURL(link.href);
  }

  // The picture with its title, on the page's background: that of uPlot is transparent.
  function png(panel) {
    const drawn = panel.plot.ctx.canvas;
    const ratio = drawn.width / drawn.clientWidth;
    const picture = Object.assign(document.createElement("canvas"), { width: drawn.width, height: drawn.height + HEADING * ratio });
    const context = picture.getContext("2d");
    context.fillStyle = getComputedStyle(document.body).backgroundColor;
    context.fillRect(0, 0, picture.width, picture.height);
    context.fillStyle = getComputedStyle(panel.title).color;
    context.font = `600 ${13 * ratio}px system-ui, sans-serif`;
    context.fillText(panel.title.textContent, 8 * ratio, 17 * ratio);
    context.drawImage(drawn, 0, HEADING * ratio);
    picture.toBlob((content) => save(content, panel, "png"));
  }

  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

  // The points that are loaded and shown: x, then a column for each line. A name that a spreadsheet would compute gets an apostrophe.
  function csv(panel) {
    const lines = panel.shown;
    const names = lines.map((line) => (line.rank >= 0 && !line.ranks ? _("{line}, rank {rank}", { line: line.label, rank: line.rank }) : line.label));
    const head = [panel.shared.axis, ...names].map((name) => quoted(/^[=+\-@\t\r]/.test(name) ? `'${name}` : name));
    const columns = uPlot.join(lines.map((line) => [line.x, line.y]));
    const rows = columns[0].map((_, index) => columns.map((column) => column[index] ?? ""));
    save(new Blob([[head, ...rows].map((row) => row.join(",")).join("\n"), "\n"], { type: "text/csv" }), panel, "csv");
  }

  function fullScreen(panel) {
    if (document.fullscreenElement) document.exitFullscreen();
    else panel.element.requestFullscreen();
  }

  // The height of a plot: its own, or that of the screen which it fills.
  function heightOf(panel) {
    return document.fullscreenElement === panel.element ? innerHeight - MARGIN : panel.spec.height;
  }

  const ACTS = [
    [_("Full screen"), fullScreen],
    [_("Picture (PNG)"), png],
    [_("Points (CSV)"), csv],
    [_("Earlier"), (panel) => panel.shared.move(panel, -1)],
    [_("Later"), (panel) => panel.shared.move(panel, 1)],
    [_("Hide"), (panel) => panel.shared.include(panel.spec.key, false)],
  ];

  function plotMenu(panel) {
    const menu = Object.assign(document.createElement("details"), { className: "menu plot-menu" });
    const summary = menu.appendChild(Object.assign(document.createElement("summary"), { textContent: "\u22ef" }));
    const box = menu.appendChild(Object.assign(document.createElement("div"), { className: "menu-box" }));
    for (const [label, act] of ACTS) {
      const button = box.appendChild(Object.assign(document.createElement("button"), { type: "button", className: "button small", textContent: label }));
      button.addEventListener("click", () => {
        menu.open = false;
        act(panel);
      });
    }
    panel.element.addEventListener("fullscreenchange", () => panel.resize());
    return { menu, name: (title) => summary.setAttribute("aria-label", _("Menu of the plot {title}", { title })) };
  }

  window.lathe = Object.assign(window.lathe ?? {}, { plotMenu, heightOfPlot: heightOf });
})();
