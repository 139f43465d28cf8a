"use strict";
// Opened details stay open when the page refreshes, until the tab is closed.
const KEY = "infercanary-open";
const opened = new Set(JSON.parse(sessionStorage.getItem(KEY) || "[]"));
for (const each of document.querySelectorAll("details[id]")) {
  each.open = opened.has(each.id);
  each.addEventListener("toggle", () => {
    each.open ? opened.add(each.id) : opened.delete(each.id);
    sessionStorage.setItem(KEY, JSON.stringify([...opened]));
  });
}
