// Light or dark, as the system has it or as the reader chose. Not a module: it runs before the page is painted.
"use strict";
(() => {
  const root = document.documentElement;
  const chosen = () => {
    try {
      return localStorage.getItem("runnel:theme") ?? "";
    } catch {
      return ""; // storage may be forbidden
    }
  };
  const show = (theme) => (theme ? root.setAttribute("data-theme", theme) : root.removeAttribute("data-theme"));
  show(chosen());
  addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = chosen();
    select.addEventListener("change", () => {
      show(select.value);
      try {
        localStorage.setItem("runnel:theme", select.value);
      } catch {} // it holds for this page
    });
  });
})();
