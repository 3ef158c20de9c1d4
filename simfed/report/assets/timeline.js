// The timeline: bars, or bands where there are too many, with the links' use below.

const MOST_BARS = 8000, MOST_ROWS = 150, MOST_MARKS = 1500, MOST_PIECES = 800; // more is drawn coarser
const BAND_POINTS = 400, SAID_ROUNDS = 3, TABLE_ROWS = 300;
const WAITING = 4; // position in the record's order of kinds

// Charts of the page's runs, one below the other, or one of the run that its switch shows.
function timeline(spec) {
  const elements = [...document.querySelectorAll(".chart.timeline")], at = (name) => byId(`timeline-${name}`);
  const runs = spec.runs, together = elements.length > 1;
  const current = () => runs.find((run) => decoded(run.label) === shownRun.label) ?? runs[0];
  const drawn = () => (together ? runs : [current()]);
  const limit = () => {
    const numbers = current().rounds.number, last = Math.max(...runs.map((run) => run.rounds.number.at(-1)));
    const few = Math.max(1, Math.min(3, Math.floor(600 / (5 * current().clients.id.length))));
    const [from, to] = spec.first ?? [numbers[0], numbers[Math.min(few, numbers.length) - 1]];
    for (const name of ["from", "to"]) at(name).max = String(last);
    at("from").value = String(Math.min(from, last));
    at("to").value = String(Math.min(to, last));
  };
  const show = () => elements.forEach((element) => charts.get(element)());
  const step = (direction) => {
    const numbers = current().rounds.number, [a, b] = range(current(), at);
    const count = Math.max(1, b - a);
    const from = Math.max(0, Math.min(numbers.length - count, a + direction * count));
    at("from").value = String(numbers[from]);
    at("to").value = String(numbers[from + count - 1]);
    show();
  };
  at("previous").addEventListener("click", () => step(-1));
  at("next").addEventListener("click", () => step(1));
  for (const name of ["from", "to", "clients"]) at(name).addEventListener("change", show);
  at("controls").addEventListener("submit", (event) => { event.preventDefault(); show(); });
  limit();
  elements.forEach((element, i) => watch(element, () => {
    const run = drawn()[i], view = selected(run, at);
    const bands = isBands(view);
    const others = runs.length > 1 ? runs.map((other) => selected(other, at)) : [view];
    const longest = Math.max(...others.map((other) => other.end - other.start)); // one scale for all runs
    const [scale, unit] = timeUnit(longest);
    view.scale = scale;
    const figure = (bands ? bandTraces : barTraces)(run, view, spec);
    const [data, layout] = [figure.data, figure.layout];
    addPanels(run, view, spec, data, layout);
    addRounds(run, view, layout);
    layout.xaxis = {
      title: { text: `${view.start > 0 ? `time since round ${view.first} began at ${duration(view.start)}` : `${run.seconds} time`} (${unit})` },
      range: [0, longest / scale], anchor: "free", position: 0,
    };
    at("status").textContent = drawn().map((one) => {
      const its = one === run ? view : selected(one, at);
      return (together ? `${decoded(one.label)}: ` : "") + words(one, its, isBands(its));
    }).join(" ");
    tables(drawn(), at, spec);
    return draw(element, data, { ...layout, uirevision: `${run.label} ${view.first} ${view.last} ${bands}`, margin: { l: 60, r: 16, t: 70, b: 52 } });
  }));
}

const isBands = (view) => view.parts.length * 5 > MOST_BARS || view.rows.length > MOST_ROWS;

// positions [a, b) of the rounds asked for
function range(run, at) {
  const numbers = run.rounds.number;
  const from = Number(at("from").value) || numbers[0], to = Math.max(from, Number(at("to").value) || from);
  let a = numbers.findIndex((n) => n >= from);
  if (a < 0) a = numbers.length - 1;
  let b = numbers.findIndex((n) => n > to);
  if (b < 0) b = numbers.length;
  return [a, Math.max(a + 1, b)];
}

