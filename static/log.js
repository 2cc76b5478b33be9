// The log of a run: follows its end, searches with highlighting, filters by level and rank, and loads older lines on scrolling up.
//
//   const log = lathe.log(element, {ask, download});   log.add(lines)
//
// ask("log-window", {after, before, find, limit}) resolves to {lines: [[id, attempt, text]]}, oldest first; `lines` of `add` are the same, or
// null if there are too many to send. Texts are set as text, never as HTML.
(() => {
  "use strict";
  const { gettext: _ } = window.lathe;
  const PAGE = 500;
  const MOST = 6000; // lines kept
  const RANK = /^\[(?:rank|default)(\d+)\]:?\s?/;
  const ERROR = /\b(error|exception|traceback|critical|fatal)\b|\w+(Error|Exception)\b/i;
  const WARNING = /\bwarn(ing)?\b|\w+Warning\b/i;

  function make(tag, attributes = {}, content = "") {
    const element = Object.assign(document.createElement(tag), attributes);
    element.append(content);
    return element;
  }

  class Log {
    constructor(element, { ask, download }) {
      Object.assign(this, { ask, lines: [], begun: false, inTrace: false, current: null, level: "all", rank: "all" });
      this.follows = true;
      this.build(element, download);
      this.start();
    }

    build(element, download) {
      this.search = make("input", { type: "search", placeholder: _("Search the log"), className: "log-search" });
      this.search.setAttribute("aria-label", _("Search the log"));
      this.count = make("span", { className: "log-count" });
      this.count.setAttribute("role", "status");
      const [previous, next] = [["\u2191", _("Previous match"), -1], ["\u2193", _("Next match"), 1]].map(([text, title, by]) => {
        const button = make("button", { type: "button", className: "button small", title, onclick: () => this.move(by) }, text);
        button.setAttribute("aria-label", title);
        return button;
      });
      const levels = [["all", _("All lines")], ["warning", _("Warnings and errors")], ["error", _("Errors")]];
      this.levels = this.select(_("Level"), levels, (value) => (this.level = value));
      this.ranks = this.select(_("Rank"), [["all", _("All ranks")]], (value) => (this.rank = value));
      this.ranks.hidden = true;
      this.follow = make("input", { type: "checkbox", checked: true, onchange: () => this.toEnd(this.follow.checked) });
      const following = make("label", { className: "log-follow" }, this.follow);
      following.append(_("Follow"));
      const whole = make("a", { className: "button small", href: download, download: "" }, _("Download"));
      this.note = make("p", { className: "note" }, _("Loading the log ..."));
      this.box = make("div", { className: "log", tabIndex: 0, hidden: true });
      this.box.setAttribute("role", "log");
      this.box.setAttribute("aria-label", _("Log lines"));
      const tools = make("div", { className: "log-tools" });
      tools.append(this.search, previous, next, this.count, this.levels, this.ranks, following, whole);
      const header = make("header", {}, make("h2", {}, _("Log")));
      header.append(tools);
      element.replaceChildren(header, this.note, this.box);
      this.search.addEventListener("input", () => this.find());
      this.search.addEventListener("keydown", (event) => event.key === "Enter" && this.move(event.shiftKey ? -1 : 1));
      this.box.addEventListener("scroll", () => this.scrolled());
    }

    select(label, choices, chosen) {
      const select = make("select", { onchange: () => { chosen(select.value); this.draw(); } });
      select.setAttribute("aria-label", label);
      for (const [value, text] of choices) select.add(new Option(text, value));
      return select;
    }

    async start() {
      try {
        const { lines } = await this.ask("log-window", { limit: PAGE });
        this.begun = lines.length < PAGE;
        const last = lines.at(-1)?.[0] ?? 0;
        const meanwhile = this.lines.filter(({ id }) => id > last); // the stream has added them since the question was asked
        this.lines = [...lines.map((line) => this.parsed(line)), ...meanwhile];
        this.draw();
      } catch (error) {
        console.warn(error);
        this.note.textContent = _("Could not load the log.");
      }
    }

    parsed([id, attempt, text]) {
      const found = RANK.exec(text);
      const rank = found ? Number(found[1]) : null;
      const bare = found ? text.slice(found[0].length) : text;
      const trace = this.inTrace;
      this.inTrace = bare.startsWith("Traceback (most recent") || (trace && (/^\s/.test(bare) || !bare));
      const level = trace || this.inTrace || ERROR.test(bare) ? "error" : WARNING.test(bare) ? "warning" : "info";
      return { id, attempt, text, rank, level };
    }

    // New lines at the end; null: more than were sent.
    async add(lines) {
      const last = this.lines.at(-1)?.id ?? 0;
      if (!lines) {
        try {
          ({ lines } = await this.ask("log-window", { after: last, limit: MOST - 1000 }));
        } catch (error) {
          return console.warn(error);
        }
        if (lines.length === MOST - 1000) return this.start(); // lines between are missing
      }
      const known = this.lines.at(-1)?.id ?? 0;
      const added = lines.filter(([id]) => id > known).map((line) => this.parsed(line));
      if (!added.length) return undefined;
      this.lines.push(...added);
      if (this.lines.length > MOST) {
        this.lines.splice(0, this.lines.length - MOST + 1000);
        this.begun = false;
        return this.draw();
      }
      return this.append(added);
    }

    fits(line) {
      const level = this.level === "all" || line.level === "error" || line.level === this.level;
      return level && (this.rank === "all" || String(line.rank) === this.rank);
    }

    draw() {
      this.box.replaceChildren();
      this.drawn = this.lines[0]?.attempt ?? 1;
      this.append(this.lines);
      if (!this.box.childElementCount && this.lines.length) this.say(_("No loaded line matches the filter."));
    }

    append(lines) {
      const rows = document.createDocumentFragment();
      for (const line of lines) {
        if (line.attempt !== this.drawn) rows.append(make("div", { className: "log-attempt" }, _("attempt {number}", { number: line.attempt })));
        this.drawn = line.attempt;
        if (this.fits(line)) rows.append(this.row(line));
      }
      this.box.append(rows);
      this.offerRanks(lines);
      this.box.hidden = !this.lines.length;
      this.say(this.lines.length ? "" : _("No output yet."));
      if (this.search.value) this.tell();
      if (this.follows) this.box.scrollTop = this.box.scrollHeight;
    }

    row(line) {
      const row = make("div", { className: `log-line ${line.level}` });
      row.dataset.id = line.id;
      const wanted = this.search.value.toLowerCase();
      let rest = line.text;
      let place = wanted ? rest.toLowerCase().indexOf(wanted) : -1;
      while (place >= 0) {
        row.append(rest.slice(0, place), make("mark", {}, rest.slice(place, place + wanted.length)));
        rest = rest.slice(place + wanted.length);
        place = rest.toLowerCase().indexOf(wanted);
      }
      row.append(rest || (line.text ? "" : "\u00a0"));
      return row;
    }

    offerRanks(lines) {
      for (const { rank } of lines) {
        if (rank === null || [...this.ranks.options].some((option) => option.value === String(rank))) continue;
        const later = [...this.ranks.options].find((option) => Number(option.value) > rank) ?? null;
        this.ranks.add(new Option(_("Rank {rank}", { rank }), rank), later);
        this.ranks.hidden = false;
      }
    }

    get matches() {
      return [...this.box.querySelectorAll(".log-line:has(mark)")];
    }

    find() {
      this.current = this.searched = null;
      this.draw();
      this.count.textContent = "";
      if (this.search.value) this.move(-1);
    }

    // The next (1) or previous (-1) match; before the first loaded one the server searches the older lines.
    async move(by) {
      if (!this.search.value) return;
      await this.loading; // older lines that scrolling has asked for
      const { matches } = this;
      const index = matches.findIndex((row) => row.dataset.id === this.current);
      const next = index < 0 ? (by < 0 ? matches.length - 1 : 0) : index + by;
      if (next < 0 && !this.begun && (await this.older({ find: this.search.value, limit: 5000 }))) return this.move(by);
      const row = matches[Math.min(Math.max(next, 0), matches.length - 1)];
      this.current = row?.dataset.id ?? null;
      this.box.querySelector(".current")?.classList.remove("current");
      row?.classList.add("current");
      if (row) {
        this.toEnd(false);
        this.box.scrollTop = row.offsetTop - this.box.clientHeight / 2;
      }
      this.tell();
    }

    tell() {
      const { matches } = this;
      const index = matches.findIndex((row) => row.dataset.id === this.current);
      this.count.textContent = matches.length ? _("{place} of {number}", { place: index < 0 ? "-" : index + 1, number: matches.length }) : _("No match");
      this.box.querySelector(`[data-id="${this.current}"]`)?.classList.add("current");
    }

    // Loads lines before the first one; true if there were some.
    async older(query) {
      if (this.begun || this.loading || !this.lines.length) return false;
      this.loading = this.loadOlder(query);
      try {
        return await this.loading;
      } finally {
        this.loading = null;
      }
    }

    async loadOlder(query) {
      try {
        let lines, searched;
        do { // one search reads a part of a long log
          const from = query.find && this.searched ? { searched: this.searched } : {};
          ({ lines, searched } = await this.ask("log-window", { before: this.lines[0].id, ...query, ...from }));
          if (query.find) this.searched = searched;
        } while (query.find && !lines.length && searched && query.find === this.search.value);
        if (!query.find) this.begun = lines.length < query.limit;
        const height = this.box.scrollHeight - this.box.scrollTop;
        this.lines = [...lines.map((line) => this.parsed(line)), ...this.lines];
        this.follows = false;
        this.draw();
        this.box.scrollTop = this.box.scrollHeight - height;
        return lines.length > 0;
      } catch (error) {
        console.warn(error);
        return false;
      }
    }

    scrolled() {
      const atEnd = this.box.scrollTop + this.box.clientHeight >= this.box.scrollHeight - 24;
      this.follows = this.follow.checked = atEnd;
      if (this.box.scrollTop < 80 && this.box.scrollHeight > this.box.clientHeight) this.older({ limit: PAGE });
    }

    toEnd(follows) {
      this.follows = this.follow.checked = follows;
      if (follows) this.box.scrollTop = this.box.scrollHeight;
    }

    say(words) {
      this.note.textContent = words;
      this.note.hidden = !words;
    }
  }

  window.lathe = Object.assign(window.lathe ?? {}, { log: (element, options) => new Log(element, options) });
})();
