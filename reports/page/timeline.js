// A timeline: a lane per rank, engine and worker; drawn again at each zoom, what is in view only.
"use strict";

const FILTERS = [
  ["collective", "collectives"], ["call", "calls"], ["request", "requests"], ["data", "data plane"],
  ["step", "steps"], ["load", "load"],
];
const MAX_ARROWS = 70;
const TOP = 24;

class Timeline {
  constructor(story, { label, lines = [], jumps = [] }) {
    this.story = story;
    this.spans = spansOf(story);
    this.lines = lines;
    this.on = new Set(FILTERS.map(([key]) => key).filter((key) => key !== "load"));
    this.text = "";
    this.focused = -1;
    this.node = el("div", { class: "timeline-box" });
    this.said = el("div", { class: "said", "aria-live": "polite" });
    this.holder = el("div", { class: "timeline" });
    this.node.append(this.controls(label, jumps), this.holder, this.said);
    this.svg = d3.select(this.holder).append("svg").attr("tabindex", 0).attr("role", "application")
      .attr("aria-label", `${label}: timeline. Plus and minus zoom, arrows move, brackets step.`);
    this.zoom = d3.zoom().scaleExtent([1, 20000]).filter((event) => this.takes(event))
      .on("zoom", (event) => { this.transform = event.transform; this.queue(); });
    this.transform = d3.zoomIdentity;
    this.svg.call(this.zoom).on("dblclick.zoom", null).on("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.resize()).observe(this.holder);
  }

  // The wheel scrolls the page unless the timeline was clicked; one finger scrolls it always.
  takes(event) {
    if (event.type === "wheel") return event.ctrlKey || event.metaKey || document.activeElement === this.svg.node();
    if (event.type.startsWith("touch")) return event.touches.length > 1;
    return !event.button;
  }

  controls(label, jumps) {
    const box = el("div", { class: "filters" });
    const select = el("select", { "aria-label": `${label}: zoom to`, onchange: () => {
      const jump = jumps[select.value];
      if (jump) this.show(jump.begin, jump.end); else this.whole();
    } }, el("option", { value: "" }, "the whole run"),
    jumps.map((jump, index) => el("option", { value: index }, jump.label)));
    box.append(select,
      el("button", { "aria-label": "zoom in", onclick: () => this.scale(2) }, "+"),
      el("button", { "aria-label": "zoom out", onclick: () => this.scale(0.5) }, "\u2212"));
    for (const [key, words] of FILTERS) {
      const input = el("input", { type: "checkbox", onchange: () => {
        if (input.checked) this.on.add(key); else this.on.delete(key);
        this.resize();
      } });
      input.checked = this.on.has(key);
      const swatch = el("span", { class: "swatch", style: `--s: var(--${key})` });
      box.append(el("label", {}, input, swatch, words));
    }
    box.append(el("input", { type: "search", placeholder: "only names with\u2026", "aria-label": `${label}: filter by name`,
      oninput: (event) => { this.text = event.target.value.toLowerCase(); this.resize(); } }));
    return box;
  }

  shown(span) {
    if (span.kind === "push" || span.kind === "command") return true;
    return this.on.has(look(span)) && (!this.text || span.name.toLowerCase().includes(this.text));
  }

  resize() {
    const width = this.holder.clientWidth;
    if (!width) return;
    this.left = width < 560 ? 74 : 140;
    this.width = width;
    const { lanes, byIndex, height } = layOut(this.story, this.spans, (span) => this.shown(span));
    this.lanes = lanes;
    this.byIndex = byIndex;
    this.height = height + TOP + 4;
    this.svg.attr("viewBox", `0 0 ${width} ${this.height}`).attr("height", this.height);
    this.base = d3.scaleLinear([0, Math.max(this.story.end, 1)], [this.left, width - 8]);
    this.zoom.extent([[this.left, 0], [width, this.height]])
      .translateExtent([[this.left, 0], [width, this.height]]);
    this.draw();
  }

  queue() {
    if (this.queued) return;
    this.queued = true;
    requestAnimationFrame(() => { this.queued = false; this.draw(); });
  }

  draw() {
    if (!this.base) return;
    this.x = this.transform.rescaleX(this.base);
    const svg = this.svg;
    svg.selectAll("*").remove();
    const clip = `clip-${Timeline.count = (Timeline.count || 0) + 1}`;
    svg.append("clipPath").attr("id", clip).append("rect")
      .attr("x", this.left).attr("width", Math.max(this.width - this.left, 0)).attr("height", this.height);
    this.drawLanes();
    const plot = svg.append("g").attr("clip-path", `url(#${clip})`);
    this.drawBands(plot);
    this.drawSpans(plot);
    this.drawMarks(plot);
    const ticks = d3.axisTop(this.x).ticks(Math.max((this.width - this.left) / 90, 2)).tickSizeOuter(0)
      .tickFormat((value) => milliseconds(value));
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${TOP - 4})`).call(ticks);
  }

  drawLanes() {
    const narrow = this.left < 100;
    for (const each of this.lanes) {
      const y = each.y + TOP;
      this.svg.append("line").attr("class", "grid").attr("x2", this.width).attr("y1", y).attr("y2", y);
      const worker = each.name.includes("/worker:");
      const words = narrow
        ? (worker ? `\u00a0w ${each.name.split("/worker:")[1]}` : lane(each.name))
        : (worker ? `\u00a0\u00a0worker ${each.name.split("/worker:")[1]}` : lane(each.name));
      this.svg.append("text").attr("class", worker ? "worker-label" : "lane-label").attr("x", 6)
        .attr("y", y + PAD + 11).text(words.slice(0, narrow ? 12 : 22));
      if (!narrow) {
        for (const [row, kind] of each.bands.entries()) {
          this.svg.append("text").attr("class", "worker-label").attr("x", this.left - 6).attr("text-anchor", "end")
            .style("font-size", "8px").attr("y", y + PAD + each.rows * ROW + row * BAND + 6).text(kind);
        }
      }
    }
  }

  drawBands(plot) {
    for (const [index, kind, label, begin, end] of this.story.bands) {
      const each = this.byIndex.get(index);
      const row = each ? each.bands.indexOf(kind) : -1;
      if (row < 0) continue;
      const x0 = this.x(begin), x1 = this.x(end < 0 ? this.story.end : end);
      if (x1 < this.left || x0 > this.width) continue;
      const y = each.y + TOP + PAD + each.rows * ROW + row * BAND;
      const from = Math.max(x0, this.left);
      plot.append("rect").attr("x", x0).attr("y", y).attr("width", Math.max(x1 - x0, 1)).attr("height", BAND - 1)
        .attr("fill", `var(--${kind})`).attr("rx", 1)
        .append("title").text(`${kind === "version" ? `serves version ${label}` : label}: ${milliseconds(begin)} to ${end < 0 ? "the end" : milliseconds(end)}`);
      const room = Math.min(x1, this.width) - from;
      if (kind === "version" ? room > 26 : kind === "layers" && room > label.length * 4) {
        plot.append("text").attr("x", from + 3).attr("y", y + 6).style("font-size", "7px").text(label.slice(0, 24));
      }
    }
  }

  place(span) {
    const each = this.byIndex.get(span.lane);
    return each.y + TOP + PAD + (each.first[shelf(span)] + span.row) * ROW;
  }

  drawSpans(plot) {
    const bars = plot.append("g"), arrows = [];
    const taken = new Map();
    for (const span of this.spans) {
      if (!this.shown(span) || !this.byIndex.has(span.lane)) continue;
      const x0 = this.x(span.begin), x1 = this.x(span.end);
      if (x1 < this.left || x0 > this.width) continue;
      const y = this.place(span), bad = failed(span);
      const width = Math.max(x1 - x0, 1.5);
      // Bars narrower than the picture can show: one of them stands for its neighbours.
      if (x0 + width < (taken.get(y) ?? -1) + 0.75 && !bad) continue;
      taken.set(y, x0 + width);
      const thin = span.kind === "command" || span.kind === "push";
      const bar = bars.append("rect").attr("x", x0).attr("y", y + (thin ? 4 : 1)).attr("width", width)
        .attr("height", thin ? 4 : ROW - 3).attr("rx", 1.5).attr("fill", `var(--${bad && !thin ? "fail" : look(span)})`);
      if (span.never) bar.attr("fill-opacity", 0.45).attr("stroke", "var(--fail)").attr("stroke-dasharray", "4 2");
      if (span.i === this.focused) bar.attr("stroke", "var(--text)").attr("stroke-width", 2);
      bar.append("title").text(this.describe(span));
      bar.on("click", () => this.focus(span));
      const from = Math.max(x0, this.left), room = Math.min(x1, this.width) - from;
      const words = span.kind === "barrier" ? "barrier" : span.name + (bad && span.status ? ` ${span.status}` : "");
      if (room > 30 && !thin) {
        bars.append("text").attr("class", span.never ? "bar-text never" : "bar-text").attr("x", from + 3).attr("y", y + 10)
          .text(words.length * 6 > room ? `${words.slice(0, Math.max(room / 6 - 1, 1))}\u2026` : words);
      }
      if (span.to >= 0 && this.byIndex.has(span.to)) arrows.push(span);
    }
    const drawn = arrows.length > MAX_ARROWS ? arrows.filter(failed).slice(0, MAX_ARROWS) : arrows;
    for (const span of drawn) this.drawArrow(plot, span);
  }

  // A call goes down to its engine's lane, and its answer comes back.
  drawArrow(plot, span) {
    const y0 = this.place(span) + ROW / 2, y1 = this.byIndex.get(span.to).y + TOP + PAD;
    const colour = failed(span) ? "var(--fail)" : "var(--call)";
    const x0 = this.x(span.begin), x1 = this.x(span.end);
    plot.append("path").attr("d", `M${x0},${y0}V${y1}m-3,-5l3,5l3,-5`).attr("fill", "none")
      .attr("stroke", colour).attr("stroke-opacity", 0.75);
    if (!span.never && x1 - x0 > 5) {
      plot.append("path").attr("d", `M${x1},${y1}V${y0}m-3,5l3,-5l3,5`).attr("fill", "none")
        .attr("stroke", colour).attr("stroke-opacity", 0.75).attr("stroke-dasharray", "3 2");
    }
  }

  drawMarks(plot) {
    for (const [index, kind, text, at] of this.story.marks) {
      const x = this.x(at), each = this.byIndex.get(index);
      if (!each || x < this.left - 5 || x > this.width + 5) continue;
      const y = each.y + TOP, group = plot.append("g");
      group.append("title").text(`${kind}: ${text}, at ${milliseconds(at)}`);
      if (kind === "fault") {
        group.append("line").attr("x1", x).attr("x2", x).attr("y1", TOP).attr("y2", this.height)
          .attr("stroke", "var(--fail)").attr("stroke-dasharray", "2 3");
        group.append("path").attr("d", `M${x - 6},${y + 1}h12l-6,11z`).attr("fill", "var(--fail)");
      } else if (kind === "version" || kind === "started") {
        group.append("path").attr("d", `M${x},${y + each.height}l-4,-7h8z`).attr("fill", "var(--pass)");
      } else {
        const colour = kind === "break" ? "var(--invalid)" : "var(--hang)";
        group.append("line").attr("x1", x).attr("x2", x).attr("y1", TOP).attr("y2", this.height).attr("stroke", colour);
        group.append("path").attr("d", `M${x},${y + 2}h9l-3,4l3,4h-9z`).attr("fill", colour);
      }
    }
    for (const line of this.lines) {
      const x = this.x(line.at);
      plot.append("line").attr("x1", x).attr("x2", x).attr("y1", TOP).attr("y2", this.height)
        .attr("stroke", "var(--accent)").attr("stroke-width", 2);
      const left = x > (this.width + this.left) / 2;
      plot.append("text").attr("x", x + (left ? -5 : 5)).attr("y", TOP + 11).attr("text-anchor", left ? "end" : "start")
        .style("fill", "var(--accent)").style("font-weight", 700).text(line.label);
    }
  }

  describe(span) {
    const to = span.to >= 0 ? ` to ${lane(this.story.lanes[span.to])}` : "";
    const how = span.never ? "it never ended" : `took ${milliseconds(span.end - span.begin)}`;
    const status = span.status ? `, ${span.status}` : "";
    return `${lane(this.story.lanes[span.lane])}: ${span.kind} ${span.name}${to}${status}; at ${milliseconds(span.begin)}, ${how}`;
  }

  focus(span) {
    this.focused = span.i;
    this.said.textContent = this.describe(span);
    this.svg.node().focus({ preventScroll: true });
    this.draw();
  }

  step(by) {
    const shown = this.spans.filter((span) => this.shown(span));
    if (!shown.length) return;
    const here = shown.findIndex((span) => span.i === this.focused);
    const span = shown[Math.min(Math.max(here + by, 0), shown.length - 1)];
    if (this.x(span.begin) < this.left || this.x(span.begin) > this.width) {
      const [begin, end] = this.x.domain();
      this.show(span.begin - (end - begin) / 4, span.begin + (end - begin) * 3 / 4);
    }
    this.focus(span);
  }

  key(event) {
    const keys = {
      "+": () => this.scale(2), "=": () => this.scale(2), "-": () => this.scale(0.5), 0: () => this.whole(),
      ArrowLeft: () => this.pan(0.2), ArrowRight: () => this.pan(-0.2),
      "[": () => this.step(-1), "]": () => this.step(1),
    };
    if (!(event.key in keys) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  }

  scale(factor) { this.svg.call(this.zoom.scaleBy, factor); }
  pan(part) { this.svg.call(this.zoom.translateBy, part * (this.width - this.left) / this.transform.k, 0); }
  whole() { this.svg.call(this.zoom.transform, d3.zoomIdentity); }

  show(begin, end) {
    if (!this.base) return;
    const margin = (end - begin) * 0.03, x0 = this.base(begin - margin), x1 = this.base(end + margin);
    const k = Math.max((this.width - this.left) / Math.max(x1 - x0, 0.01), 1);
    this.svg.call(this.zoom.transform, d3.zoomIdentity.translate(this.left - k * x0, 0).scale(k));
  }
}