function wanted(run, text) {
  const ids = Array.from(run.clients.id), named = run.prototypes.map(decoded);
  const found = new Set();
  for (const part of text.split(",").map((p) => p.trim()).filter(Boolean)) {
    const match = /^(\d+)(?:\s*-\s*(\d+))?$/.exec(part);
    ids.forEach((id, row) => {
      const inside = match ? id >= Number(match[1]) && id <= Number(match[2] ?? match[1])
        : named[run.clients.prototype[row]] === part;
      if (inside) found.add(row);
    });
  }
  return found;
}

function selected(run, at) {
  const [a, b] = range(run, at), { rounds, parts } = run;
  const filter = wanted(run, at("clients").value);
  const all = filter.size === 0;
  const present = new Set();
  for (let p = 0; p < parts.row.length; p++) {
    if (parts.round[p] >= a && parts.round[p] < b) present.add(parts.row[p]);
  }
  const rows = Array.from(run.clients.id.keys()).filter((row) => (all ? present.has(row) : filter.has(row)));
  const place = new Map();
  let y = 0;
  rows.forEach((row, i) => {
    if (i && run.clients.prototype[row] !== run.clients.prototype[rows[i - 1]]) y += 0.6;
    place.set(row, y++);
  });
  const start = rounds.start[a];
  let end = start;
  for (let r = a; r < b; r++) end = Math.max(end, rounds.start[r] + rounds.length[r]);
  const kept = [];
  for (let p = 0; p < parts.row.length; p++) {
    if (parts.round[p] >= a && parts.round[p] < b && place.has(parts.row[p])) kept.push(p);
  }
  return {
    a, b, rows, place, start, end, parts: kept, height: y, first: rounds.number[a], last: rounds.number[b - 1],
    unknown: all && at("clients").value.trim() !== "",
  };
}

// kinds of a method's own, which stand after the record's
const work = (spec) => spec.kinds.flatMap((_, kind) => (kind >= 8 ? [kind] : []));

const instant = (run, view, round, offset) => (run.rounds.start[round] - view.start + offset) / view.scale;

function facts(run, spec, p, kind, length) {
  const { parts, clients } = run, row = parts.row[p], arm = run.arms[parts.arm[p]].name;
  const lines = [
    `<b>${spec.kinds[kind].label} ${duration(length)}</b>`,
    `client ${clients.id[row]} (${run.prototypes[clients.prototype[row]]}), round ${run.rounds.number[parts.round[p]]}`,
  ];
  const name = spec.kinds[kind].name;
  if (name === "download") lines.push(decimal(parts.down[p], "B"));
  if (name === "upload") lines.push(`${decimal(parts.up[p], "B")}, ${spec.outcomes[parts.outcome[p]]}`);
  if (name === "compression" || name === "upload") lines.push(`${arm} (${spec.choices[parts.choice[p]]})`);
  if (!Number.isNaN(parts.reward[p])) lines.push(`reward ${digits(parts.reward[p])}`);
  return lines.join("<br>");
}

