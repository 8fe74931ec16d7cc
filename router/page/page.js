// The live page: asks the router for /overview and draws it. Every value is put into the page as text, never as markup.
"use strict";

const EVERY_MS = 2000, TRY_MS = 5000;
const $ = (id) => document.getElementById(id);
let key = sessionStorage.getItem("sluice-key") || "";
let before = null; // the document before this one, for rates
let failures = 0;

function element(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) e.setAttribute(name, value);
  e.append(...children.map((c) => (c instanceof Node ? c : document.createTextNode(String(c)))));
  return e;
}

function drawing(tag, attributes, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  if (text !== undefined) e.textContent = String(text);
  return e;
}

// ---- numbers ----

const isNumber = (v) => typeof v === "number" && Number.isFinite(v);
const count = (v) => (isNumber(v) ? Math.round(v).toLocaleString("en") : "–");
const share = (v) => (isNumber(v) ? (100 * v).toFixed(1) + " %" : "–");

function rounded(v) {
  if (!isNumber(v)) return "–";
  return v >= 100 ? Math.round(v).toLocaleString("en") : String(Number(v.toPrecision(3)));
}

function seconds(v) {
  if (!isNumber(v)) return "–";
  if (v === 0) return "0";
  if (v < 1e-3) return (v * 1e6).toFixed(0) + " µs";
  if (v < 1) return rounded(v * 1e3) + " ms";
  if (v < 120) return rounded(v) + " s";
  return v < 7200 ? (v / 60).toFixed(0) + " min" : (v / 3600).toFixed(1) + " h";
}

function ratio(part, whole) {
  return whole > 0 ? part / whole : null;
}

function last(list) {
  for (let i = (list || []).length - 1; i >= 0; i--) if (list[i] !== null) return list[i];
  return null;
}

// ---- parts ----

function tiles(id, list) {
  $(id).replaceChildren(...list.map(([name, value, kind]) =>
    element("div", { class: "tile" }, element("b", kind ? { class: kind } : {}, value), element("span", {}, name))));
}

function table(id, heads, rows, none) {
  if (!rows.length) {
    $(id).replaceChildren(element("p", { class: "quiet" }, none));
    return;
  }
  const head = element("tr", {}, ...heads.map((h) => element("th", { scope: "col" }, h)));
  const body = rows.map((r) => element("tr", {}, ...r.map((v) => element("td", { title: v }, v))));
  $(id).replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
}

