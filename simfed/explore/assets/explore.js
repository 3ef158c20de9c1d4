// The page of `simfed explore`: a setting is asked for, and its answer drawn as its parts come.
// One question at a time: the newest setting is asked for once a first part is there.

const STEPS = 200, POINTS = 7, tab = crypto.randomUUID(), plotted = [];
const setting = new Map(), studied = new Map(); // key path → value as `--set` has it; → what a study over it varies
let heard;
const first = new Promise((resolve) => { heard = resolve; }); // a part of an answer
let about, base = null, answer = null, seq = 0, waiting = 0, again = false, taken = 0;
const short = (x) => String(Number(x.toPrecision(4))), ratio = (a, b) => (b ? `${short(a / b)} × recorded` : "");
const post = (path, body) => fetch(path, { method: "POST", body: JSON.stringify(body) });

function makeKnob({ path, label, group, unit, value, low, high, whole, choices, known }) {
  const box = element("div", { className: "knob" }), id = `knob-${path}`;
  if (value === null) { // as long as the median round is
    const lengths = base.ends_s.map((end_s, i) => end_s - (base.ends_s[i - 1] ?? 0)).sort((a, b) => a - b);
    value = Number(short(1e3 * (lengths[lengths.length >> 1] ?? 1)));
    [low, high] = [value / 4, value * 4];
  }
  const text = (v) => (unit ? `${short(v)}${unit === "×" ? "" : " "}${unit}` : v), clean = (v) => (choices.length ? v : unit ? text(v) : Number(short(v)));
  const turn = (v) => {
    const isBase = clean(v) === clean(value);
    if (isBase) setting.delete(path);
    else setting.set(path, clean(v));
    box.classList.toggle("turned", !isBase);
    if (path === "aggregation.deadline" && !isBase) byId("knob-aggregation.mode").put("deadline");
    ask();
  };
  box.append(element("label", { htmlFor: id, textContent: label }));
  if (choices.length) {
    const list = element("select", { id, onchange: () => turn(list.value) });
    choices.forEach((choice) => list.add(new Option(choice)));
    list.put = (v) => { if (list.value !== v) { list.value = v; turn(v); } };
    list.value = value;
    box.append(list);
    return box;
  }
  const even = whole && high <= STEPS, rounded = (v) => (whole ? Math.round(v) : v);
  const to = (v) => (even ? v : (STEPS * Math.log(Math.max(v, low) / low)) / Math.log(high / low)), from = (p) => rounded(even ? p : low * (high / low) ** (p / STEPS));
  const slider = element("input", { type: "range", id, min: even ? low : 0, max: even ? high : STEPS, step: "any" });
  const field = element("input", { type: "number", step: "any", min: 0, ariaLabel: `${group}: ${label}${unit ? ` in ${unit}` : ""}` });
  const show = (v) => { slider.value = to(v); field.value = short(v); slider.setAttribute("aria-valuetext", String(text(v))); };
  slider.put = (v) => { show(v); turn(v); };
  slider.addEventListener("input", () => { const v = from(Number(slider.value)); field.value = short(v); slider.setAttribute("aria-valuetext", String(text(v))); turn(v); });
  field.addEventListener("change", () => slider.put(Number(field.value) || value));
  show(value);
  box.append(element("span", {}, field, " ", element("span", { className: "unit", textContent: unit })), slider);
  if (known.length > 1) {
    box.append(element("span", { className: "known" }, "recorded: ", ...known.map((v) => element("button", { type: "button", textContent: v, onclick: () => slider.put(v) }))));
  }
  studied.set(path, { name: `${group}: ${label}`, values: () => [...new Set(Array.from({ length: POINTS }, (_, i) => clean(from(even ? low + (i * (high - low)) / (POINTS - 1) : (i * STEPS) / (POINTS - 1)))))] });
  return box;
}

