// Which part of the page is shown, the overview's filters, the keys and the theme.
"use strict";

const overview = document.getElementById("overview");
const section = document.getElementById("scenario");
const rows = [...document.querySelectorAll("#scenarios tbody tr")];
let current = -1;
let place = 0;
let index = null;

async function route() {
  const found = /^#\/s\/(\d+)$/.exec(location.hash);
  if (found === null) return showOverview();
  const number = Number(found[1]);
  if (current < 0) place = scrollY;
  const group = await unpack(`group-${Math.floor(number / index.group)}`);
  if (group === null || !group[number % index.group]) return showOverview();
  current = number;
  await renderScenario(section, group[number % index.group], index);
  toggle(true);
  document.title = `${index.names[number]} - resync-chaos`;
  scrollTo(0, 0);
  document.getElementById("content").focus({ preventScroll: true });
  document.documentElement.dataset.shown = String(number);
}

function showOverview() {
  const back = current;
  current = -1;
  toggle(false);
  document.documentElement.dataset.shown = "overview";
  if (back >= 0) {
    section.replaceChildren();
    scrollTo(0, place);
    document.querySelector(`#scenarios a[href="#/s/${back}"]`)?.focus({ preventScroll: true });
  }
}

function toggle(one) {
  overview.classList.toggle("hide", one);
  section.classList.toggle("hide", !one);
  for (const id of ["previous", "next"]) document.getElementById(id).classList.toggle("hide", !one);
}

function go(by) {
  const next = current + by;
  if (next >= 0 && next < index.count) location.hash = `#/s/${next}`;
}

function applyFilter() {
  const text = document.getElementById("filter").value.toLowerCase();
  const on = new Set([...document.querySelectorAll(".by-verdict:checked")].map((box) => box.value));
  let shown = 0;
  for (const row of rows) {
    const show = on.has(row.dataset.verdict) && row.textContent.toLowerCase().includes(text);
    row.classList.toggle("hide", !show);
    shown += show;
  }
  document.getElementById("shown").textContent = shown === rows.length ? "" : `${shown} of ${rows.length}`;
}

function nextTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("resync-chaos-theme", root.dataset.theme); } catch { /* a file may have no storage */ }
}

const KEYS = {
  j: () => go(1), k: () => go(-1), o: () => (location.hash = "#/"), Escape: () => current >= 0 && (location.hash = "#/"),
  "/": () => { location.hash = "#/"; setTimeout(() => document.getElementById("filter").focus()); },
  t: nextTheme, "?": () => document.getElementById("help").showModal(),
};

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  if (document.getElementById("help").open) return;
  event.preventDefault();
  KEYS[event.key]();
});
document.addEventListener("click", (event) => {
  if (event.target.matches?.("[data-copy]")) copyFrom(event.target);
});
document.getElementById("previous").addEventListener("click", () => go(-1));
document.getElementById("next").addEventListener("click", () => go(1));
document.getElementById("theme").addEventListener("click", nextTheme);
document.getElementById("keys").addEventListener("click", KEYS["?"]);
document.getElementById("filter").addEventListener("input", applyFilter);
for (const box of document.querySelectorAll(".by-verdict")) box.addEventListener("change", applyFilter);
try {
  const theme = localStorage.getItem("resync-chaos-theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch { /* the same */ }
unpack("index").then((value) => { index = value; addEventListener("hashchange", route); return route(); });