function barTraces(run, view, spec) {
  const { bars, parts } = run, chosen = new Set(view.parts);
  const empty = () => ({ x: [], base: [], y: [], text: [] });
  const of = spec.kinds.map(empty), lost = spec.kinds.map(empty);
  const marks = run.arms.map(() => ({ x: [], y: [] })), latency = { x: [], base: [], y: [] };
  let marked = 0;
  for (let i = 0; i < bars.part.length; i++) {
    const p = bars.part[i];
    if (!chosen.has(p)) continue;
    const kind = bars.kind[i], name = spec.kinds[kind].name, y = view.place.get(parts.row[p]);
    const gone = /dropped|failed/.test(spec.outcomes[parts.outcome[p]]) && name !== "waiting" && name !== "offline";
    const begin = instant(run, view, parts.round[p], bars.start[i]), wide = bars.length[i] / view.scale;
    if (bars.latency[i] > 0) {
      latency.base.push(begin);
      latency.x.push(bars.latency[i] / view.scale);
      latency.y.push(y);
    }
    const target = (gone ? lost : of)[kind];
    target.base.push(begin);
    target.x.push(wide);
    target.y.push(y);
    target.text.push(facts(run, spec, p, kind, bars.length[i]));
    if (name === "compression") {
      marks[parts.arm[p]].x.push(begin + wide / 2);
      marks[parts.arm[p]].y.push(y);
      marked += 1;
    }
  }
  const data = [];
  const bar = (found, look, more) => {
    if (found.x.length) {
      data.push({
        type: "bar", orientation: "h", name: look.label, ...found, hovertext: found.text, text: undefined, hoverinfo: "text",
        width: look.name === "waiting" ? 0.34 : 0.84, textposition: "none", ...more,
      });
    }
  };
  spec.kinds.forEach((look, kind) => bar(of[kind], look, { marker: { color: look.colour, pattern: { shape: look.pattern } } }));
  const dropped = spec.kinds.find((look) => look.name === "dropped");
  let legend = true;
  spec.kinds.forEach((look, kind) => {
    bar(lost[kind], look, {
      name: dropped.label, legendgroup: "dropped", showlegend: legend,
      marker: { color: dropped.colour, pattern: { shape: dropped.pattern, fillmode: "replace", bgcolor: look.colour, solidity: 0.35 } },
    });
    if (lost[kind].x.length) legend = false;
  });
  if (latency.x.length) {
    const same = { type: "bar", orientation: "h", name: "latency (paler)", hoverinfo: "skip", legendgroup: "latency" };
    data.push({ ...same, ...latency, width: 0.84, marker: { color: "rgba(255,255,255,0.62)" }, showlegend: false });
    data.push({ ...same, x: [null], y: [null], marker: { color: "#BEE1F4" } }); // as it looks on a download
  }
  addServer(run, view, spec, data);
  run.arms.forEach((arm, i) => {
    if (marked > MOST_MARKS || !marks[i].x.length) return;
    data.push({
      type: "scatter", mode: "markers", ...marks[i], name: arm.name, hoverinfo: "skip",
      marker: { size: Math.min(9, rowPixels(view) * 0.6), symbol: arm.symbol, color: arm.fill, line: { width: 1, color: "#000000" } },
    });
  });
  const outline = outlines(run, view);
  if (outline.x.length) data.push(outline);
  return { data, layout: rowsLayout(run, view) };
}

function addServer(run, view, spec, data) {
  const found = { x: [], base: [], y: [], hovertext: [] }, { server } = run;
  for (let i = 0; i < server.round.length; i++) {
    const round = server.round[i];
    if (round < view.a || round >= view.b) continue;
    found.base.push(instant(run, view, round, server.start[i]));
    found.x.push(server.length[i] / view.scale);
    found.y.push(view.height + 0.6);
    found.hovertext.push(`<b>${server.names[server.name[i]]} ${duration(server.length[i])}</b><br>server, round ${run.rounds.number[round]}`);
  }
  const look = spec.kinds.find((kind) => kind.name === "server");
  view.server = found.x.length > 0;
  if (view.server) {
    data.push({ type: "bar", orientation: "h", name: look.label, ...found, hoverinfo: "text", width: 0.84, marker: { color: look.colour } });
  }
}

// around the path that set each round's length, up to the last upload it waited for
function outlines(run, view) {
  const x = [], y = [], { parts, bars, rounds } = run;
  const until = new Map();
  for (let i = 0; i < bars.part.length; i++) {
    const p = bars.part[i], round = parts.round[p];
    if (round < view.a || round >= view.b || rounds.critical[round] !== parts.row[p] || bars.kind[i] === WAITING) continue;
    until.set(round, Math.max(until.get(round) ?? 0, bars.start[i] + bars.length[i]));
  }
  for (const [round, length] of until) {
    const row = view.place.get(rounds.critical[round]);
    if (row === undefined) continue;
    const left = instant(run, view, round, 0), right = instant(run, view, round, length);
    x.push(left, right, right, left, left, null);
    y.push(row - 0.45, row - 0.45, row + 0.45, row + 0.45, row - 0.45, null);
  }
  return {
    type: "scatter", mode: "lines", x, y, hoverinfo: "skip", name: "sets the round's length",
    line: { color: css("--ink"), width: 2 },
  };
}

