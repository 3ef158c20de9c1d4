// The Gantt: bars rastered to a heat map of phase codes, as quick for 20,000 bars as for 200.
// Zooming rasters anew. Strategies' marks, outlines, and links' use below are drawn over it.

const COLUMNS = 1000, MOST_ROWS = 400, MOST_MARKS = 1500, MOST_PIECES = 800, SAID_ROUNDS = 3, TABLE_ROWS = 300;
const at = (name) => byId(`timeline-${name}`);

// charts of the page's runs, one below the other, or one of the run that its switch shows;
// `asks`: called in place of drawing where other rounds have to be fetched first
function gantt({ runs: all, first, asks }) {
  const elements = [...document.querySelectorAll(".chart.timeline")], together = elements.length > 1;
  const current = () => all.find(({ label }) => label === runs[run]) ?? all[0], last = Math.max(...all.map((one) => one.all.last));
  const { number } = current().rounds, few = Math.max(1, Math.min(3, Math.floor(600 / (5 * current().tracks.length))));
  const [from, to] = first ?? [number[0], number[Math.min(few, number.length) - 1]];
  for (const [name, value] of [["from", from], ["to", to]]) Object.assign(at(name), { max: last, value: Math.min(value, last) });
  const show = () => elements.forEach((chart) => { chart.zoom = null; charts.get(chart)(); });
  const turn = asks ?? show;
  const step = (direction) => {
    const begin = Number(at("from").value) || 1, count = Math.max(1, (Number(at("to").value) || begin) - begin + 1);
    const next = Math.max(1, Math.min(last - count + 1, begin + direction * count));
    [at("from").value, at("to").value] = [next, next + count - 1];
    turn();
  };
  at("previous").addEventListener("click", () => step(-1));
  at("next").addEventListener("click", () => step(1));
  for (const name of ["from", "to", "clients"]) at(name).addEventListener("change", name === "clients" ? show : turn);
  at("controls").addEventListener("submit", (event) => { event.preventDefault(); turn(); });
  at("details").addEventListener("toggle", () => tables(together ? all : [current()]));
  elements.forEach((chart, i) => watch(chart, () => {
    const shown = together ? all : [current()], one = shown[i], views = shown.map(select), view = views[i];
    const longest = Math.max(...(all.length > 1 ? all.map(select) : views).map(({ start, end }) => end - start)); // one scale for all
    const drawing = draw(chart, figure(one, view, chart.zoom ?? [0, longest || 1]));
    chart.scale = view.scale; // seconds per unit of its axis
    at("status").textContent = shown.map((its, n) => (together ? `${its.label}: ` : "") + words(its, views[n])).join(" ");
    tables(shown);
    chart.facts = (x, y) => facts(one, view, x, y);
    if (!chart.listens) listen(chart);
    return drawing;
  }));
}

function listen(chart) {
  const tip = byId("timeline-tip");
  chart.listens = true;
  chart.on("plotly_relayout", (change) => {
    if (!Object.keys(change).some((key) => key.startsWith("xaxis."))) return; // the window's size, say
    const { range: shown, autorange } = chart.layout.xaxis;
    chart.zoom = autorange ? null : shown.map((x) => x * chart.scale);
    charts.get(chart)();
  });
  chart.on("plotly_doubleclick", () => { chart.zoom = null; charts.get(chart)(); });
  chart.on("plotly_unhover", () => { tip.hidden = true; });
  chart.on("plotly_hover", ({ points, event }) => {
    const said = points[0].data.type === "heatmap" ? chart.facts(points[0].x * chart.scale, points[0].y) : [];
    tip.hidden = !said.length;
    tip.replaceChildren(...said.map((line, i) => element(i ? "div" : "strong", { textContent: line })));
    const right = event.clientX > innerWidth / 2, place = { top: `${event.clientY + 14}px`, left: "", right: "" };
    Object.assign(tip.style, place, right ? { right: `${innerWidth - event.clientX + 8}px` } : { left: `${event.clientX + 8}px` });
  });
}

