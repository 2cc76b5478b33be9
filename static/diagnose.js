// The page Diagnose: the answer appears beside the form, which keeps what was typed; a chosen file is diagnosed at once.
(() => {
  "use strict";
  const form = document.getElementById("diagnose-form");
  if (!form) return; // there is no such diagnosis
  const answer = document.getElementById("answer");
  const { log, file } = form.elements;

  function shows() {
    for (const link of answer.querySelectorAll("[data-copy]")) link.dataset.copy = new URL(link.dataset.copy, location.href).href;
    lathe.updateTimes();
  }

  async function ask(submitter) {
    answer.setAttribute("aria-busy", "true");
    lathe.view.say("");
    try {
      const reply = await lathe.reach(form.action, { method: "POST", body: new FormData(form, submitter) });
      if (reply.redirected) return void location.assign(reply.url); // shared
      if (!reply.ok) throw new Error((await reply.json()).error?.message ?? lathe.answered(reply));
      const page = new DOMParser().parseFromString(await reply.text(), "text/html");
      answer.replaceChildren(...page.getElementById("answer").childNodes);
      history.replaceState(null, "", form.action); // no longer of a shared diagnosis
      shows();
    } catch (error) {
      lathe.view.say(lathe.gettext("Could not diagnose the log: {reason}", { reason: error.message }));
    }
    answer.removeAttribute("aria-busy");
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(event.submitter);
  });
  file.addEventListener("change", () => file.value && ask());
  log.addEventListener("input", () => (file.value = "")); // what was typed last counts
  shows();
})();