function makeKnobs() {
  const groups = new Map(), kept = [...new URLSearchParams(location.hash.slice(1))];
  for (const knob of about.knobs) {
    if (!groups.has(knob.group)) groups.set(knob.group, element("fieldset", {}, element("legend", { textContent: knob.group })));
    groups.get(knob.group).append(makeKnob(knob));
  }
  if (about.chooses) {
    const list = element("select", { id: "question", onchange: ask });
    list.add(new Option(`${about.chooses} chooses anew`, "anew"));
    list.add(new Option("the choices that were recorded", "recorded"));
    groups.set("question", element("fieldset", {}, element("legend", { textContent: "question" }), element("label", { htmlFor: "question", textContent: "strategies: " }), list));
  }
  const reset = element("button", { type: "button", textContent: `As ${about.recorded ? "recorded" : "written"}`, onclick: () => { setting.clear(); history.replaceState(null, "", "#"); makeKnobs(); ask(); } });
  byId("knobs").replaceChildren(...groups.values(), reset);
  byId("over").replaceChildren(...[...studied].map(([path, { name }]) => new Option(name, path)));
  for (const [path, value] of kept) {
    const knob = byId(path === "question" ? path : `knob-${path}`);
    if (path === "question" && knob) knob.value = value;
    else knob?.put(knob.type === "range" ? parseFloat(value) : value);
  }
}

const anew = () => byId("question")?.value !== "recorded";
const follows = () => about.open && byId("follow").checked && !setting.size; // what the run does next is told as it comes
const asked = () => ({ tab, setting: Object.fromEntries(setting), anew: anew(), follow: follows(), shown: [Number(at("from").value) || 1, Number(at("to").value) || 3] });

async function ask() {
  if (waiting) { again = true; return; }
  const mine = ++seq, next = () => { if (waiting === mine) { waiting = 0; if (again) { again = false; ask(); } } };
  const question = asked(), link = new URLSearchParams(Object.entries(question.setting));
  if (byId("question") && !anew()) link.set("question", "recorded");
  history.replaceState(null, "", `#${link}`);
  waiting = mine;
  setTimeout(next, 1000); // a lost answer must not hold the next one up
  byId("status").textContent = "…";
  try {
    const response = await post("ask", { ...question, seq: mine });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "", part; ({ value: part } = await reader.read()), part !== undefined;) {
      const lines = (rest + part).split("\n");
      rest = lines.pop();
      lines.filter(Boolean).map((line) => JSON.parse(line)).forEach((one) => take(one, mine));
      next();
    }
  } catch (error) {
    byId("status").textContent = `No answer: ${error.message}. Is simfed explore still running?`;
  }
  next();
}

function take(part, mine) {
  if (part.stale || mine < (answer?.seq ?? 0)) return; // an older answer never takes a newer one's place
  if (part.error) { byId("status").textContent = part.error; return; }
  answer = { ...part, gantt: part.gantt ?? (answer?.seq === mine ? answer.gantt : null), seq: mine };
  if ((part.done || about.open) && !setting.size && anew()) base = answer;
  (window.answers ??= []).push({ seq: mine, done: part.done, end_s: part.ends_s.at(-1), unknown: part.unknown }); // for tests
  drawAnswer();
  heard();
  if (part.done) takeAway();
}

async function takeAway() {
  const mine = ++taken, over = byId("over").value;
  const given = await (await post("take", { ...asked(), over, values: studied.get(over)?.values() })).json();
  if (mine === taken) byId("command").textContent = given.command ?? given.error;
  return given;
}

function save(text, name) {
  const href = URL.createObjectURL(new Blob([text ?? ""]));
  element("a", { href, download: `${about.name.replace(/[^\p{L}\p{N}.-]+/gu, "-")}-${name}` }).click();
  URL.revokeObjectURL(href);
}

// one picture of a chart, on the page's ground
function savePicture(format) {
  const chart = [...plotted, ...document.querySelectorAll(".chart.timeline")][byId("chart").selectedIndex], { data, layout } = chart;
  const figure = { data, layout: { ...layout, paper_bgcolor: css("--paper"), title: undefined }, config: CONFIG };
  return Plotly.downloadImage(figure, { format, width: chart.clientWidth, height: layout.height, scale: format === "png" ? 2 : 1, filename: `${about.name}-what-if` });
}