const rowPixels = (view) => Math.max(8, Math.min(24, 1100 / view.rows.length));

function rowsLayout(run, view) {
  const bottom = view.height + (view.server ? 1.2 : 0.2);
  const pixels = rowPixels(view);
  const every = [1, 2, 5, 10, 20, 50].find((n) => n * pixels >= 13) ?? 100;
  const tickvals = [], ticktext = [];
  let within = 0;
  view.rows.forEach((row, i) => {
    const changed = i === 0 || run.clients.prototype[row] !== run.clients.prototype[view.rows[i - 1]];
    within = changed ? 0 : within + 1;
    if (within % every) return;
    tickvals.push(view.place.get(row));
    ticktext.push(changed ? `${run.prototypes[run.clients.prototype[row]]} · ${run.clients.id[row]}` : String(run.clients.id[row]));
  });
  if (view.server) {
    tickvals.push(view.height + 0.6);
    ticktext.push("server");
  }
  return {
    barmode: "overlay", bargap: 0, rows: pixels * bottom,
    yaxis: { range: [bottom, -0.8], tickvals, ticktext, showgrid: false, zeroline: false, fixedrange: false },
  };
}

// at each instant the shares of each prototype's clients in each phase
function bandTraces(run, view, spec) {
  const order = [WAITING, 3, 5, 2, ...work(spec).reverse(), 1, 0], { bars, parts } = run, chosen = new Set(view.parts);
  const used = [...new Set(view.rows.map((row) => run.clients.prototype[row]))];
  const step = (view.end - view.start) / view.scale / BAND_POINTS;
  const x = Array.from({ length: BAND_POINTS + 1 }, (_, i) => i * step);
  const counts = new Map(used.map((p) => [p, spec.kinds.map(() => new Float64Array(BAND_POINTS + 2))]));
  for (let i = 0; i < bars.part.length; i++) {
    const p = bars.part[i];
    if (!chosen.has(p)) continue;
    const begin = instant(run, view, parts.round[p], bars.start[i]);
    const of = counts.get(run.clients.prototype[parts.row[p]])[bars.kind[i]];
    of[Math.ceil(begin / step - 1e-9)] += 1;
    of[Math.min(BAND_POINTS + 1, Math.ceil((begin + bars.length[i] / view.scale) / step - 1e-9))] -= 1;
  }
  const data = [], layout = { rows: 170 * used.length, bands: used.length };
  used.forEach((prototype, n) => {
    const size = view.rows.filter((row) => run.clients.prototype[row] === prototype).length;
    const axis = n ? `y${n + 1}` : "y";
    for (const kind of order) {
      let sum = 0;
      const y = x.map((_, i) => (100 * (sum += counts.get(prototype)[kind][i])) / size);
      if (!y.some((value) => value > 0)) continue;
      const look = spec.kinds[kind];
      data.push({
        type: "scatter", mode: "lines", x, y, stackgroup: `s${n}`, yaxis: axis, name: look.label, legendgroup: look.name, showlegend: n === 0,
        line: { width: 0, color: look.colour }, fillcolor: look.colour, hovertemplate: `${run.prototypes[prototype]}: %{y:.0f} % in ${look.label}<extra></extra>`,
      });
    }
    layout[n ? `yaxis${n + 1}` : "yaxis"] = { range: [0, 100], title: { text: `${run.prototypes[prototype]} (%)` }, tickvals: [5, 50, 95] };
  });
  return { data, layout };
}

