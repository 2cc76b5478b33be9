// The page of a data set: its address without default values, a random row, the list of models, and the row that is marked.
(() => {
  "use strict";
  const main = document.querySelector("main");
  let marked;

  function drawn() {
    const row = main.querySelector("tr.marked");
    if (row && row.id !== marked) row.scrollIntoView({ block: "center" });
    marked = row?.id;
    for (const box of main.querySelectorAll("figure.histogram:empty")) window.lathe.histogram(box, show);
  }

  // The page with another value, which is no step back in the browser's history.
  function show(name, value, options = { replace: true }) {
    const query = new URLSearchParams(location.search);
    query.set(name, value);
    window.lathe.view.go(`?${query}`, options);
  }

  main.addEventListener("click", (event) => {
    const button = event.target.closest("#go-random");
    if (button) show("row", 1 + Math.floor(Math.random() * button.dataset.rows), {});
  });

  // A text field with suggestions lists all of them on focus, not only those that match its text.
  main.addEventListener("focusin", ({ target }) => {
    if (!("choose" in target.dataset)) return;
    target.placeholder = target.defaultValue;
    target.value = "";
  });
  main.addEventListener("focusout", ({ target }) => {
    if ("choose" in target.dataset && !target.value) target.value = target.defaultValue;
  });

  // The server writes the address of what the page shows; an invalid number is not in it.
  function written() {
    const query = main.querySelector("[data-query]")?.dataset.query;
    if (query && location.search !== query) history.replaceState(null, "", query);
  }

  document.addEventListener("filled", ({ target }) => {
    if (target.querySelector("[data-query]")) written();
    drawn();
  });
  drawn();
})();