// ---- what is shown

// positions [a, b) of the rounds asked for
function range({ rounds: { number } }) {
  const from = Number(at("from").value) || number[0], to = Math.max(from, Number(at("to").value) || from);
  let a = number.findIndex((n) => n >= from), b = number.findIndex((n) => n > to);
  if (a < 0) a = number.length - 1;
  if (b < 0) b = number.length;
  return [a, Math.max(a + 1, b)];
}

// tracks of the clients that are asked for, by id, range or prototype; all, if none is
function wanted({ tracks }) {
  const parts = at("clients").value.split(",").map((part) => part.trim()).filter(Boolean);
  const found = tracks.map(({ client, group }, i) => [client, group, i]).filter(([client, group]) => client !== null && parts.some((part) => {
    const match = /^(\d+)(?:\s*-\s*(\d+))?$/.exec(part);
    return match ? client >= Number(match[1]) && client <= Number(match[2] ?? match[1]) : group === part;
  }));
  return { tracks: new Set(found.map(([, , i]) => i)), unknown: parts.length > 0 && !found.length };
}

function select(one) {
  const [a, b] = range(one), { rounds, tracks, bars, parts } = one, asked = wanted(one);
  const inside = (i) => bars.round[i] >= a && bars.round[i] < b;
  const present = new Set(bars.track.filter((_, i) => inside(i)));
  const passes = (t) => (asked.tracks.size && tracks[t].client !== null ? asked.tracks.has(t) : present.has(t));
  let rows = [...tracks.keys()].filter(passes);
  const critical = new Set(rounds.critical.slice(a, b)), thin = Math.ceil(rows.length / MOST_ROWS);
  if (thin > 1) rows = rows.filter((t, i) => i % thin === 0 || tracks[t].client === null || critical.has(t));
  // a row is a few lines of the raster, the last of them empty
  const lines = rows.length <= 60 ? 5 : rows.length <= 150 ? 3 : 1, place = new Map();
  let height = 0;
  rows.forEach((t, i) => {
    if (i && tracks[t].group !== tracks[rows[i - 1]].group) height += Math.max(3, lines);
    place.set(t, height);
    height += lines;
  });
  const ends = rounds.start.slice(a, b).map((start, i) => start + rounds.length[a + i]);
  return {
    a, b, rows, place, lines, height, thin, unknown: asked.unknown, start: rounds.start[a], end: Math.max(...ends),
    bars: [...bars.track.keys()].filter((i) => inside(i) && place.has(bars.track[i])),
    parts: [...parts.track.keys()].filter((p) => parts.round[p] >= a && parts.round[p] < b && place.has(parts.track[p])),
    clients: rows.filter((t) => tracks[t].client !== null).length,
  };
}

const begins = ({ rounds, bars }, view, i) => rounds.start[bars.round[i]] - view.start + bars.start[i]; // seconds

// what a bar says; bars lie in the order of their starts, and the last that has begun is on top
function facts(one, view, x, y) {
  const { bars, parts, kinds, tracks, rounds } = one, on = view.rows.findLast((t) => view.place.get(t) <= y);
  const i = view.bars.findLast((bar) => bars.track[bar] === on && begins(one, view, bar) <= x && x < begins(one, view, bar) + bars.length[bar]);
  if (i === undefined) return [];
  const { name, group, client } = tracks[on], p = bars.part[i], kind = kinds[bars.kind[i]];
  const said = [`${kind.label} ${duration(bars.length[i])}`, `${client === null ? name : `client ${name} (${group})`}, round ${rounds.number[bars.round[i]]}`];
  if (p === null) return said;
  if (kind.label === "download") said.push(decimal(parts.down[p], "B"));
  if (kind.label === "upload") said.push(`${decimal(parts.up[p], "B")}, ${parts.outcome[p]}`);
  if (["compression", "upload"].includes(kind.label)) said.push(`${parts.arm[p]} (${parts.choice[p]})`);
  if (parts.reward[p] !== null) said.push(`reward ${digits(parts.reward[p])}`);
  return said;
}

