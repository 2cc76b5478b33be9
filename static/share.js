// The dialog of the buttons Share: with whom a run, sweep or data set is shared, and links that share it.
(() => {
  "use strict";
  const { gettext: _ } = window.lathe;
  const NOTE = _("Names of accounts, separated by commas; * stands for all users. Whoever opens a link is added to them.");

  function element(tag, attributes = {}, ...children) {
    const made = Object.assign(document.createElement(tag), attributes);
    made.append(...children);
    return made;
  }

  function open(address) {
    const users = element("input", { type: "text", id: "share-users", autocomplete: "off" });
    const said = element("p", { className: "share-said" });
    said.setAttribute("role", "status");
    const link = element("div", { className: "copy-line", hidden: true });
    const [make, close, save] = [["", _("Make a link")], ["", _("Close")], [" primary", _("Save")]].map(([kind, word]) =>
      element("button", { type: "button", className: `button${kind}`, textContent: word }));
    const dialog = element("dialog", { id: "share" },
      element("h2", { id: "share-title", textContent: _("Share with others") }),
      element("label", { htmlFor: "share-users", textContent: _("Shared with") }), users,
      element("p", { className: "note", textContent: NOTE }), link, said,
      element("div", { className: "acts" }, make, close, save));
    dialog.setAttribute("aria-labelledby", "share-title");

    const show = (answer) => (users.value = answer.users.join(", "));

    // Does one request at a time and says how it ended.
    async function act(work, done) {
      for (const one of [users, make, save]) one.disabled = true; // what is typed meanwhile would be lost
      said.className = "share-said";
      said.textContent = "";
      try {
        show(await work());
        said.textContent = done;
      } catch (error) {
        said.className = "share-said alert";
        said.textContent = error.message;
      }
      for (const one of [users, make, save]) one.disabled = false;
    }

    async function makeLink() {
      const answer = await lathe.request(`${address}/link`, "POST");
      const full = new URL(answer.path, window.location.href).href;
      const copy = element("button", { type: "button", className: "button small", textContent: _("Copy") });
      copy.dataset.copy = full;
      link.replaceChildren(element("code", { textContent: full }), copy);
      link.hidden = false;
      return answer;
    }

    const names = () => users.value.split(",").map((name) => name.trim()).filter(Boolean);
    make.addEventListener("click", () => act(makeLink, _("The link is shown only now. Remove its name above and save to withdraw it.")));
    save.addEventListener("click", () => act(() => lathe.request(address, "PUT", { users: names() }), _("Saved.")));
    users.addEventListener("keydown", (event) => { if (event.key === "Enter") save.click(); });
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
    act(() => lathe.request(address), "").then(() => users.focus());
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-share]");
    if (button) open(button.dataset.share);
  });
})();
