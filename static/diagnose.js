// The page Diagnose: its buttons, and the address, which names a shared diagnosis.
(() => {
  "use strict";
  function diagnosis(element, trigger, watch) {
    window.lathe.sendClicks(element, trigger);
    window.lathe.copies(element);
    function drawn() {
      const address = element.querySelector("[data-address]")?.dataset.address;
      const link = element.querySelector("[data-copy]");
      if (link) link.dataset.copy = new URL(link.dataset.copy, location.href).href;
      const leaves = !address && location.search && element.querySelector("#share");
      if (address || leaves) history.replaceState(null, "", address ?? "/diagnose");
      window.lathe.updateTimes();
    }
    watch("value", drawn);
    drawn();
  }

  window.lathe = Object.assign(window.lathe ?? {}, { diagnosis });
})();