// ---- drawing

// codes: 0 nothing; then each kind, each kind paler, and what was lost
function raster(one, view, [lo, hi]) {
  const { bars, kinds } = one, scale = COLUMNS / (hi - lo), count = kinds.length, thick = Math.max(1, view.lines - 1);
  const z = Array.from({ length: view.height }, () => new Uint16Array(COLUMNS)), column = (s) => Math.round((s - lo) * scale);
  for (const i of view.bars) {
    const begin = begins(one, view, i), kind = bars.kind[i], { hatched, thin } = kinds[kind];
    const a = column(begin), b = Math.max(a + 1, column(begin + bars.length[i])), pale = column(begin + bars.latency[i]);
    const hatch = bars.lost[i] ? 2 * count + 1 : hatched ? 0 : null, top = view.place.get(bars.track[i]), waits = thin && thick > 2 ? 1 : 0;
    for (let h = waits; h < thick - waits; h++) {
      const line = z[top + h];
      line.fill(1 + kind, Math.max(0, a), Math.max(0, b));
      if (pale > a) line.fill(1 + count + kind, Math.max(0, a), Math.max(0, pale));
      if (hatch === null) continue;
      for (let c = Math.max(0, a); c < Math.min(b, COLUMNS); c++) if ((c - a + 4 * h) % 12 < 5) line[c] = hatch;
    }
  }
  return z;
}

const pale = (colour) => (/^#/.test(colour) ? `#${[1, 3, 5].map((i) => Math.round(255 - 0.38 * (255 - parseInt(colour.slice(i, i + 2), 16))).toString(16).padStart(2, "0")).join("")}` : colour);

function figure(one, view, [lo, hi]) {
  const { kinds, bars, tracks, lost } = one, [scale, unit] = timeUnit(hi - lo), gap = 26, tall = 84;
  Object.assign(view, { scale, lo, hi });
  const colours = ["rgba(0,0,0,0)", ...kinds.map((kind) => kind.colour), ...kinds.map((kind) => pale(kind.colour)), lost.colour];
  const z = raster(one, view, [lo, hi]), dx = (hi - lo) / scale / COLUMNS;
  const data = [{
    type: "heatmap", z, x0: lo / scale + dx / 2, dx, y0: 0, dy: 1, zmin: -0.5, zmax: colours.length - 0.5, showscale: false, hoverinfo: "none", showlegend: false,
    colorscale: colours.flatMap((colour, i) => [[i / colours.length, colour], [(i + 1) / colours.length, colour]]),
  }];
  const swatch = ({ label, colour, pattern }) => data.push({ type: "bar", x: [null], y: [null], name: label, marker: { color: colour, pattern: { shape: pattern } } });
  const legend = new Map(view.bars.map((i) => [kinds[bars.kind[i]].legend, kinds[bars.kind[i]]]));
  kinds.forEach((kind) => legend.get(kind.legend) === kind && swatch({ ...kind, label: kind.legend }));
  const late = view.bars.find((i) => bars.latency[i] > 0);
  if (late !== undefined) swatch({ label: "latency (paler)", colour: pale(kinds[bars.kind[late]].colour) });
  if (view.bars.some((i) => bars.lost[i])) swatch(lost);
  const rowPixels = Math.max(2.75, Math.min(24, 1100 / view.rows.length)), every = [1, 2, 5, 10, 20, 50].find((n) => n * rowPixels >= 13) ?? 100;
  if (rowPixels >= 8) marks(one, view, rowPixels, data);
  outlines(one, view, data);
  let within = 0;
  const ticks = view.rows.filter((t, i) => {
    within = i === 0 || tracks[t].group !== tracks[view.rows[i - 1]].group ? 0 : within + 1;
    return within % every === 0;
  });
  const named = (t, i) => (tracks[t].client !== null && (i === 0 || tracks[ticks[i - 1]].group !== tracks[t].group) ? `${tracks[t].group} · ${tracks[t].name}` : tracks[t].name);
  const shown = one.links.filter((link) => isShown(link, one, view)).map((link) => ({ link, use: pieces(link, view), steps: steps(link, view) })).filter(({ use }) => use.x.length);
  const rows = Math.max(120, (rowPixels * view.height) / view.lines), inner = rows + shown.length * (tall + gap);
  const layout = {
    height: inner + 150, barmode: "overlay", margin: { l: 60, r: 16, t: 70, b: 52 }, shapes: [], annotations: [], showlegend: true,
    legend: { orientation: "h", x: 0, xanchor: "left", y: 1 + 22 / inner, yanchor: "bottom", itemclick: false, itemdoubleclick: false },
    yaxis: {
      domain: [1 - rows / inner, 1], range: [view.height - 0.5, -1], tickvals: ticks.map((t) => view.place.get(t) + Math.max(0, view.lines / 2 - 1)),
      ticktext: ticks.map(named).map(escaped), showgrid: false, zeroline: false, fixedrange: true,
    },
    xaxis: {
      title: { text: `${view.start > 0 ? `time since round ${one.rounds.number[view.a]} began at ${duration(view.start)}` : `${one.seconds} time`} (${unit})` },
      range: [lo / scale, hi / scale], anchor: "free", position: 0, showgrid: false,
    },
  };
  shown.forEach((found, i) => drawLink(found, i, 1 - (rows + gap + i * (tall + gap)) / inner, tall / inner, view, data, layout));
  drawRounds(one, view, layout);
  return { data, layout };
}

const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); // Plotly reads markup