function drawAnswer() {
  const played = answer.ends_s.length, end = answer.ends_s.at(-1) ?? 0, was = base === answer ? 0 : base?.ends_s[played - 1];
  const [first, ...others] = answer.held_up, facts = [
    [played === about.rounds ? "simulated time" : `${played} of ${about.rounds} rounds`, duration(end), ratio(end, was)],
    ["waited for most", first ? `client ${first[0]}` : "nobody", first ? [many(first[1], "round"), ...others.map(([client, n]) => `client ${client}: ${n}`)].join(", ") : ""],
    ["sent up", decimal(answer.bytes[0], "B"), base ? `recorded ${decimal(base.bytes[0], "B")}` : ""],
    ["sent down", decimal(answer.bytes[1], "B"), base ? `recorded ${decimal(base.bytes[1], "B")}` : ""],
  ];
  if (answer.joules !== null) facts.push(["energy of clients", decimal(answer.joules, "J"), base?.joules ? `recorded ${decimal(base.joules, "J")}` : ""]);
  document.querySelector(".facts").replaceChildren(...facts.map(([what, value, more]) => element("div", {}, element("dt", { textContent: what }), element("dd", {}, element("strong", { textContent: value }), element("span", { textContent: more })))));
  const isLast = answer.done && answer.seq === seq, live = follows() && !answer.done;
  const said = isLast ? `Played in ${Math.round(answer.wall_ms)} ms.` : `${live ? "The run is at round " : ""}${played} of ${about.rounds}${live ? "." : " rounds…"}`;
  byId("status").textContent = `${duration(end)}${was ? `, ${ratio(end, was)}` : ""}. ${said}`;
  byId("unknown").hidden = answer.unknown === null;
  byId("real").hidden = about.open;
  if (answer.unknown !== null) {
    const stops = answer.done && played < about.rounds ? "What policies choose then depends on it, so nothing later is known." : "The clock goes on; what is learned is not known.";
    const because = answer.why === null ? `The run has learned up to round ${answer.unknown - 1}.` : `From round ${answer.unknown} on something else would be learned: ${answer.why}.`;
    byId("why").textContent = `${because} ${stops}`;
  }
  if (answer.done && follows()) { about.open = false; byId("following").hidden = true; } // the run is at its end
  if (plotted.length) charts.get(plotted[0])();
  drawPhases();
  const drawn = [...document.querySelectorAll(".chart.timeline")];
  drawn[1].hidden = drawn[1].previousElementSibling.hidden = live;
  if (!answer.gantt) return;
  shownRuns.splice(0, 2, { ...answer.gantt, label: "as asked" }, { ...(base?.gantt ?? answer.gantt), label: baseName() });
  if (!charts.has(drawn[0])) gantt({ runs: shownRuns, first: asked().shown, asks: askBoth });
  if (live) [at("from").value, at("to").value] = [answer.gantt.rounds.number[0], answer.gantt.rounds.number.at(-1)];
  for (const chart of drawn) {
    chart.zoom = null;
    if (chart.dataset.drawn && !chart.hidden) charts.get(chart)();
  }
}

const baseName = () => (about.recorded ? "as recorded" : "as written");
const shownRuns = [];

// other rounds: of what was recorded, too
async function askBoth() {
  const kept = [...setting];
  byId("follow").checked = false;
  setting.clear();
  await ask();
  kept.forEach(([path, value]) => setting.set(path, value));
  if (kept.length) ask();
}

