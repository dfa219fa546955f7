
"use strict";
(() => {
  const box = document.querySelector(".search"), input = box.querySelector("input"), none = document.querySelector(".none");
  const items = [...document.querySelectorAll(".item")].map((el) => ({ el, text: el.textContent.toLowerCase() }));
  const links = new Map([...document.querySelectorAll("nav li a")].map((a) => [a.getAttribute("href").slice(1), a.parentElement]));
  const headings = [...document.querySelectorAll("nav h2"), ...document.querySelectorAll("main .tag, main .tag + p")];
  box.hidden = false;
  const search = () => {
    const want = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const { el, text } of items) {
      el.hidden = !want.every((w) => text.includes(w));
      found += !el.hidden;
      const link = links.get(el.id);
      if (link) link.hidden = el.hidden;
    }
    for (const h of headings) h.hidden = want.length > 0;
    none.hidden = found > 0;
  };
  input.addEventListener("input", search);
  document.addEventListener("keydown", (e) => {
    if (e.key === "/" && document.activeElement !== input) { e.preventDefault(); input.focus(); }
    if (e.key === "Escape" && document.activeElement === input) { input.value = ""; search(); input.blur(); }
  });
  const show = () => {
    const el = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (el && el.hidden) { input.value = ""; search(); el.scrollIntoView(); }
  };
  addEventListener("hashchange", show);
  for (const run of document.querySelectorAll(".run")) {
    const button = document.createElement("button"), text = run.querySelector("pre").textContent;
    button.type = "button";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        const area = document.createElement("textarea"); // pages of plain http have no clipboard
        area.value = text;
        document.body.append(area);
        area.select();
        document.execCommand("copy");
        area.remove();
      }
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    run.append(button);
  }
})();