function marks(one, view, rowPixels, data) {
  const { bars, parts, kinds, symbols } = one, compressed = view.bars.filter((i) => bars.part[i] !== null && kinds[bars.kind[i]].label === "compression");
  if (compressed.length > MOST_MARKS) return;
  for (const [arm, [symbol, fill]] of Object.entries(symbols)) {
    const mine = compressed.filter((i) => parts.arm[bars.part[i]] === arm);
    if (mine.length) {
      data.push({
        type: "scatter", mode: "markers", name: escaped(arm), hoverinfo: "skip",
        x: mine.map((i) => (begins(one, view, i) + bars.length[i] / 2) / view.scale), y: mine.map((i) => view.place.get(bars.track[i]) + Math.max(0, view.lines / 2 - 1)),
        marker: { size: Math.min(9, rowPixels * 0.6), symbol, color: fill, line: { width: 1, color: "#000001" } },
      });
    }
  }
}

// around the path that set each round's length, up to the last upload it waited for
function outlines(one, view, data) {
  const { bars, rounds, kinds } = one, x = [], y = [], until = new Map(), thick = Math.max(1, view.lines - 1);
  for (const i of view.bars) {
    if (rounds.critical[bars.round[i]] !== bars.track[i] || kinds[bars.kind[i]].thin) continue;
    until.set(bars.round[i], Math.max(until.get(bars.round[i]) ?? 0, bars.start[i] + bars.length[i]));
  }
  for (const [round, length] of until) {
    const left = (rounds.start[round] - view.start) / view.scale, right = left + length / view.scale;
    const top = view.place.get(rounds.critical[round]) - 0.5, bottom = top + thick;
    x.push(left, right, right, left, left, null);
    y.push(top, top, bottom, bottom, top, null);
  }
  if (x.length) data.push({ type: "scatter", mode: "lines", x, y, hoverinfo: "skip", name: "sets the round's length", line: { color: "#000000", width: 2 } });
}

