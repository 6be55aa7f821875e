// Draws the report from the JSON beside it. All times are virtual seconds since the start.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const { summary, scenario, column } = data;
const total = scenario.seconds + scenario.settle;
const columns = data.right.length;
const page = document.getElementById("page");
const tip = document.getElementById("tip");
const WIDTH = 1140, LEFT = 74, RIGHT = 14;
const NS = "http://www.w3.org/2000/svg";

const STATES = [
  [".", "sees everybody rightly", "--good"], [":", "is wrong about somebody", "--wrong"], ["j", "is joining", "--joining"],
  ["p", "stands still", "--pause"], ["x", "crashed, port refuses", "--refused"], ["o", "crashed, silent", "--silent"],
  ["l", "has left", "--left"], ["n", "ended: name taken", "--taken"], ["-", "not started", "--none"],
];
const OUTCOMES = [
  ["answered", "--ok"], ["answered after a retry", "--retried"], ["answered after more than 1 s", "--slow"],
  ["answered by another lane", "--fell"], ["failed", "--failed"],
];
const NOTICED = [["a port", "--b"], ["silence", "--d"], ["a goodbye", "--a"], ["a start", "--c"]];

// Building blocks.
function html(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
function svg(tag, attributes = {}, text) {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
const number = (n) => n >= 1e6 ? (n / 1e6).toFixed(1) + " M" : n >= 1e4 ? (n / 1e3).toFixed(n >= 1e5 ? 0 : 1) + " k" : Math.round(n).toLocaleString("en");
const bytes = (n) => n >= 1e6 ? (n / 1e6).toFixed(1) + " MB" : n >= 1e3 ? (n / 1e3).toFixed(1) + " kB" : Math.round(n) + " B";
function time(s) {
  if (total > 7200) return Math.floor(s / 3600) + " h " + String(Math.floor(s / 60) % 60).padStart(2, "0");
  return (s % 1 ? s.toFixed(1) : s) + " s";
}
function steps(most, count) {
  const rough = most / count, power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const ticks = [];
  for (let at = 0; at <= most * 1.0001; at += step) ticks.push(+at.toPrecision(12));
  return ticks;
}
function timeSteps() {
  const nice = [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800];
  const step = nice.find((n) => total / n <= 12) || 86400;
  return Array.from({ length: Math.floor(total / step) + 1 }, (_, at) => at * step);
}
const x = (s) => LEFT + (s / total) * (WIDTH - LEFT - RIGHT);
function card(title, about, into = page) {
  const body = html("section", { class: "card" }, html("h2", {}, title), html("p", {}, about));
  into.append(body);
  return body;
}
function legend(of, entries) {
  const list = html("div", { class: "legend" });
  for (const [name, color] of entries) list.append(html("span", {}, html("i", { style: `background:var(${color})` }), name));
  of.append(list);
}

// A chart over virtual time: grid, shaded end without faults, and a cursor that all of them share.
const cursors = [];
function timeChart(of, height, { axis = true, label = "" } = {}) {
  const bottom = axis ? 24 : 4;
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${height + bottom}`, role: "img", "aria-label": label });
  chart.append(svg("rect", { x: x(scenario.seconds), y: 0, width: x(total) - x(scenario.seconds), height, fill: "var(--calm)" }));
  for (const s of timeSteps()) {
    chart.append(svg("line", { class: "grid", x1: x(s), x2: x(s), y1: 0, y2: height }));
    if (axis) chart.append(svg("text", { x: x(s), y: height + 17, "text-anchor": s && s < total ? "middle" : s ? "end" : "start" }, time(s)));
  }
  of.append(chart);
  const cursor = svg("line", { class: "cursor", y1: 0, y2: height, visibility: "hidden" });
  cursors.push(cursor);
  return { chart, height, done: () => chart.append(cursor) };
}
function hover(chart, say) {
  chart.addEventListener("mousemove", (event) => {
    const box = chart.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    const s = ((at - LEFT) / (WIDTH - LEFT - RIGHT)) * total;
    const inside = s >= 0 && s <= total;
    for (const cursor of cursors) {
      cursor.setAttribute("visibility", inside ? "visible" : "hidden");
      cursor.setAttribute("x1", at);
      cursor.setAttribute("x2", at);
    }
    const text = inside && say(s, Math.min(columns - 1, Math.floor(s / column)), ((event.clientY - box.top) / box.height));
    show(event, text);
  });
  chart.addEventListener("mouseleave", () => {
    cursors.forEach((cursor) => cursor.setAttribute("visibility", "hidden"));
    show();
  });
}
function show(event, text) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
}
function scale(chart, height, most, unit, count = 4) {
  const ticks = steps(most || 1, count);
  const top = Math.max(most || 1, ticks[ticks.length - 1]) * 1.04;
  const y = (value) => height - (value / top) * height;
  for (const tick of ticks) {
    chart.append(svg("line", { class: tick ? "grid" : "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick) }));
    chart.append(svg("text", { x: LEFT - 8, y: Math.min(y(tick) + 4, height), "text-anchor": "end" }, unit(tick)));
  }
  return y;
}
function line(chart, values, y, color, wide = 2) {
  const points = values.map((value, at) => `${x(Math.min((at + 0.5) * column, total)).toFixed(1)},${y(value).toFixed(1)}`);
  chart.append(svg("polyline", { points: points.join(" "), fill: "none", stroke: `var(${color})`, "stroke-width": wide, "stroke-linejoin": "round" }));
}

function head() {
  const mesh = scenario.mesh;
  page.append(html("h1", {}, scenario.name, html("small", {}, `seed ${summary.seed}`)));
  page.append(html("p", { class: "about" }, scenario.about));
  const bad = summary.violations.length;
  page.append(html("span", { class: bad ? "verdict bad" : "verdict", id: "verdict" }, bad ? `${bad} invariant${bad > 1 ? "s" : ""} violated` : "Nothing is wrong"));
  for (const v of summary.violations) {
    page.append(html("div", { class: "violation" }, html("b", {}, v.invariant), ` at ${time(v.at)}${v.times > 1 ? `, ${number(v.times)} times` : ""}: ${v.what}`));
  }
  const part = (n) => summary.requests ? ` (${(100 * n / summary.requests).toFixed(n && n / summary.requests < 0.001 ? 3 : 1)} %)` : "";
  const converged = summary.converged_after;
  const tiles = [
    [`${mesh.nodes}`, `nodes, ${mesh.services} service${mesh.services > 1 ? "s" : ""}, ${mesh.seeds} seed${mesh.seeds > 1 ? "s" : ""}`],
    [`${time(scenario.seconds)} + ${time(scenario.settle)}`, "with faults + to settle"],
    [`${(mesh.link.loss * 100).toFixed(0)} %`, `loss, ${mesh.link.delay_ms} to ${mesh.link.delay_ms + mesh.link.jitter_ms} ms one way`],
    [`${summary.right} of ${summary.members}`, "members see everybody rightly at the end", summary.right < summary.members],
    [converged === null ? "never" : time(Math.round(converged)), "after the last fault all agree", converged === null],
    [number(summary.requests), "requests"],
    [number(summary.failed), "failed" + part(summary.failed), summary.failed > 0],
    [number(summary.slow), "slower than 1 s" + part(summary.slow)],
    [number(summary.moved), "at another instance than before" + part(summary.moved)],
    [number(summary.fell_back), "answered by another lane" + part(summary.fell_back)],
    [number(summary.down_in_contact), "verdicts on members in contact"],
    [bytes(summary.bytes_per_node_second), "sent by a node each second"],
  ];
  const grid = html("div", { class: "tiles" });
  for (const [value, name, alarm] of tiles) grid.append(html("div", { class: alarm ? "tile bad" : "tile" }, html("b", {}, value), html("span", {}, name)));
  page.append(grid);
}

function names(list) {
  if (!list.length) return "(nobody)";
  if (list.length > 1 && list.length === data.names.length) return "all";
  const ranges = [];
  for (const at of list) {
    const last = ranges[ranges.length - 1];
    if (last && last[1] === at - 1) last[1] = at;
    else ranges.push([at, at]);
  }
  const shown = ranges.slice(0, 5).map(([from, to]) => from === to ? data.names[from] : `${data.names[from]}${to === from + 1 ? ", " : "…"}${data.names[to]}`).join(", ");
  return ranges.length > 5 ? `${shown}, … (${list.length})` : shown;
}

function timeline() {
  const body = card("Faults and views", "Above: what was done, and to whom. Below: one row for each host, and how it saw the mesh. The shaded end is free of faults; there everything must become right.");
  legend(body, STATES.filter(([letter]) => data.states.some((row) => row.includes(letter))).map(([, name, color]) => [name, color]));
  // Faults in as few lanes as they need without touching each other or each other's words.
  const lanes = [], placed = [];
  for (const fault of data.faults) {
    const end = fault.ended === null ? fault.begun : fault.ended;
    const words = `${fault.what} ${names(fault.hosts)}${fault.to.length ? " | " + names(fault.to) : ""}`;
    const width = words.length * 6.6 + 10, from = x(fault.begun), bar = Math.max(x(end) - from, 3);
    const left = from + bar + 6 + width > WIDTH - RIGHT && from - width > LEFT;
    const reach = left ? [from - width, from + bar + 4] : [from, from + bar + 6 + width];
    let lane = lanes.findIndex((taken) => taken.every(([a, b]) => reach[1] <= a || b <= reach[0]));
    if (lane < 0) lane = lanes.push([]) - 1;
    lanes[lane].push(reach);
    placed.push({ fault, words, from, bar, lane, left });
  }
  const shownLanes = Math.min(lanes.length, 24), top = shownLanes * 19 + (shownLanes ? 10 : 0);
  const rows = data.states.length, row = Math.max(2, Math.min(22, Math.floor(640 / rows)));
  const height = top + rows * row + 6;
  const { chart, done } = timeChart(body, height, { label: "faults and views" });
  for (const { words, from, bar, lane, left } of placed) {
    if (lane >= shownLanes) continue;
    chart.append(svg("rect", { class: "fault", x: from, y: lane * 19 + 3, width: bar, height: 11, rx: 2, fill: "var(--fault)" }));
    chart.append(svg("text", { class: "strong", x: left ? from - 5 : from + bar + 5, y: lane * 19 + 13, "text-anchor": left ? "end" : "start" }, words));
  }
  if (lanes.length > shownLanes) chart.append(svg("text", { x: LEFT, y: top }, `and ${lanes.length - shownLanes} more rows of faults`));
  const colors = Object.fromEntries(STATES.map(([letter, , color]) => [letter, color]));
  const each = row >= 11 ? 1 : Math.ceil(14 / row);
  data.states.forEach((states, at) => {
    const y = top + at * row;
    for (let from = 0; from < states.length;) {
      let to = from + 1;
      while (states[to] === states[from]) to++;
      const width = x(Math.min(to * column, total)) - x(from * column);
      chart.append(svg("rect", { class: "state", x: x(from * column).toFixed(1), y, width: width.toFixed(1), height: row > 8 ? row - 1 : row, fill: `var(${colors[states[from]]})` }));
      from = to;
    }
    if (at % each === 0) chart.append(svg("text", { x: LEFT - 8, y: y + Math.min(row, 14) / 2 + 5, "text-anchor": "end" }, data.names[at]));
  });
  // On the rows: who was struck, also where the state does not show it.
  if (row >= 6) for (const fault of data.faults) for (const host of fault.hosts) {
    const end = fault.ended === null ? fault.begun : fault.ended;
    chart.append(svg("rect", { x: x(fault.begun), y: top + host * row + row - 3, width: Math.max(x(end) - x(fault.begun), 2), height: 2, fill: "var(--fault)" }));
  }
  for (const v of summary.violations) chart.append(svg("line", { x1: x(v.at), x2: x(v.at), y1: 0, y2: height, stroke: "var(--failed)", "stroke-width": 2 }));
  done();
  hover(chart, (s, at, down) => {
    const host = Math.floor((down * (height + 24) - top) / row);
    const active = data.faults.filter((f) => f.begun <= s && s <= (f.ended === null ? f.begun + total / 200 : f.ended));
    const what = active.map((f) => `${f.what}: ${names(f.hosts)}`).slice(0, 8).join("\n");
    const state = data.states[host] && STATES.find(([letter]) => letter === data.states[host][at]);
    return [time(Math.round(s * 10) / 10), state && `${data.names[host]} ${state[1]}`, what].filter(Boolean).join("\n");
  });
}

function views() {
  const body = card("Who sees the mesh rightly", "Members that hold every member alive and nobody else, in per cent of all members.");
  const { chart, height, done } = timeChart(body, 130, { label: "right views over time" });
  const share = data.right.map(([right, up]) => up ? 100 * right / up : 100);
  const y = scale(chart, height, 100, (n) => n + " %", 4);
  line(chart, share, y, "--c");
  done();
  hover(chart, (s, at) => `${time(Math.round(s))}\n${data.right[at][0]} of ${data.right[at][1]} members (${share[at].toFixed(0)} %)`);
}

function detection(into) {
  const body = card("How fast others notice", "Share of the members that know, by seconds after it happened.", into);
  if (!data.detection.length) return body.append(html("p", {}, "Nobody came or went."));
  const wide = 560, height = 240, left = 54;
  const latest = Math.max(...data.detection.map((curve) => curve.seconds[Math.floor((curve.seconds.length - 1) * 0.98)] || 0), 1);
  const ticks = steps(latest * 1.1, 6), end = Math.max(latest * 1.1, ticks[ticks.length - 1]);
  const at = (s) => left + Math.min(s / end, 1) * (wide - left - 10), y = (part) => 6 + (1 - part) * (height - 6);
  const chart = svg("svg", { viewBox: `0 0 ${wide} ${height + 40}`, role: "img", "aria-label": "detection" });
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    chart.append(svg("line", { class: "grid", x1: left, x2: wide - 10, y1: y(part), y2: y(part) }));
    chart.append(svg("text", { x: left - 8, y: y(part) + 4, "text-anchor": "end" }, part * 100 + " %"));
  }
  for (const tick of ticks) chart.append(svg("text", { x: at(tick), y: height + 17, "text-anchor": "middle" }, tick));
  chart.append(svg("text", { x: (left + wide) / 2, y: height + 35, "text-anchor": "middle" }, "seconds after it happened"));
  const entries = data.detection.map((curve) => {
    const color = NOTICED.find(([start]) => curve.what.startsWith(start))[1];
    const count = curve.seconds.length;
    const points = curve.seconds.map((s, n) => [at(s), y(((n + 1) / count) * curve.share)]);
    let path = `M${at(0)},${y(0)}`;
    for (const [px, py] of points) path += `H${px.toFixed(1)}V${py.toFixed(1)}`;
    if (count) path += `H${at(end)}`;
    chart.append(svg("path", { d: path, fill: "none", stroke: `var(${color})`, "stroke-width": 2.2 }));
    const half = curve.seconds[Math.floor(count / 2)];
    return [`${curve.what} (${curve.times}${count ? `, half within ${half.toFixed(1)} s` : ""})`, color];
  });
  legend(body, entries);
  body.append(chart);
}

function requests() {
  if (!summary.requests) return;
  const body = card("Requests by outcome", `Requests that ended, in each ${column === 1 ? "second" : column + " seconds"}.`);
  legend(body, OUTCOMES.filter((_, kind) => data.requests.some((counts) => counts[kind])));
  const sums = data.requests.map((counts) => counts.reduce((a, b) => a + b, 0));
  const { chart, height, done } = timeChart(body, 170, { label: "requests by outcome" });
  const y = scale(chart, height, Math.max(...sums), number);
  const wide = Math.max(x(column) - x(0) - 0.4, 0.8);
  // Failures at the bottom, where few of them still show.
  const order = [4, 3, 2, 1, 0];
  data.requests.forEach((counts, at) => {
    let below = 0;
    for (const kind of order) {
      if (!counts[kind]) continue;
      const tall = Math.max(y(below) - y(below + counts[kind]), kind === 4 ? 2 : 0);
      chart.append(svg("rect", { x: x(at * column).toFixed(1), y: (y(below) - tall).toFixed(1), width: wide.toFixed(1), height: tall.toFixed(1), fill: `var(${OUTCOMES[kind][1]})` }));
      below += counts[kind];
    }
  });
  done();
  hover(chart, (s, at) => [time(at * column)].concat(OUTCOMES.map(([name], kind) => data.requests[at][kind] && `${name}: ${number(data.requests[at][kind])}`).filter(Boolean)).join("\n"));
  body.append(html("p", { style: "margin-top:14px" }, "How long they took, from the request to the answer or the error, on a logarithmic scale."));
  legend(body, [["half of them within", "--c"], ["9 of 10 within", "--a"], ["the slowest", "--b"]]);
  const slow = timeChart(body, 150, { label: "latency" });
  const most = Math.max(2, Math.ceil(Math.log10(Math.max(...data.latency.map((l) => l[2]), 10))));
  const log = (ms) => slow.height - (Math.log10(Math.max(ms, 1)) / most) * (slow.height - 8);
  for (let power = 0; power <= most; power++) {
    slow.chart.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: log(10 ** power), y2: log(10 ** power) }));
    slow.chart.append(svg("text", { x: LEFT - 8, y: log(10 ** power) + 4, "text-anchor": "end" }, power < 3 ? 10 ** power + " ms" : 10 ** (power - 3) + " s"));
  }
  [["--b", 2, 1.2], ["--a", 1, 1.8], ["--c", 0, 2]].forEach(([color, place, wide]) => line(slow.chart, data.latency.map((l) => l[place]), log, color, wide));
  slow.done();
  hover(slow.chart, (s, at) => `${time(at * column)}\nhalf within ${data.latency[at][0]} ms\n9 of 10 within ${data.latency[at][1]} ms\nslowest ${data.latency[at][2]} ms`);
}

function moved() {
  const body = card("Keys moved", "For each moment the greatest share of a service's keys that one newly built view moved to another instance, in per cent. Small and rare is good: every moved key is a cold cache somewhere.");
  const { chart, height, done } = timeChart(body, 120, { label: "keys moved" });
  const y = scale(chart, height, Math.max(...data.moved.map(([, most]) => most / 100), 1), (n) => n + " %");
  const wide = Math.max(x(column) - x(0) - 0.4, 1.2);
  data.moved.forEach(([, most], at) => {
    if (most) chart.append(svg("rect", { x: x(at * column), y: y(most / 100), width: wide, height: height - y(most / 100), fill: "var(--d)" }));
  });
  done();
  hover(chart, (s, at) => `${time(at * column)}\n${data.moved[at][0]} views built\nat most ${(data.moved[at][1] / 100).toFixed(1)} % of keys moved`);
}

function traffic() {
  const body = card("Bytes and connections", "What sidecars send each other, per second, and the connections that a node holds on average.");
  legend(body, [["bytes/s, a node on average", "--a"], ["bytes/s, the node that sent most", "--b"]]);
  const first = timeChart(body, 120, { label: "bytes" });
  const y = scale(first.chart, first.height, Math.max(...data.bytes.map(([, most]) => most)), bytes, 3);
  line(first.chart, data.bytes.map(([, most]) => most), y, "--b", 1.2);
  line(first.chart, data.bytes.map(([mean]) => mean), y, "--a");
  first.done();
  hover(first.chart, (s, at) => `${time(at * column)}\n${bytes(data.bytes[at][0])}/s on average\n${bytes(data.bytes[at][1])}/s at most\n${data.connections[at].toFixed(1)} connections a node`);
  legend(body, [["connections of a node", "--c"]]);
  const second = timeChart(body, 90, { label: "connections" });
  const z = scale(second.chart, second.height, Math.max(...data.connections), number, 3);
  line(second.chart, data.connections, z, "--c");
  second.done();
  hover(second.chart, (s, at) => `${time(at * column)}\n${data.connections[at].toFixed(1)} connections a node`);
}

function perNode(into) {
  const body = card("Bytes by node", "All that each host sent, in order of their names. Level is good: nobody is a hub.", into);
  const wide = 560, height = 240, left = 64;
  const chart = svg("svg", { viewBox: `0 0 ${wide} ${height + 40}`, role: "img", "aria-label": "bytes by node" });
  const most = Math.max(...data.sent, 1), ticks = steps(most, 4), top = Math.max(most, ticks[ticks.length - 1]) * 1.02;
  const y = (value) => 6 + (1 - value / top) * (height - 6);
  for (const tick of ticks) {
    chart.append(svg("line", { class: "grid", x1: left, x2: wide - 10, y1: y(tick), y2: y(tick) }));
    chart.append(svg("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, bytes(tick)));
  }
  const step = (wide - left - 10) / data.sent.length, each = Math.ceil(40 / step);
  data.sent.forEach((sent, at) => {
    const bar = svg("rect", { x: left + at * step + (step > 3 ? 0.5 : 0), y: y(sent), width: Math.max(step - (step > 3 ? 1 : 0), 0.6), height: height - y(sent), fill: "var(--a)" });
    bar.addEventListener("mousemove", (event) => show(event, `${data.names[at]}: ${bytes(sent)}`));
    bar.addEventListener("mouseleave", () => show());
    chart.append(bar);
    if (at % each === 0) chart.append(svg("text", { x: left + (at + 0.5) * step, y: height + 17, "text-anchor": "middle" }, data.names[at]));
  });
  body.append(chart);
}

function worst() {
  const story = data.worst;
  const body = card("The worst user's story", story
    ? `${story.user} sent ${story.requests} requests: ${story.failed} failed, ${story.slow} took more than a second. Those, and the ones around them:`
    : "No request failed or took more than a second.");
  if (!story) return;
  const table = html("table", { id: "story" }, html("tr", {}, ...["at", "sidecar", "service", "lane", "method", "tries", "took", "end"].map((name) => html("th", {}, name))));
  for (const r of story.shown) {
    const failed = r.end.startsWith("failed");
    const took = r.took >= 1000 ? (r.took / 1000).toFixed(2) + " s" : r.took + " ms";
    table.append(html("tr", { class: failed ? "bad" : r.bad ? "slow" : "" },
      ...[time(r.at), r.via, r.service, r.lane, r.class, r.tries.join(" → ") || "none", took, r.end].map((cell) => html("td", {}, cell))));
  }
  body.append(html("div", { class: "scroll" }, table));
}

function foot() {
  page.append(html("footer", {}, "The same again: ", html("code", {}, `lanemesh-sim run ${scenario.name} --seed ${summary.seed}`), ` with the same build. ${number(summary.events)} events, hash ${summary.hash}.`));
}

head();
timeline();
views();
requests();
const pair = html("div", { class: "pair" });
page.append(pair);
detection(pair);
perNode(pair);
moved();
traffic();
worst();
foot();
document.documentElement.dataset.drawn = "yes";
