// The wait-for graph of a hang, laid out by dagre: processes in the same call are one node.
"use strict";

const LINE = 16, CHARACTER = 7.1, NODE_WIDTH = 34;

function wrapped(text, width) {
  const lines = [];
  let line = "";
  for (const word of text.split(" ")) {
    const rest = word.match(new RegExp(`.{1,${width}}`, "g")) || [""];
    for (const part of rest) {
      if (line && line.length + part.length + 1 > width) { lines.push(line); line = part; } else line = line ? `${line} ${part}` : part;
    }
  }
  lines.push(line);
  return lines.slice(0, 8);
}

// Nodes on a cycle: those that can reach themselves.
function onCycles(graph) {
  const next = new Map(graph.nodes.map((node) => [node.id, []]));
  for (const [from, to] of graph.edges) next.get(from).push(to);
  const reaches = (from, goal) => {
    const seen = new Set(), todo = [...next.get(from)];
    while (todo.length) {
      const at = todo.pop();
      if (at === goal) return true;
      if (!seen.has(at)) { seen.add(at); todo.push(...next.get(at)); }
    }
    return false;
  };
  return new Set(graph.nodes.filter((node) => reaches(node.id, node.id)).map((node) => node.id));
}

function drawGraph(graph, evidence) {
  const layout = new dagre.graphlib.Graph();
  layout.setGraph({ rankdir: innerWidth < 640 ? "TB" : "LR", nodesep: 28, ranksep: 60, marginx: 14, marginy: 14 });
  layout.setDefaultEdgeLabel(() => ({}));
  const waiting = new Set(graph.edges.flat());
  for (const node of graph.nodes) {
    const lines = [node.who, ...wrapped(node.at, NODE_WIDTH), ...(node.detail ? wrapped(node.detail, NODE_WIDTH) : [])];
    const width = Math.max(...lines.map((line) => line.length)) * CHARACTER + 22;
    layout.setNode(String(node.id), { node, lines, width, height: lines.length * LINE + 14 });
  }
  for (const [from, to] of graph.edges) if (from !== to) layout.setEdge(String(from), String(to));
  dagre.layout(layout);
  const { width, height } = layout.graph();
  const cyclic = onCycles(graph);
  const svg = d3.create("svg").attr("viewBox", `0 0 ${width} ${height}`).attr("width", width).attr("height", height)
    .attr("role", "group").attr("aria-label", "wait-for graph");
  svg.append("defs").append("marker").attr("id", "tip").attr("viewBox", "0 0 8 8").attr("refX", 7).attr("refY", 4)
    .attr("markerWidth", 7).attr("markerHeight", 7).attr("orient", "auto-start-reverse")
    .append("path").attr("d", "M0,0L8,4L0,8z").attr("fill", "context-stroke");
  for (const edge of layout.edges()) {
    const points = layout.edge(edge).points.map((point) => `${point.x},${point.y}`);
    const both = cyclic.has(Number(edge.v)) && cyclic.has(Number(edge.w));
    svg.append("path").attr("class", `edge${both ? " cyclic" : ""}`).attr("d", `M${points.join("L")}`).attr("marker-end", "url(#tip)");
  }
  const pane = el("div", { "aria-live": "polite" });
  for (const id of layout.nodes()) {
    const { node, lines, x, y, width: w, height: h } = layout.node(id);
    const group = svg.append("g").attr("class", `node${cyclic.has(node.id) ? " cyclic" : ""}`).attr("tabindex", 0)
      .attr("role", "button").attr("aria-pressed", "false").attr("transform", `translate(${x - w / 2},${y - h / 2})`)
      .attr("aria-label", `${node.who} ${node.at}, waits for ${node.waits}`);
    if (!waiting.has(node.id)) group.attr("opacity", 0.65);
    group.append("rect").attr("width", w).attr("height", h).attr("rx", 6);
    lines.forEach((line, index) => group.append("text").attr("class", index ? "" : "who").attr("x", 11)
      .attr("y", 19 + index * LINE).text(line));
    const open = () => {
      svg.selectAll(".node").attr("aria-pressed", "false");
      group.attr("aria-pressed", "true");
      pane.replaceChildren(...stacksOf(node, evidence));
    };
    group.on("click", open).on("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); }
    });
  }
  return el("div", {}, el("p", {}, graph.sentence), el("div", { class: "graph", tabindex: 0, role: "region", "aria-label": "wait-for graph" }, svg.node()),
    el("p", { class: "dim" }, "An arrow points at whom a process waits for; a cycle is drawn thick. Choose a process to see its stack."),
    pane, waitsTable(graph));
}

function stacksOf(node, evidence) {
  const found = node.members.filter((member) => member in evidence);
  const head = el("p", {}, el("b", {}, node.who), ` ${node.at}; waits for ${node.waits}; ends by: ${node.until}`);
  if (!found.length) return [head, el("p", { class: "dim" }, "No stack of it was taken.")];
  return [head, ...found.slice(0, 4).map((member) => el("div", {}, el("h3", {}, lane(member)), el("pre", { tabindex: 0 }, evidence[member]))),
    ...(found.length > 4 ? [el("p", { class: "dim" }, `and ${found.length - 4} more, below`)] : [])];
}

function waitsTable(graph) {
  const rows = graph.nodes.map((node) => el("tr", {}, el("td", {}, node.who), el("td", {}, node.at, node.detail ? el("div", { class: "dim" }, node.detail) : null),
    el("td", {}, node.waits), el("td", {}, node.until)));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ["process", "is", "waits for", "what ends it"].map((word) => el("th", {}, word)))), el("tbody", {}, rows)));
}
