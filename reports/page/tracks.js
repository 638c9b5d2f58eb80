// A story's columns as spans, and each span's place: a lane per process, rows where they overlap.
"use strict";

const KINDS = ["push", "command", "step", "call", "gather", "barrier", "data", "request", "load"];
const COLLECTIVES = new Set(["gather", "barrier"]);
const BANDS = { engine: ["version", "paused", "session"], worker: ["layers"] };
const ROW = 14, BAND = 7, PAD = 5, MAX_ROWS = 6;

function spansOf(story) {
  const { l, k, n, b, d, s, t } = story.spans;
  const spans = [];
  let begin = 0;
  for (let i = 0; i < l.length; i++) {
    begin += b[i];
    const never = d[i] < 0;
    spans.push({
      i, lane: l[i], kind: KINDS[k[i]], name: story.names[n[i]], begin,
      end: never ? story.end : begin + d[i], never, status: story.answers[s[i]], to: t[i],
    });
  }
  return spans;
}

// What colours a span: an agreement is a collective, like a gather.
function look(span) {
  if (span.kind === "step") return span.name.startsWith("agree.") ? "collective" : "step";
  if (COLLECTIVES.has(span.kind)) return "collective";
  return span.kind === "push" || span.kind === "command" ? "step" : span.kind;
}

function failed(span) {
  return span.never || span.status !== "";
}

// Which of the rows of its lane a span may use: what one thread does, then what is in flight.
function shelf(span) {
  if (span.kind === "command" || span.kind === "push") return 0;
  return span.kind === "call" || span.kind === "load" ? 2 : 1;
}

// Give every shown span its row, and every lane its place from the top. Returns the lanes.
function layOut(story, spans, shown) {
  const lanes = story.lanes.map((name, index) => ({ name, index, shelves: [[], [], []] }));
  for (const span of spans) {
    if (!shown(span)) continue;
    const rows = lanes[span.lane].shelves[shelf(span)];
    let row = rows.findIndex((end) => end <= span.begin);
    if (row < 0) row = rows.length < MAX_ROWS ? rows.push(0) - 1 : MAX_ROWS - 1;
    rows[row] = Math.max(rows[row], span.end);
    span.row = row;
  }
  const banded = new Set(story.bands.map((band) => band[0]));
  const marked = new Set(story.marks.map((mark) => mark[0]));
  let y = 0;
  const used = [];
  for (const each of lanes) {
    const counts = each.shelves.map((rows) => rows.length);
    const rows = counts[0] + counts[1] + counts[2];
    if (!rows && !banded.has(each.index) && !marked.has(each.index)) continue;
    each.first = [0, counts[0], counts[0] + counts[1]];
    each.rows = Math.max(rows, 1);
    each.bands = banded.has(each.index) ? BANDS[each.name.includes("/worker:") ? "worker" : "engine"] : [];
    each.y = y;
    each.height = PAD * 2 + each.rows * ROW + each.bands.length * BAND;
    y += each.height;
    used.push(each);
  }
  return { lanes: used, byIndex: new Map(used.map((each) => [each.index, each])), height: y };
}