// a row for each edge server; null where there are none in these rounds
function edgeRows(run, view, spec) {
  const { edges } = run, of = spec.kinds.map(() => ({ x: [], base: [], y: [], hovertext: [] }));
  for (let i = 0; i < edges.node.length; i++) {
    const round = edges.round[i], kind = edges.kind[i];
    if (round < view.a || round >= view.b) continue;
    of[kind].base.push(instant(run, view, round, edges.start[i]));
    of[kind].x.push(edges.length[i] / view.scale);
    of[kind].y.push(edges.node[i]);
    of[kind].hovertext.push(`<b>${edges.words[edges.word[i]]} ${duration(edges.length[i])}</b><br>${edges.names[edges.node[i]]}, round ${run.rounds.number[round]}`);
  }
  return of.some((found) => found.x.length) ? of : null;
}

// below the rows or bands, each on an axis of its own: edge servers, and the rate and capacity of links
function addPanels(run, view, spec, data, layout) {
  const bands = layout.bands ?? 1, gap = 26, tall = 84;
  const shown = run.links.filter((link) => isShown(link, run, view))
    .map((link) => ({ link, ...pieces(link, view) })).filter((found) => found.x.length);
  const rows = Math.max(120, layout.rows), edges = edgeRows(run, view, spec);
  const below = edges ? gap + run.edges.names.length * Math.max(8, Math.min(24, 600 / run.edges.names.length)) : 0;
  const inner = rows + below + shown.length * (tall + gap);
  layout.height = inner + 150;
  layout.legend = { orientation: "h", x: 0, xanchor: "left", y: 1 + 22 / inner, yanchor: "bottom" };
  for (let n = 0; n < bands; n++) {
    const top = (inner - (n * rows) / bands) / inner, bottom = (inner - ((n + 1) * rows) / bands + (bands > 1 ? 8 : 0)) / inner;
    Object.assign(layout[n ? `yaxis${n + 1}` : "yaxis"], { domain: [bottom, top] });
  }
  if (edges) {
    const explained = new Set(data.filter((trace) => trace.showlegend !== false).map((trace) => trace.name));
    const every = Math.ceil(run.edges.names.length / 40);
    edges.forEach((found, kind) => {
      const look = spec.kinds[kind];
      if (found.x.length) {
        data.push({
          type: "bar", orientation: "h", name: look.label, ...found, yaxis: `y${bands + 1}`, hoverinfo: "text", textposition: "none",
          width: look.name === "waiting" ? 0.34 : 0.84, showlegend: !explained.has(look.label), marker: { color: look.colour, pattern: { shape: look.pattern } },
        });
      }
    });
    Object.assign(layout, { barmode: "overlay", bargap: 0 });
    layout[`yaxis${bands + 1}`] = {
      domain: [(inner - rows - below) / inner, (inner - rows - gap) / inner], range: [run.edges.names.length - 0.4, -0.6], showgrid: false, zeroline: false,
      tickvals: run.edges.names.map((_, n) => n).filter((n) => n % every === 0), ticktext: run.edges.names.filter((_, n) => n % every === 0),
    };
  }
  const first = bands + (edges ? 2 : 1);
  shown.forEach(({ link, x, rate, capacity }, i) => {
    const number = first + i, most = Math.max(1, ...capacity.filter(Number.isFinite), ...rate, ...(steps(link, view)?.y ?? []).filter(Number.isFinite));
    const [scale, unit] = [[1e9, "Gbps"], [1e6, "Mbps"], [1e3, "kbps"], [1, "bps"]].find(([s]) => most >= s) ?? [1, "bps"];
    const top = (inner - rows - below - gap - i * (tall + gap)) / inner;
    layout[`yaxis${number}`] = { domain: [top - tall / inner, top], range: [0, (1.1 * most) / scale], nticks: 3, title: { text: unit } };
    const base = { type: "scatter", mode: "lines", x, yaxis: `y${number}`, showlegend: false };
    data.push({
      ...base, y: rate.map((v) => v / scale), fill: "tozeroy", fillcolor: "rgba(96,133,173,0.55)", name: link.name,
      line: { shape: "hv", width: 1, color: "#6085AD" }, hovertemplate: `${link.name}: %{y:.3g} ${unit}<extra></extra>`,
    });
    const known = steps(link, view);
    data.push({
      ...base, x: known ? known.x : x, y: (known ? known.y : capacity).map((v) => v / scale), name: "link capacity", showlegend: i === 0,
      line: { shape: "hv", width: 1.4, dash: "dash", color: css("--ink") }, hovertemplate: `${link.name}: capacity %{y:.3g} ${unit}<extra></extra>`,
    });
    (layout.annotations ??= []).push({
      text: link.name, xref: "paper", yref: "paper", x: 0, y: top, xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 12 },
    });
  });
}

