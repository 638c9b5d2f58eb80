// The page's data: packed JSON, unpacked when it is needed. Whatever a run said is only ever set as
// text, never as HTML.
"use strict";

const unpackedGroups = new Map();

async function unpack(id) {
  if (!unpackedGroups.has(id)) {
    const holder = document.getElementById(id);
    if (holder === null) return null;
    const bytes = Uint8Array.from(atob(holder.textContent), (c) => c.charCodeAt(0));
    const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    unpackedGroups.set(id, new Response(inflated).json());
  }
  return unpackedGroups.get(id);
}

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

function lane(name) {
  return name.replace(":", " ").replace("/worker:", ", worker ");
}

function milliseconds(ticks) {
  const ms = ticks / 10;
  return ms >= 1000 ? `${(ms / 1000).toFixed(2)} s` : `${ms.toFixed(1)} ms`;
}

function copyButton(text) {
  return el("button", { "data-copy": text }, "copy");
}

async function copyFrom(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "copied";
  } catch {
    const range = document.createRange();
    range.selectNodeContents(button.previousElementSibling);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = "selected";
  }
  setTimeout(() => (button.textContent = "copy"), 1500);
}