function drawCurve() {
  const chart = plotted[0], colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"], data = [];
  const [scale, unit] = timeUnit(Math.max(answer.ends_s.at(-1) ?? 0, base?.ends_s.at(-1) ?? 0));
  const line = (points, ends_s, name, look, more = {}) => {
    const known = points.filter(([round]) => ends_s[round - 1] !== undefined);
    if (known.length) data.push({ type: "scatter", mode: known.length < 25 ? "lines+markers" : "lines", name: escaped(name), x: known.map(([round]) => ends_s[round - 1] / scale), y: known.map(([, value]) => value), line: look, marker: { color: look.color }, ...more });
  };
  const counts = ({ ends_s }) => ({ rounds: ends_s.map((_, i) => [i + 1, i + 1]) }), of = (one) => (about.learned ? one.curve : counts(one));
  Object.keys(of(base ?? answer)).forEach((name, i) => {
    const color = colours[i % colours.length];
    if (base && base !== answer) line(of(base)[name] ?? [], base.ends_s, `${name}, recorded`, { color, width: 1.5, dash: "dot" });
    line(of(answer)[name] ?? [], answer.ends_s, name, { color, width: 2.5 });
    if (answer.unknown !== null && base) line((base.curve[name] ?? []).filter(([round]) => round >= answer.unknown), answer.ends_s, `${name}, not known`, { color: "#999999", width: 1.5 }, { hoverinfo: "skip" });
  });
  const { name, share } = about.measure, percent = about.learned && share ? { range: [0, 1], tickformat: ".0%" } : {};
  return draw(chart, { data, layout: { showlegend: true, height: 300, margin: { t: 40 }, xaxis: { title: { text: `simulated time (${unit})` }, rangemode: "tozero" }, yaxis: { title: { text: about.learned ? `test ${name}` : "rounds done" }, ...percent } } });
}

function drawPhases() {
  const cell = (tag, textContent, more) => element(tag, { textContent, ...more }), n = { className: "n" };
  const rows = Object.entries(answer.phases_s).map(([kind, s]) => element("tr", {}, cell("th", kind, { scope: "row" }), cell("td", duration(s), n), cell("td", base ? duration(base.phases_s[kind] ?? 0) : "", n), cell("td", base?.phases_s[kind] ? `${short(s / base.phases_s[kind])} ×` : "", n)));
  const head = ["phase", "as asked", "as recorded", "change"].map((text, i) => cell("th", text, { scope: "col", className: i ? "n" : "" }));
  byId("phases-table").replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)));
}

async function followReal() {
  const state = await (await fetch("real")).json(), words = { done: "It is known now.", failed: state.words };
  words.running = state.again === null ? `round ${state.round} of ${state.rounds}` : `learning round ${state.again} of ${state.rounds}`;
  byId("progress").textContent = words[state.status] ?? "";
  byId("real").disabled = state.status === "running";
  if (state.status === "running") setTimeout(followReal, 300);
  else if (state.status === "done") ask();
}

async function explore() {
  about = await (await fetch("about")).json();
  at("from").value = 1;
  at("to").value = about.clients > 30 ? 1 : 3;
  const kept = location.hash, chart = document.querySelector("[data-panel=curve]");
  plotted.push(chart);
  charts.set(chart, drawCurve);
  await (about.open ? Promise.race([ask(), first]) : ask()); // the recorded setting first
  history.replaceState(null, "", kept || "#");
  makeKnobs();
  byId("following").hidden = !about.open;
  byId("knobs").addEventListener("submit", (event) => event.preventDefault());
  if (kept.length > 1) ask();
  byId("copy").addEventListener("click", () => navigator.clipboard.writeText(byId("command").textContent));
  byId("link").addEventListener("click", () => navigator.clipboard.writeText(location.href));
  byId("save").addEventListener("click", async () => { const { error, scenario } = await takeAway(); if (!error) save(scenario, "what-if.yaml"); });
  byId("study").addEventListener("click", async () => { const { error, study } = await takeAway(); if (!error) save(study, "study.yaml"); });
  for (const format of ["png", "svg"]) byId(format).addEventListener("click", () => savePicture(format));
  byId("follow").addEventListener("change", ask);
  byId("real").addEventListener("click", async () => { await post("real", asked()); followReal(); });
}
