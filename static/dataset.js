// The page of a data set: links and fields that change the view, and the address that holds it.
(() => {
  "use strict";
  // Sends links and fields of a component to the server; keeps the address and the focus.
  function view(element, trigger, watch) {
    let focused = null;
    const send = (values) => {
      focused = document.activeElement?.id || null;
      trigger("select", values);
    };
    element.addEventListener("click", (event) => {
      const link = event.target.closest("[data-send]");
      if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
      event.preventDefault();
      send(JSON.parse(link.dataset.send));
    });
    element.addEventListener("change", (event) => {
      const { field } = event.target.dataset;
      if (field) send({ [field]: event.target.value });
    });
    element.addEventListener("click", copy);
    choosers(element);
    function drawn() {
      const query = element.querySelector("[data-query]")?.dataset.query;
      if (query) history.replaceState(null, "", `/dataset?${query}`);
      for (const box of element.querySelectorAll("figure.histogram")) window.lathe.histogram(box, send);
      if (focused) element.querySelector(`#${CSS.escape(focused)}`)?.focus({ preventScroll: true });
      focused = null;
      window.lathe.updateTimes();
    }
    watch("value", drawn);
    drawn();
  }

  // A text field with suggestions lists all of them on focus, not only those that match its text.
  function choosers(element) {
    element.addEventListener("focusin", ({ target }) => {
      if (!("choose" in target.dataset)) return;
      target.dataset.before = target.value;
      target.placeholder = target.value;
      target.value = "";
    });
    element.addEventListener("focusout", ({ target }) => {
      if ("choose" in target.dataset && !target.value) target.value = target.dataset.before ?? "";
    });
    element.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target.matches("input[data-field]")) event.target.blur();
    });
  }

  async function copy(event) {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard?.writeText(button.dataset.copy);
    button.dataset.copied = "";
    setTimeout(() => delete button.dataset.copied, 1500);
  }

  window.lathe = Object.assign(window.lathe ?? {}, { view });
})();
