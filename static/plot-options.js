// What a person chose for the plots of all pages: axis, smoothing, scale, and their arrangement. Accounts keep it on the server, which
// writes it into the page as data-options; without an account the browser keeps it.
(() => {
  "use strict";
  const KEPT = "lathe-plots"; // in localStorage
  const { gettext: _ } = window.lathe;
  const SMOOTHINGS = { Off: [0, _("Off")], Light: [0.005, _("Light")], Medium: [0.02, _("Medium")], Strong: [0.06, _("Strong")] }; // shares of the visible range
  const DEFAULTS = { axis: "step", smoothing: "Off", log: false, clip: false, order: [], without: [] };

  const ofAccount = (element) => element.closest("[data-options]")?.dataset.options;

  function read(element, axes) {
    let kept = {};
    try {
      kept = JSON.parse(ofAccount(element) || localStorage.getItem(KEPT)) ?? {};
    } catch { /* not readable: the defaults */ }
    const chosen = { ...DEFAULTS, ...kept };
    if (!axes.includes(chosen.axis)) chosen.axis = axes[0];
    if (!(chosen.smoothing in SMOOTHINGS)) chosen.smoothing = "Off";
    for (const name of ["order", "without"]) if (!Array.isArray(chosen[name])) chosen[name] = [];
    return chosen;
  }

  let sent = Promise.resolve(); // one change after the other
  function keep(element, { axis, smoothing, log, clip, order, without }) {
    const plots = { axis, smoothing, log, clip, order, without };
    if (ofAccount(element)) {
      sent = sent.then(() => lathe.request("/api/settings", "PUT", { plots })).catch(() => { /* kept until the page is closed */ });
      return;
    }
    try {
      localStorage.setItem(KEPT, JSON.stringify(plots));
    } catch { /* not writable: as above */ }
  }

  window.lathe = Object.assign(window.lathe ?? {}, { plotOptions: { SMOOTHINGS, keep, read } });
})();
