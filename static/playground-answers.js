// The page Playground: requests, and the columns in which answers arrive.
(() => {
  "use strict";
  const { gettext: _, ngettext } = window.lathe;
  const SAMPLING = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
  const LEAST_SECONDS = 0.05; // of an answer whose rate is shown: a few tokens that arrive together have none

  // The answer of the server as JSON; an error has its message, with the fix.
  async function json(address, options = {}) {
    const sent = options.body ? { ...options, body: JSON.stringify(options.body) } : options;
    const answer = await lathe.reach(address, { ...sent, headers: { "Content-Type": "application/json" } });
    if (answer.status === 204) return null;
    const body = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(message(body.error) || window.lathe.answered(answer));
    return body;
  }

  function message(error) {
    if (!error) return "";
    return error.code ? error.message : [error.field, error.message, error.fix].filter(Boolean).join(" ");
  }

  function element(tag, classes, text) {
    const made = document.createElement(tag);
    if (classes) made.className = classes;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // The sampling settings of the form, as the API names them.
  function sampling(root) {
    const values = {};
    for (const name of SAMPLING) {
      const field = root.querySelector(`input[name=${name}]`);
      if (field.value !== "" && !field.checkValidity()) {
        field.reportValidity();
        throw new Error(_("{name} must be {low} to {high}.", { name, low: field.min, high: field.max }));
      }
      if (field.value !== "") values[name] = Number(field.value);
    }
    const stop = root.querySelector("#playground-stop").value;
    return stop ? { ...values, stop: [stop.replaceAll("\\n", "\n")] } : values;
  }

  // The address and the body of a request for `prompt` ({system, user, history, mode}).
  function request(model, prompt) {
    if (prompt.mode === "text") return ["/v1/completions", { model, prompt: prompt.user }];
    const system = prompt.system ? [{ role: "system", content: prompt.system }] : [];
    const messages = [...system, ...(prompt.history ?? []), { role: "user", content: prompt.user }];
    return ["/v1/chat/completions", { model, messages }];
  }

  // Calls `each` with every chunk of a streamed answer.
  async function stream(address, body, signal, each) {
    const options = { stream: true, stream_options: { include_usage: true }, return_token_ids: true };
    const answer = await lathe.reach(address, {
      method: "POST", signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...body, ...options }),
    });
    if (!answer.ok) throw new Error(message((await answer.json().catch(() => ({}))).error) || `${answer.status}`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let held = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (held + value).split("\n");
      held = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
        const chunk = JSON.parse(line.slice(6));
        if (chunk.error) throw new Error(message(chunk.error));
        each(chunk);
      }
    }
  }

  // Asks a model; calls `shown` with {text, tokens, rate, end} as the answer arrives, and returns the last one.
  async function ask(model, prompt, values, signal, shown) {
    const [address, body] = request(model, prompt);
    const answer = { text: "", tokens: 0, rate: null, end: "" };
    let first = 0;
    await stream(address, { ...body, ...values }, signal, (chunk) => {
      const choice = chunk.choices[0];
      if (!choice) return;
      answer.text += choice.delta?.content ?? choice.text ?? "";
      answer.tokens += choice.token_ids?.length ?? 0;
      answer.end = choice.finish_reason ?? answer.end;
      if (choice.token_ids?.length) {
        first ||= performance.now();
        const seconds = (performance.now() - first) / 1000;
        if (answer.tokens > 1 && seconds > LEAST_SECONDS) answer.rate = (answer.tokens - 1) / seconds;
      }
      shown(answer);
    });
    return answer;
  }

  function figures(answer) {
    const ends = { stop: _("ended"), length: _("cut at the maximum") };
    const parts = [ngettext("{number} token", "{number} tokens", answer.tokens, { number: answer.tokens.toLocaleString("en") })];
    if (answer.rate) parts.push(_("{number} tokens/s", { number: answer.rate.toFixed(answer.rate < 10 ? 1 : 0) }));
    if (answer.end) parts.push(ends[answer.end] ?? answer.end);
    return parts.join(" · ");
  }

  // The prompt's tokens, read when the fold is opened.
  function tokens(model, prompt) {
    const fold = element("details", "prompt-tokens");
    const heading = fold.appendChild(element("summary", "", _("Rendered prompt as tokens")));
    const body = fold.appendChild(element("div", "token-list"));
    fold.addEventListener("toggle", async () => {
      if (!fold.open || body.childElementCount) return;
      const { prompt: text, messages } = request(model, prompt)[1];
      try {
        const asked = { model, return_token_strs: true, ...(messages ? { messages } : { prompt: text }) };
        const found = await json("/v1/tokenize", { method: "POST", body: asked });
        heading.textContent = _("Rendered prompt: {number} tokens", { number: found.count.toLocaleString("en") });
        for (const [index, string] of found.token_strs.entries()) {
          const shown = body.appendChild(element("span", "token", string.replaceAll("\n", "⏎\n")));
          shown.title = _("token {id}", { id: found.tokens[index] });
        }
      } catch (error) {
        body.textContent = error.message;
      }
    });
    return fold;
  }

  // A column for a model: its name, the answer, its figures and the prompt's tokens.
  function column(model, label, prompt) {
    const box = element("section", "panel answer");
    box.dataset.model = model;
    const head = box.appendChild(element("header"));
    head.appendChild(element("h2", "", label));
    head.appendChild(element("code", "faint", model));
    const text = box.appendChild(element("div", "said"));
    text.setAttribute("aria-live", "polite");
    const foot = box.appendChild(element("p", "note", _("queued")));
    box.appendChild(tokens(model, prompt));
    return {
      box,
      show(answer) {
        text.textContent = answer.text;
        foot.textContent = figures(answer);
      },
      finish(answer) {
        this.show(answer);
        if (!answer.text) text.appendChild(element("i", "faint", _("empty answer")));
      },
      fail(reason) {
        foot.textContent = "";
        const alert = box.insertBefore(element("div", "alert", reason), foot);
        alert.setAttribute("role", "alert");
      },
      cancelled: () => { foot.textContent += ` · ${_("stopped")}`; },
    };
  }

  window.lathe = Object.assign(window.lathe ?? {}, { playgroundParts: { ask, column, element, json, sampling } });
})();
