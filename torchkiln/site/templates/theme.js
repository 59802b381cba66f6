"use strict";
// Light or dark, as the reader chose. In the head of a page, so that its first picture has the right colours.
(() => {
  const KEY = "torchkiln-theme";
  const CHOICES = ["light", "dark"]; // anything else: as the system
  // The browser may forbid storage; the choice is then that of the page.
  const read = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null;
    }
  };
  const write = (choice) => {
    try {
      if (choice) localStorage.setItem(KEY, choice);
      else localStorage.removeItem(KEY);
    } catch {}
  };
  const apply = (choice) => {
    const known = CHOICES.includes(choice) ? choice : "";
    if (known) document.documentElement.dataset.theme = known;
    else delete document.documentElement.dataset.theme;
    return known;
  };

  apply(read());
  document.addEventListener("DOMContentLoaded", () => {
    const field = document.getElementById("theme");
    const follow = () => {
      field.value = apply(read());
    };
    follow();
    field.addEventListener("input", () => write(apply(field.value)));
    field.closest(".theme").hidden = false;
    addEventListener("storage", follow); // chosen on another page
    addEventListener("pageshow", (event) => event.persisted && follow()); // back from such a page
  });
})();