// A round number that is at least v.
function ceiling(v) {
  if (!(v > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(v));
  return [1, 2, 5, 10].map((m) => m * unit).find((m) => m >= v);
}

function curve(points, top, width, height) {
  let path = "", pen = "M";
  points.forEach((v, i) => {
    if (v === null) {
      pen = "M";
      return;
    }
    const x = 44 + (width - 50) * (points.length > 1 ? i / (points.length - 1) : 1);
    path += pen + x.toFixed(1) + " " + (height - 18 - (height - 28) * Math.min(v / top, 1)).toFixed(1);
    pen = "L";
  });
  return path;
}

// lines: [name, class, values]; values may contain null.
function chart(id, lines, unit, history) {
  const width = 560, height = 180, n = Math.max(...lines.map((l) => l[2].length));
  const most = Math.max(0, ...lines.flatMap((l) => l[2].filter((v) => v !== null)));
  if (!n || lines.every((l) => l[2].every((v) => v === null))) {
    $(id).replaceChildren(element("p", { class: "quiet" }, "Nothing was measured in the last hour."));
    return;
  }
  const top = ceiling(most);
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": lines.map((l) => `${l[0]}: ${unit(last(l[2]))}`).join(", ") });
  for (let g = 0; g <= 2; g++) {
    const y = height - 18 - (height - 28) * g / 2;
    svg.append(drawing("line", { class: "grid", x1: 44, x2: width - 6, y1: y, y2: y }));
    svg.append(drawing("text", { x: 40, y: y + 4, "text-anchor": "end" }, unit(top * g / 2)));
  }
  svg.append(drawing("text", { x: 44, y: height - 3 }, "−" + seconds((n - 1) * history.step_s)));
  svg.append(drawing("text", { x: width - 6, y: height - 3, "text-anchor": "end" }, "now"));
  for (const l of lines) svg.append(drawing("path", { class: l[1], d: curve(l[2], top, width, height) }));
  const legend = element("div", { class: "legend" },
    ...lines.map((l) => element("span", { class: l[1] }, `${l[0]} ${unit(last(l[2]))}`)));
  $(id).replaceChildren(svg, legend);
}

// ---- the cluster ----

const ROLES = ["prefill", "decode", "both"];

function topology(d) {
  const roles = [element("div", { class: "role" }, element("h3", {}, "router"),
    element("div", { class: "nodes" }, element("div", { class: "node " + (d.health === "ok" ? "ready" : "waiting") },
      "this router, ", d.health)))];
  for (const role of ROLES) {
    const own = d.workers.filter((w) => w.role === role);
    if (!own.length) continue;
    const nodes = own.map((w) => element("div", { class: "node " + (/^[a-z]+$/.test(w.state) ? w.state : "") },
      element("b", {}, w.name), ` ${w.state}`,
      w.ranks ? `, group ${w.group} rank ${w.rank} of ${w.ranks}` : "", `, ${w.placed} placed`));
    roles.push(element("div", { class: "role" }, element("h3", {}, `${role} (${own.length})`),
      element("div", { class: "nodes" }, ...nodes)));
  }
  $("topology").replaceChildren(...roles);
}

const earlier = (w) => before && before.workers.find((b) => b.id === w.id && b.figures);

// What a worker's figure has grown by since the document before; since its start if there is none.
function grown(w, name) {
  const b = earlier(w);
  const old = b ? b.figures[name] : 0;
  return w.figures ? Math.max(0, w.figures[name] - old) : null;
}

function workerRow(w) {
  const f = w.figures, hit = ratio(w.swap_hits, w.swap_hits + w.swap_misses);
  const hidden = f && grown(w, "swap_hidden_seconds"), exposed = f && grown(w, "swap_exposed_seconds");
  const idle = f && grown(w, "idle_seconds"), busy = f && grown(w, "step_seconds");
  return [w.name, w.state, `${count(w.running)} / ${count(w.max_batch)}`, count(w.waiting),
    f ? rounded(ratio(grown(w, "batch_sum"), grown(w, "batches"))) : "–",
    f ? seconds(ratio(grown(w, "step_seconds"), grown(w, "steps"))) : "–",
    w.role === "prefill" ? "–" : share(hit),
    f ? `${seconds(hidden)} / ${seconds(exposed)}` : "–",
    f ? share(ratio(idle, idle + busy)) : "–",
    `${count(w.total_pages - w.free_pages - w.cached_pages)} / ${count(w.cached_pages)} / ${count(w.free_pages)}`];
}

function layers(d) {
  const sums = [];
  for (const w of d.workers) {
    if (!w.figures) continue;
    const b = earlier(w);
    w.figures.layer_hits.forEach((h, l) => {
      const s = sums[l] || (sums[l] = { now: [0, 0], all: [0, 0] }), m = w.figures.layer_misses[l];
      s.all[0] += h;
      s.all[1] += m;
      s.now[0] += h - (b ? b.figures.layer_hits[l] || 0 : 0);
      s.now[1] += m - (b ? b.figures.layer_misses[l] || 0 : 0);
    });
  }
  if (!sums.length) {
    $("layers").replaceChildren(element("p", { class: "quiet" },
      "No decode worker tells hits and misses: metrics.port is 0, or no request has run."));
    return;
  }
  const width = 1100, height = 150, step = (width - 50) / sums.length;
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "hit rate of each layer" });
  sums.forEach((s, l) => {
    const of = s.now[0] + s.now[1] > 0 ? s.now : s.all, r = ratio(of[0], of[0] + of[1]);
    const x = 44 + l * step, w = Math.max(1, step - 2), h = (height - 30) * (r || 0);
    svg.append(drawing("rect", { class: "rest", x, y: 10, width: w, height: height - 30 }));
    const bar = drawing("rect", { class: "bar", x, y: height - 20 - h, width: w, height: h });
    bar.append(drawing("title", {}, `layer ${l}: ${share(r)} of ${count(of[0] + of[1])} rows`));
    svg.append(bar);
    if (sums.length < 40 || l % 10 === 0) svg.append(drawing("text", { x, y: height - 5 }, l));
  });
  for (const g of [0, 0.5, 1])
    svg.append(drawing("text", { x: 40, y: height - 16 - (height - 30) * g, "text-anchor": "end" }, share(g).replace(".0", "")));
  $("layers").replaceChildren(svg);
}

function tiers(d) {
  const sum = { "in use": 0, cached: 0, free: 0 }, device = [0, 0], disk = {};
  for (const w of d.workers) {
    sum["in use"] += Math.max(0, w.total_pages - w.free_pages - w.cached_pages);
    sum.cached += w.cached_pages;
    sum.free += w.free_pages;
    if (!w.figures) continue;
    device[0] += w.figures.device_used_bytes;
    device[1] += w.figures.device_total_bytes;
    for (const [name, t] of Object.entries(w.figures.tiers))
      if (t.pages > 0 || t.hits > 0) disk[name] = [(disk[name] || [0, 0])[0] + t.pages, (disk[name] || [0, 0])[1] + t.hits];
  }
  const rows = Object.entries(sum).map(([name, n]) => ["host", name, count(n) + " pages"]);
  if (device[1]) rows.unshift(["device", "in use", `${share(ratio(device[0], device[1]))} of ${rounded(device[1] / 2 ** 30)} GiB`]);
  for (const [name, [n, loaded]] of Object.entries(disk)) rows.push([name, "stored / loaded", `${count(n)} / ${count(loaded)} pages`]);
  table("tiers", ["tier", "state", "pages"], rows, "No worker has joined.");
}

