// One scenario's story, from what the page carries of it.
"use strict";

const REQUESTS = ["init", "pause", "flush", "start", "update", "finish", "publish", "resume"];

function table(head, rows) {
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, head.map((word) => el("th", {}, word)))), el("tbody", {}, rows)));
}

function engineCard(card) {
  const list = el("dl", { class: "facts" });
  const add = (key, value, kind = "") => { if (value !== "" && value !== null) list.append(el("dt", {}, key), el("dd", { class: kind }, value)); };
  const trainer = card.trainer;
  add("version", card.version === "" ? "it does not answer" : `"${card.version}"${trainer.version ? `; the trainer counts "${trainer.version}"` : ""}`,
    trainer.version && card.version === trainer.version ? "good" : "");
  add("generation", card.generation, card.generation === "running" ? "good" : card.generation === "paused" ? "" : "bad");
  add("weights", `${card.weights}${card.stuck ? " (stuck)" : ""}`, card.weights === "mixed" || card.weights === "meta" ? "bad" : "");
  if (card.checksum && trainer.checksum) {
    const same = card.checksum === trainer.checksum;
    add("checksum", `${card.checksum} ${same ? "=" : "\u2260"} push ${trainer.push}'s (${trainer.checksum})`, same ? "good" : "");
  } else add("checksum", card.checksum || "not known");
  add("sessions", card.sessions.map((state, worker) => `worker ${worker} ${state}`).join(", "), card.sessions.includes("open") ? "bad" : "");
  add("bytes", card.bytes && `${card.bytes}, says the push`);
  const served = card.served.map(([push, version, weights, tokens]) => el("tr", {}, el("td", {}, push || "before"), el("td", {}, `"${version}"`), el("td", {}, weights), el("td", { class: "num" }, tokens)));
  return el("article", { class: "card" }, el("h3", {}, `engine ${card.index}`), list,
    served.length ? table(["push", "served as", "weights", "tokens"], served) : el("p", { class: "dim" }, "It served nothing."));
}

function attemptsTable(attempts, timeline) {
  const requests = [...new Set(attempts.flatMap((each) => Object.keys(each.answers)))]
    .sort((a, b) => REQUESTS.indexOf(a.split(" ")[0]) - REQUESTS.indexOf(b.split(" ")[0]));
  const head = attempts.map((each) => el("th", {}, el("button", { onclick: () => { timeline.show(each.begin, each.end); timeline.node.scrollIntoView({ block: "center" }); } },
    `push ${each.push}${each.closing ? " (closing)" : ""}, attempt ${each.number}`)));
  const cell = (answers) => Object.entries(answers || {}).sort().map(([who, said]) => el("div", { class: said.every((word) => word === "ok") ? "" : "bad" }, `${lane(who)}: ${said.join(", ")}`));
  const rows = [el("tr", {}, el("th", {}, "took"), attempts.map((each) => el("td", {}, milliseconds(each.end - each.begin)))),
    ...requests.map((request) => el("tr", {}, el("th", {}, request), attempts.map((each) => el("td", {}, cell(each.answers[request])))))];
  if (attempts.some((each) => each.causes.length)) {
    rows.push(el("tr", {}, el("th", {}, "failed by"), attempts.map((each) => el("td", {}, each.causes.map((cause) => el("div", { class: "mono" }, cause.length > 400 ? `${cause.slice(0, 400)}\u2026` : cause))))));
  }
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "attempts side by side" }, el("table", { class: "attempts" }, el("thead", {}, el("tr", {}, el("th", {}, ""), head)), el("tbody", {}, rows)));
}

function checksTable(checks) {
  const rows = (list) => list.map((row) => el("tr", { class: row.state === "failed" ? "failed" : "" },
    el("td", {}, el("span", { class: `badge v-${row.state === "met" ? "pass" : row.state === "failed" ? "fail" : "invalid"}` }, { met: "\u2713", failed: "\u2717", waived: "~" }[row.state], " ", row.state)),
    el("td", {}, row.name), el("td", {}, row.expected), el("td", {}, row.found, row.waived ? el("div", { class: "dim" }, `waived: ${row.waived}`) : null)));
  return table(["", "check", "expected", "found"], rows(checks));
}