// a client's own link goes with its row
function isShown(link, run, view) {
  const match = /^client-(\d+)\/(up|down)$/.exec(decoded(link.name));
  return !match || view.rows.some((row) => run.clients.id[row] === Number(match[1]));
}

// the capacity as it steps, also while the link is idle
function steps(link, view) {
  const { stepAt, stepBitsPerS } = link;
  if (!stepAt.length) return null;
  const x = [], y = [];
  for (let i = 0; i < stepAt.length; i++) {
    const after = i + 1 < stepAt.length ? stepAt[i + 1] : stepAt[i], before = i ? stepAt[i - 1] : stepAt[i];
    if (after < view.start || before > view.end) continue;
    x.push(Number.isNaN(stepAt[i]) ? null : (Math.min(view.end, Math.max(view.start, stepAt[i])) - view.start) / view.scale);
    y.push(Number.isNaN(stepAt[i]) ? null : stepBitsPerS[i]);
  }
  return x.length > 8 * MOST_PIECES ? null : { x, y };
}

function pieces(link, view) {
  const shown = Array.from(link.from.keys()).filter((i) => link.to[i] > view.start && link.from[i] < view.end);
  if (shown.length > MOST_PIECES) return slices(link, view, shown);
  const x = [], rate = [], capacity = [];
  shown.forEach((i, n) => {
    x.push((link.from[i] - view.start) / view.scale);
    rate.push(link.bitsPerS[i]);
    capacity.push(link.capacityBitsPerS[i]);
    if (n + 1 === shown.length || link.from[shown[n + 1]] > link.to[i]) {
      x.push((link.to[i] - view.start) / view.scale);
      rate.push(0);
      capacity.push(link.capacityBitsPerS[i]);
    }
  });
  return { x, rate, capacity };
}

// more pieces than anybody can tell apart: the mean of equal slices, bits conserved
function slices(link, view, shown) {
  const step = (view.end - view.start) / BAND_POINTS, bits = new Float64Array(BAND_POINTS + 1);
  const capacity = new Array(BAND_POINTS + 1).fill(link.capacityBitsPerS[shown[0]]);
  for (const i of shown) {
    const from = Math.max(0, link.from[i] - view.start), to = Math.min(view.end - view.start, link.to[i] - view.start);
    for (let n = Math.floor(from / step); n < BAND_POINTS && n * step < to; n++) {
      bits[n] += link.bitsPerS[i] * Math.max(0, Math.min(to, (n + 1) * step) - Math.max(from, n * step));
      capacity[n] = link.capacityBitsPerS[i];
    }
  }
  view.sliced = true;
  return { x: capacity.map((_, n) => (n * step) / view.scale), rate: Array.from(bits, (b) => b / step), capacity };
}

function addRounds(run, view, layout) {
  const count = view.b - view.a;
  layout.shapes = [];
  layout.annotations ??= [];
  const every = Math.ceil(count / 24);
  for (let r = view.a; r < view.b; r++) {
    const left = instant(run, view, r, 0), right = instant(run, view, r, run.rounds.length[r]);
    if (count <= 120) {
      layout.shapes.push({ type: "line", xref: "x", yref: "paper", x0: right, x1: right, y0: 0, y1: 1, line: { width: 1, color: css("--line") } });
    }
    if ((r - view.a) % every) continue;
    const text = count === 1 && document.documentElement.clientWidth > 700 ? run.rounds.words[r] : count <= 8 ? `round ${run.rounds.number[r]}` : String(run.rounds.number[r]);
    layout.annotations.push({ text, xref: "x", yref: "paper", x: (left + right) / 2, y: 1, yanchor: "bottom", showarrow: false, font: { size: 12 } });
  }
}