function drawRounds(one, view, layout) {
  const { start, length, number } = one.rounds, every = Math.ceil((view.b - view.a) / 24), wide = document.documentElement.clientWidth > 700;
  for (let r = view.a; r < view.b; r++) {
    const left = start[r] - view.start, right = left + length[r];
    if (right < view.lo || left > view.hi) continue;
    if (view.b - view.a <= 120) layout.shapes.push({ type: "line", xref: "x", yref: "paper", x0: right / view.scale, x1: right / view.scale, y0: 0, y1: 1, line: { width: 1, color: css("--line") } });
    if ((r - view.a) % every) continue;
    const text = view.b - view.a === 1 && wide ? one.rounds.words[r] : view.b - view.a <= 8 ? `round ${number[r]}` : number[r];
    const middle = (Math.max(view.lo, left) + Math.min(view.hi, right)) / 2 / view.scale;
    layout.annotations.push({ text: escaped(text), xref: "x", yref: "paper", x: middle, y: 1, yanchor: "bottom", showarrow: false, font: { size: 12 } });
  }
}

// ---- links: the rate that each carried against its capacity, on an axis of its own

function drawLink({ link, use, steps: known }, i, top, tall, view, data, layout) {
  const capacity = known ?? { x: use.x, y: use.capacity }, most = Math.max(1, ...use.rate, ...capacity.y.filter(Number.isFinite));
  const [scale, unit] = [[1e9, "Gbps"], [1e6, "Mbps"], [1e3, "kbps"], [1, "bps"]].find(([step]) => most >= step), name = escaped(link.name);
  const base = { type: "scatter", mode: "lines", yaxis: `y${i + 2}`, showlegend: false }, scaled = (values) => values.map((v) => (v === null ? null : v / scale));
  layout[`yaxis${i + 2}`] = { domain: [top - tall, top], range: [0, (1.1 * most) / scale], nticks: 3, title: { text: unit }, fixedrange: true };
  data.push({ ...base, x: use.x, y: scaled(use.rate), fill: "tozeroy", fillcolor: "rgba(96,133,173,0.55)", name, line: { shape: "hv", width: 1, color: "#6085AD" }, hovertemplate: `${name}: %{y:.3g} ${unit}<extra></extra>` });
  data.push({ ...base, x: capacity.x, y: scaled(capacity.y), name: "link capacity", showlegend: i === 0, line: { shape: "hv", width: 1.4, dash: "dash", color: "#000000" }, hovertemplate: `${name}: capacity %{y:.3g} ${unit}<extra></extra>` });
  layout.annotations.push({ text: name, xref: "paper", yref: "paper", x: 0, y: top, xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 12 } });
}

// a client's own link goes with its row
function isShown(link, { tracks }, view) {
  const match = /^client-(\d+)\/(up|down)$/.exec(link.name);
  return !match || view.rows.some((t) => tracks[t].client === Number(match[1]));
}

// the capacity as it steps, also while the link is idle
function steps({ step_at_s: at_s, step }, view) {
  const kept = [...at_s.keys()].filter((i) => (at_s[i + 1] ?? at_s[i] ?? view.start) >= view.start && (at_s[i - 1] ?? at_s[i] ?? view.start) <= view.end);
  if (!at_s.length || kept.length > 8 * MOST_PIECES) return null;
  return { x: kept.map((i) => (at_s[i] === null ? null : (Math.min(view.end, Math.max(view.start, at_s[i])) - view.start) / view.scale)), y: kept.map((i) => step[i]) };
}

// the use as it steps; of more pieces than anybody can tell apart the mean of equal slices, bits conserved
function pieces({ from_s, to_s, rate, capacity }, view) {
  const made = { x: [], rate: [], capacity: [] }, lo = view.start + view.lo, hi = view.start + view.hi;
  const shown = [...from_s.keys()].filter((i) => to_s[i] > lo && from_s[i] < hi);
  const add = (x, bits, most) => { made.x.push((x - view.start) / view.scale); made.rate.push(bits); made.capacity.push(most); };
  if (shown.length <= MOST_PIECES) {
    shown.forEach((i, n) => {
      add(from_s[i], rate[i], capacity[i]);
      if (!(from_s[shown[n + 1]] <= to_s[i])) add(to_s[i], 0, capacity[i]);
    });
    return made;
  }
  const step = (hi - lo) / (MOST_PIECES / 2), bits = new Float64Array(MOST_PIECES / 2);
  for (const i of shown) {
    const from = Math.max(lo, from_s[i]), to = Math.min(hi, to_s[i]);
    for (let n = Math.floor((from - lo) / step); n < bits.length && lo + n * step < to; n++) bits[n] += rate[i] * Math.max(0, Math.min(to, lo + (n + 1) * step) - Math.max(from, lo + n * step));
  }
  view.sliced = true;
  bits.forEach((sum, n) => add(lo + n * step, sum / step, capacity[shown[0]]));
  return made;
}

