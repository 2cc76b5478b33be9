// The language, colors and time zone of this browser, on the page Settings: cookies, which the server and static/lathe.js read.
(() => {
  "use strict";
  const YEAR = 365 * 24 * 3600;

  function choice(id, cookie, apply) {
    const list = document.getElementById(id);
    list.value = document.cookie.match(new RegExp(`(?:^|; )${cookie}=([^;]+)`))?.[1] ?? "";
    list.addEventListener("change", () => {
      document.cookie = `${cookie}=${list.value};path=/;max-age=${list.value ? YEAR : 0};SameSite=Lax`;
      apply(list.value);
    });
  }

  choice("browser-theme", "lathe-theme", (theme) => (document.documentElement.dataset.theme = theme));
  choice("browser-zone", "lathe-zone", () => location.reload());
  choice("browser-language", "lathe-language", () => location.reload());
})();