function words(run, view, bands) {
  const known = run.rounds.number.length, clients = view.rows.length;
  const said = [`${view.first === view.last ? `Round ${view.first}` : `Rounds ${view.first} to ${view.last}`} of ${run.allRounds.toLocaleString("en")}, ${clients.toLocaleString("en")} ${clients === 1 ? "client" : "clients"}.`];
  if (view.unknown) said.push("No such client: all are shown.");
  if (bands) said.push("Too many bars to draw: the bands show, at each instant, the share of a prototype's clients in each phase. Fewer rounds or clients bring the bars back.");
  if (known < run.allRounds) said.push(`The page holds a sample of ${known.toLocaleString("en")} of ${run.allRounds.toLocaleString("en")} rounds: the longest, and others evenly between.`);
  if (run.clients.id.length < run.allClients) {
    said.push(`The page holds a sample of ${run.clients.id.length.toLocaleString("en")} of ${run.allClients.toLocaleString("en")} clients, evenly spaced, and those that held a round up.`);
  }
  if (run.edges.names.length < run.edges.count) said.push(`Of ${run.edges.count} edge servers the first ${run.edges.names.length}.`);
  if (view.sliced || run.links.some((link) => link.sliced)) said.push("Link use is averaged over slices of time.");
  const shown = Array.from({ length: view.b - view.a }, (_, i) => view.a + i);
  const because = (r) => `${decoded(run.rounds.words[r])}, ${duration(run.rounds.length[r])}`;
  const longest = [...shown].sort((p, q) => run.rounds.length[q] - run.rounds.length[p])[0];
  said.push(shown.length > SAID_ROUNDS ? `The longest of them: ${because(longest)}.` : `Waited for: ${shown.map(because).join("; ")}.`);
  return said.join(" ");
}

function tables(runs, at, spec) {
  byId("timeline-details").ontoggle = () => tables(runs, at, spec);
  if (byId("timeline-details").open) at("table").replaceChildren(...runs.map((run) => table(run, selected(run, at), spec, runs.length > 1)));
}

function table(run, view, spec, isNamed) {
  const { parts, bars } = run, shown = view.parts.slice(0, TABLE_ROWS), rank = new Map(shown.map((p, i) => [p, i]));
  const columns = [0, 1, ...work(spec), 2, 3, 4, 5];
  const seconds = shown.map(() => new Float64Array(spec.kinds.length));
  for (let i = 0; i < bars.part.length; i++) {
    if (rank.has(bars.part[i])) seconds[rank.get(bars.part[i])][bars.kind[i]] += bars.length[i];
  }
  const made = document.createElement("table"), head = made.createTHead().insertRow();
  const which = shown.length < view.parts.length ? `The first ${TABLE_ROWS} of ${view.parts.length} participations` : "Participations";
  made.createCaption().textContent = isNamed ? `${which} of ${decoded(run.label)}` : which;
  for (const name of ["round", "client", "prototype", "strategy", "outcome", ...columns.map((kind) => decoded(spec.kinds[kind].label)), "reward"]) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = name;
    head.append(cell);
  }
  const body = made.createTBody();
  shown.forEach((p, i) => {
    const line = body.insertRow(), row = parts.row[p];
    const cells = [run.rounds.number[parts.round[p]], run.clients.id[row], decoded(run.prototypes[run.clients.prototype[row]]),
      decoded(run.arms[parts.arm[p]].name), spec.outcomes[parts.outcome[p]], ...columns.map((kind) => (seconds[i][kind] ? duration(seconds[i][kind]) : "")),
      Number.isNaN(parts.reward[p]) ? "" : digits(parts.reward[p])];
    cells.forEach((text) => { line.insertCell().textContent = text; });
  });
  return made;
}