// ---- in words

const many = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

function words(one, view) {
  const { rounds, all } = one, [first, last] = [rounds.number[view.a], rounds.number[view.b - 1]], held = one.tracks.filter(({ client }) => client !== null).length;
  const said = [`${first === last ? `Round ${first}` : `Rounds ${first} to ${last}`} of ${all.rounds.toLocaleString("en")}, ${many(view.clients, "client")}.`];
  if (view.unknown) said.push("No such client: all are shown.");
  if (view.thin > 1) said.push(`Too many rows to draw: one client in ${view.thin} is shown, and those that held a round up. Name fewer clients to see all of them.`);
  if (all.sampled) said.push(`The page holds a sample of ${rounds.number.length.toLocaleString("en")} of ${many(all.rounds, "round")}: the longest, and others evenly between.`);
  if (held < all.clients) said.push(`The page holds a sample of ${held.toLocaleString("en")} of ${many(all.clients, "client")}, evenly spaced, and those that held a round up.`);
  if (one.edges < all.edges) said.push(`Of ${all.edges} edge servers the first ${one.edges}.`);
  if (view.sliced || one.links.some(({ sliced }) => sliced)) said.push("Link use is averaged over slices of time.");
  const shown = Array.from({ length: view.b - view.a }, (_, i) => view.a + i), because = (r) => `${rounds.words[r]}, ${duration(rounds.length[r])}`;
  const longest = shown.reduce((r, other) => (rounds.length[other] > rounds.length[r] ? other : r));
  said.push(shown.length > SAID_ROUNDS ? `The longest of them: ${because(longest)}.` : `Waited for: ${shown.map(because).join("; ")}.`);
  return said.join(" ");
}

function tables(shown) {
  if (at("details").open) at("table").replaceChildren(...shown.map((one) => table(one, select(one), shown.length > 1)));
}

function table(one, view, isNamed) {
  const { parts, bars, kinds, tracks, rounds } = one, kept = view.parts.slice(0, TABLE_ROWS), seconds = new Map(kept.map((p) => [p, new Map()]));
  for (const i of view.bars) {
    const mine = seconds.get(bars.part[i]);
    mine?.set(bars.kind[i], (mine.get(bars.kind[i]) ?? 0) + bars.length[i]);
  }
  const columns = [...kinds.keys()].filter((kind) => kept.some((p) => seconds.get(p).has(kind)));
  const head = ["round", "client", "prototype", "strategy", "outcome", ...columns.map((kind) => kinds[kind].label), "reward"].map((textContent) => element("th", { scope: "col", textContent }));
  const lines = kept.map((p) => {
    const { name, group } = tracks[parts.track[p]], each = columns.map((kind) => (seconds.get(p).has(kind) ? duration(seconds.get(p).get(kind)) : ""));
    const cells = [rounds.number[parts.round[p]], name, group, parts.arm[p], parts.outcome[p], ...each, parts.reward[p] === null ? "" : digits(parts.reward[p])];
    return element("tr", {}, ...cells.map((textContent) => element("td", { textContent })));
  });
  const which = `${kept.length < view.parts.length ? `The first ${TABLE_ROWS} of ${view.parts.length} participations` : "Participations"}${isNamed ? ` of ${one.label}` : ""}`;
  return element("table", {}, element("caption", { textContent: which }), element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...lines));
}
