// The page of a data set: links and fields that change the view, and the address that holds it.
(() => {
  "use strict";
  // Sends links and fields of a component to the server; keeps the address and the focus.
  function view(element, trigger, watch) {
    let focused = null, shownRow;
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
      if (query) remember(query);
      const marked = element.querySelector("tr.marked");
      if (marked && marked.id !== shownRow) marked.scrollIntoView({ block: "center" });
      shownRow = marked?.id;
      for (const box of element.querySelectorAll("figure.histogram")) window.lathe.histogram(box, send);
      if (focused) element.querySelector(`#${CSS.escape(focused)}`)?.focus({ preventScroll: true });
      focused = null;
      window.lathe.updateTimes();
    }
    // Back and Forward: the server shows the view in the address.
    window.addEventListener("popstate", () => {
      if (element.isConnected && element.querySelector("[data-query]")) send({ address: location.search.slice(1) });
    });
    watch("value", drawn);
    drawn();
  }

  // The address holds the view. Another tab, page, row or search is a step back in the browser's history; another number is not.
  const STEPS = ["id", "tab", "row", "match", "search", "whole"];
  function remember(query) {
    const old = new URLSearchParams(location.search), now = new URLSearchParams(query);
    const step = remember.shown && STEPS.some((name) => old.get(name) !== now.get(name));
    if (location.search !== `?${query}`) history[step ? "pushState" : "replaceState"](null, "", `/dataset?${query}`);
    remember.shown = true;
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