function ranksTable(ranks) {
  return table(["push", "outcome", "ranks", "ended", "version", "error"], ranks.map((row) => el("tr", {},
    ["push", "outcome", "ranks", "ending", "version"].map((key) => el("td", {}, row[key])), el("td", { class: "mono" }, row.error.length > 1200 ? `${row.error.slice(0, 1200)}\u2026` : row.error))));
}

function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.map(([key, value]) => [el("dt", {}, key), el("dd", {}, value)]));
}

async function controlTimeline(data, index) {
  const number = index.controls[data.control];
  if (number === undefined) return null;
  const group = await unpack(`controls-${Math.floor(number / index.group)}`);
  const story = group[number % index.group];
  const first = data.differences[0];
  const lines = first && first.calm !== null ? [{ at: first.calm, label: "here, too, until it differs" }] : [];
  return new Timeline(story, { label: "control", lines });
}

async function besideControl(data, index, mark) {
  const calm = await controlTimeline(data, index);
  if (!calm) return null;
  const told = data.differences.map((each) => el("li", {}, `${each.sentence} (at ${milliseconds(each.at)})`));
  const box = el("div", {}, el("p", { class: "dim" }, "The same run without its faults. What differs, the first first:"), el("ol", {}, told), calm.node);
  mark();
  return box;
}

async function renderScenario(section, data, index) {
  const attempts = data.attempts || [];
  const first = (data.differences || [])[0];
  const passed = data.verdict === "pass";
  const lines = first && !passed ? [{ at: first.at, label: "first difference" }] : [];
  const timeline = new Timeline(data.story, {
    label: data.name, lines,
    jumps: attempts.map((each) => ({ label: `push ${each.push}, attempt ${each.number}`, begin: each.begin, end: each.end })),
  });
  const parts = [
    el("h1", {}, el("span", { class: `badge v-${data.verdict}` }, `${index.glyphs[data.verdict]} ${data.verdict}`), ` ${data.name}`),
    passed ? null : el("p", { class: `card v-${data.verdict}` }, data.sentence),
    el("p", {}, el("b", {}, passed ? "Proved: " : "To prove: "), data.proves),
  ];
  if (data.again) parts.push(el("div", { class: "again" }, el("code", {}, data.again), copyButton(data.again)));
  for (const said of data.breaks) parts.push(el("p", { class: "card v-invalid" }, said));
  if (first && !passed) parts.push(el("p", {}, el("b", {}, "First difference from the control: "), `${first.sentence}, at ${milliseconds(first.at)}.`));
  if (data.open && data.open.length) parts.push(el("h2", {}, "Not ended when the journal stops"), el("ul", {}, data.open.map((each) => el("li", {}, each))));
  for (const graph of data.graphs) parts.push(el("h2", {}, "Who waits for whom"), drawGraph(graph, data.evidence || {}));
  if (data.engines) parts.push(el("h2", {}, "Engines after the last push"), el("div", { class: "cards" }, data.engines.map(engineCard)));
  parts.push(el("h2", {}, "Timeline"));
  if (data.story.leftOut) parts.push(el("p", { class: "dim" }, `${data.story.leftOut} spans in the middle are left out; the journal has them.`));
  parts.push(timeline.node);
  if (data.control) {
    const details = el("details", {}, el("summary", {}, "Beside its control"));
    const fill = async () => {
      if (details.childElementCount > 1) return;
      const box = await besideControl(data, index, () => {
        if (passed && first) { timeline.lines = [{ at: first.at, label: "first difference" }]; timeline.draw(); }
      });
      if (box) details.append(box);
    };
    details.addEventListener("toggle", fill);
    details.open = !passed;
    parts.push(details);
  }
  if (attempts.length) parts.push(el("h2", {}, "Attempts side by side"), attemptsTable(attempts, timeline));
  if (data.checks) parts.push(el("h2", {}, "Expected and found"), checksTable(data.checks));
  if (data.ranks && data.ranks.length) parts.push(el("h2", {}, "How each push ended on the ranks"), ranksTable(data.ranks));
  if (data.setting) {
    const pairs = [...data.setting, ["took", `${data.seconds}; ${data.total} with its closing push`], ["journal", data.journal]];
    parts.push(el("h2", {}, "What was set up"), facts(pairs));
  }
  for (const [who, text] of Object.entries(data.evidence || {})) {
    parts.push(el("details", {}, el("summary", {}, `evidence: ${who.includes(":") ? lane(who) : who}`), el("pre", { tabindex: 0 }, text)));
  }
  section.replaceChildren(...parts.filter((part) => part !== null));
}