function draw(d) {
  const h = d.history;
  $("model").textContent = d.model;
  $("health").textContent = d.health;
  $("health").className = "badge " + (d.health === "ok" ? "good" : "warn");
  $("since").textContent = `version ${d.version}, up ${seconds(d.now_unix - d.started_unix)}, context ${count(d.max_context)} tokens`;
  const errors = Object.entries(d.errors_by_outcome);
  const failed = errors.filter(([name]) => name !== "cancelled").reduce((n, e) => n + e[1], 0);
  tiles("tiles", [["output tokens per second", rounded(last(h.output_tokens_per_s))], ["requests running", count(d.active - d.queued)],
    ["requests waiting", count(d.queued), d.queued ? "warn" : ""], ["first token, median", seconds(last(h.ttft_p50_s))],
    ["first token, p99", seconds(last(h.ttft_p99_s))], ["between tokens, median", seconds(last(h.itl_p50_s))],
    ["of prompts cached", share(last(h.cached_share))], ["errors in an hour", count(failed), failed ? "bad" : ""]]);
  topology(d);
  chart("ttft", [["median", "a", h.ttft_p50_s], ["p99", "b", h.ttft_p99_s]], seconds, h);
  chart("itl", [["median", "a", h.itl_p50_s], ["p99", "b", h.itl_p99_s]], seconds, h);
  chart("rate", [["output", "a", h.output_tokens_per_s]], rounded, h);
  chart("load", [["running", "a", h.running], ["waiting", "b", h.waiting]], rounded, h);
  table("workers", ["worker", "state", "requests / most", "waiting", "mean batch", "step", "hit rate", "swap hidden / exposed",
    "device idle", "pages used / cached / free"], d.workers.map(workerRow), "No worker has joined.");
  layers(d);
  tiers(d);
  tiles("stages", Object.entries(d.stages).map(([name, n]) => [name, count(n)]));
  const names = new Map(d.workers.map((w) => [w.id, w.name]));
  if (d.requests)
    table("requests", ["id", "client", "stage", "age", "prompt", "cached", "produced", "attempt", "prefill", "decode"],
      d.requests.map((r) => [r.id, r.client, r.stage, seconds(r.age_s), count(r.prompt), count(r.cached), count(r.produced), r.attempt,
        names.get(r.prefill) || "–", names.get(r.decode) || "–"]), "No request is running.");
  else $("requests").replaceChildren(element("p", { class: "quiet" }, "Single requests are shown to keys with admin rights."));
  if (d.clients)
    table("clients", ["client", "waiting", "not ended"], d.clients.map((c) => [c.client, count(c.queued), count(c.active)]),
      "No client has a request.");
  else $("clients").replaceChildren(element("p", { class: "quiet" }, "Clients are shown to keys with admin rights."));
  tiles("outcomes", errors.map(([name, n]) => [name.replace("_", " "), count(n), n && name !== "cancelled" ? "bad" : ""]));
  table("errors", d.admin ? ["ago", "outcome", "reason", "id"] : ["ago", "outcome"],
    d.errors.map((e) => (d.admin ? [seconds(e.age_s), e.outcome, e.reason, e.id] : [seconds(e.age_s), e.outcome])), "None.");
}

// ---- asking ----

function ask_key(text) {
  $("main").hidden = true;
  $("key").hidden = false;
  $("refused").textContent = text;
}

async function update() {
  const stop = new AbortController(), timer = setTimeout(() => stop.abort(), TRY_MS);
  try {
    const answer = await fetch("/overview", { headers: key ? { Authorization: "Bearer " + key } : {}, signal: stop.signal,
      cache: "no-store", credentials: "omit" });
    if (answer.status === 401 || answer.status === 403) {
      ask_key(key ? "This key is not accepted." : answer.status === 403 ? (await answer.json()).error.message : "");
      return;
    }
    if (!answer.ok) throw new Error(String(answer.status));
    const d = await answer.json();
    draw(d);
    if (!before || d.workers.some((w) => w.figures && (!earlier(w) || earlier(w).figures.steps !== w.figures.steps))) before = d;
    failures = 0;
    $("key").hidden = true;
    $("main").hidden = false;
  } catch (e) {
    failures++;
  } finally {
    clearTimeout(timer);
  }
  $("stale").hidden = failures < 2;
  setTimeout(update, document.hidden ? 5 * EVERY_MS : EVERY_MS);
}

$("key").addEventListener("submit", (e) => {
  e.preventDefault();
  key = $("secret").value.trim();
  sessionStorage.setItem("sluice-key", key);
  update();
});
update();
