// Says on every page that the server does not answer, and since when: within two seconds if it refuses, and after two requests if it
// takes them, since a busy one can be late once. Until it answers again, clocks stand still. A hidden page asks for nothing.
(() => {
  "use strict";
  const AGAIN_MS = 2000;
  const ANSWER_MS = 3000;
  let answered = Date.now(); // when the server last answered
  let waiting = 0;
  let asking = false;
  let late = false; // the last request took too long
  let leaving = false;

  const notice = Object.assign(document.createElement("div"), { id: "connection", className: "alert", role: "alert", hidden: true });

  function show(lost) {
    if (lost === !notice.hidden || (lost && document.getElementById("loading-notice"))) return; // that one says the same
    window.lathe.lostAt = lost ? answered : undefined;
    document.documentElement.toggleAttribute("data-lost", lost);
    if (lost) {
      const title = Object.assign(document.createElement("b"), { textContent: lathe.gettext("The server has not answered since {time}.", { time: lathe.clock(answered) }) });
      notice.replaceChildren(title, " ", lathe.gettext("This page continues when it does."));
      if (!notice.isConnected) document.body.append(notice);
    }
    notice.hidden = !lost;
  }

  async function ask() {
    clearTimeout(waiting);
    if (document.hidden || leaving || asking) return;
    asking = true;
    // The answer is read: a browser ends the connection of one that is not.
    const answer = fetch("/healthz", { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) }).then((reply) => reply.text());
    const refusal = await answer.then(() => null, (error) => error);
    asking = false;
    if (document.hidden || leaving) return;
    if (!refusal) answered = Date.now();
    show(Boolean(refusal) && (refusal.name !== "TimeoutError" || late || !notice.hidden));
    late = refusal?.name === "TimeoutError";
    waiting = setTimeout(ask, late ? 0 : AGAIN_MS);
  }

  // As fetch; an error says that the server does not answer, and the page says so at once.
  async function reach(address, options) {
    try {
      return await fetch(address, options);
    } catch (error) {
      if (error.name === "AbortError") throw error; // the page itself has ended the request
      ask();
      throw new Error(lathe.gettext("The server does not answer. Try again when it does."), { cause: error });
    }
  }

  // Gradio says so too, in English and over the page: its message gives way to this one, at once.
  if (document.querySelector("gradio-app")) {
    new MutationObserver(() => {
      const toast = [...document.querySelectorAll(".toast-body:not([hidden])")].find((body) => body.textContent.includes("Connection to the server was lost"));
      if (!toast) return;
      toast.hidden = true;
      ask();
    }).observe(document.body, { childList: true, subtree: true });
  }

  document.addEventListener("visibilitychange", () => {
    answered = Date.now(); // nobody asked meanwhile
    ask();
  });
  addEventListener("pagehide", () => (leaving = true));
  addEventListener("pageshow", () => {
    leaving = false;
    ask();
  });
  window.lathe.reach = reach;
  waiting = setTimeout(ask, AGAIN_MS);
})();
