// The page of `simfed explore`: a setting is asked for, and its answer drawn as its parts come.
// One question at a time: the newest setting is asked for once a first part is there.

const STEPS = 200, tab = crypto.randomUUID(), setting = new Map(), plotted = []; // key path → value as `--set` has it
let about, base = null, answer = null, seq = 0, waiting = 0, again = false;
const short = (x) => String(Number(x.toPrecision(4))), ratio = (a, b) => (b ? `${short(a / b)} × recorded` : "");
const post = (path, body) => fetch(path, { method: "POST", body: JSON.stringify(body) });

function makeKnob({ path, label, group, unit, value, low, high, whole, choices }) {
  const box = element("div", { className: "knob" }), id = `knob-${path}`, text = (v) => (unit ? `${short(v)}${unit === "×" ? "" : " "}${unit}` : v);
  const turn = (v) => {
    const isBase = choices.length ? v === value : short(v) === short(value);
    if (isBase) setting.delete(path);
    else setting.set(path, choices.length ? v : unit ? text(v) : Number(short(v)));
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
  const to = (v) => (whole ? v : (STEPS * Math.log(v / low)) / Math.log(high / low)), from = (p) => (whole ? p : low * (high / low) ** (p / STEPS));
  const slider = element("input", { type: "range", id, min: whole ? low : 0, max: whole ? high : STEPS, step: 1 });
  const field = element("input", { type: "number", step: "any", min: 0, ariaLabel: `${group}: ${label}${unit ? ` in ${unit}` : ""}` });
  const show = (v) => { slider.value = to(v); field.value = short(v); slider.setAttribute("aria-valuetext", String(text(v))); };
  slider.put = (v) => { show(v); turn(v); };
  slider.addEventListener("input", () => { const v = from(Number(slider.value)); field.value = short(v); slider.setAttribute("aria-valuetext", String(text(v))); turn(v); });
  field.addEventListener("change", () => slider.put(Number(field.value) || value));
  show(value);
  box.append(element("span", {}, field, " ", element("span", { className: "unit", textContent: unit })), slider);
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
  const reset = element("button", { type: "button", textContent: "As recorded", onclick: () => { setting.clear(); history.replaceState(null, "", "#"); makeKnobs(); ask(); } });
  byId("knobs").replaceChildren(...groups.values(), reset);
  for (const [path, value] of kept) {
    if (path === "question" && byId("question")) byId("question").value = value;
    else byId(`knob-${path}`)?.put(byId(`knob-${path}`).type === "range" ? parseFloat(value) : value);
  }
}

const anew = () => byId("question")?.value !== "recorded";
const asked = () => ({ tab, setting: Object.fromEntries(setting), anew: anew(), shown: [Number(at("from").value) || 1, Number(at("to").value) || 3] });

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
  if (part.done && !setting.size && anew()) base = answer;
  (window.answers ??= []).push({ seq: mine, done: part.done, end_s: part.ends_s.at(-1), unknown: part.unknown }); // for tests
  drawAnswer();
  if (part.done) takeAway();
}

async function takeAway() {
  const given = await (await post("take", asked())).json();
  byId("command").textContent = given.command ?? given.error;
  byId("save").file = given.scenario;
}

function drawAnswer() {
  const played = answer.ends_s.length, end = answer.ends_s.at(-1) ?? 0, was = base?.ends_s[played - 1];
  const [first, ...others] = answer.held_up, facts = [
    [played === about.rounds ? "simulated time" : `${played} of ${about.rounds} rounds`, duration(end), ratio(end, was)],
    ["waited for most", first ? `client ${first[0]}` : "nobody", first ? `${many(first[1], "round")}; ${others.map(([client, n]) => `client ${client}: ${n}`).join(", ")}` : ""],
    ["sent up", decimal(answer.bytes[0], "B"), base ? `recorded ${decimal(base.bytes[0], "B")}` : ""],
    ["sent down", decimal(answer.bytes[1], "B"), base ? `recorded ${decimal(base.bytes[1], "B")}` : ""],
  ];
  if (answer.joules !== null) facts.push(["energy of clients", decimal(answer.joules, "J"), base?.joules ? `recorded ${decimal(base.joules, "J")}` : ""]);
  document.querySelector(".facts").replaceChildren(...facts.map(([what, value, more]) => element("div", {}, element("dt", { textContent: what }), element("dd", {}, element("strong", { textContent: value }), element("span", { textContent: more })))));
  const ends = answer.done && played < about.rounds;
  byId("status").textContent = `${duration(end)}${was ? `, ${ratio(end, was)}` : ""}. ${answer.done && answer.seq === seq ? `Played in ${Math.round(answer.wall_ms)} ms.` : `${played} of ${about.rounds} rounds…`}`;
  byId("unknown").hidden = answer.unknown === null;
  if (answer.unknown !== null) {
    const stops = ends ? " What policies choose then depends on it, so nothing later is known." : " The clock goes on; what is learned is not known.";
    byId("why").textContent = `From round ${answer.unknown} on something else would be learned: ${answer.why ?? "…"}.${stops}`;
  }
  if (plotted.length) charts.get(plotted[0])();
  drawPhases();
  if (!answer.gantt) return;
  shownRuns.splice(0, 2, { ...answer.gantt, label: "as asked" }, { ...(base?.gantt ?? answer.gantt), label: baseName() });
  const drawn = [...document.querySelectorAll(".chart.timeline")];
  if (!charts.has(drawn[0])) gantt({ runs: shownRuns, first: asked().shown, asks: askBoth });
  for (const chart of drawn) {
    chart.zoom = null;
    if (chart.dataset.drawn) charts.get(chart)();
  }
}

const baseName = () => (about.recorded ? "as recorded" : "as written");
const shownRuns = [];

// other rounds: of what was recorded, too
async function askBoth() {
  const kept = [...setting];
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
  const { key, name } = about.measure, percent = about.learned && key === "accuracy" ? { range: [0, 1], tickformat: ".0%" } : {};
  return draw(chart, { data, layout: { showlegend: true, height: 340, margin: { t: 40 }, xaxis: { title: { text: `simulated time (${unit})` }, rangemode: "tozero" }, yaxis: { title: { text: about.learned ? `test ${name}` : "rounds done" }, ...percent } } });
}

function drawPhases() {
  const cell = (tag, textContent, more) => element(tag, { textContent, ...more }), n = { className: "n" };
  const rows = Object.entries(answer.phases_s).map(([kind, s]) => element("tr", {}, cell("th", kind, { scope: "row" }), cell("td", duration(s), n), cell("td", base ? duration(base.phases_s[kind] ?? 0) : "", n), cell("td", base?.phases_s[kind] ? `${short(s / base.phases_s[kind])} ×` : "", n)));
  const head = ["phase", "as asked", "as recorded", "change"].map((text, i) => cell("th", text, { scope: "col", className: i ? "n" : "" }));
  byId("phases-table").replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)));
}

async function followReal() {
  const state = await (await fetch("real")).json(), words = { running: `round ${state.round} of ${state.rounds}`, done: "It is known now.", failed: state.words };
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
  await ask(); // the recorded setting first
  history.replaceState(null, "", kept || "#");
  makeKnobs();
  byId("knobs").addEventListener("submit", (event) => event.preventDefault());
  if (kept.length > 1) ask();
  byId("copy").addEventListener("click", () => navigator.clipboard.writeText(byId("command").textContent));
  byId("link").addEventListener("click", () => navigator.clipboard.writeText(location.href));
  byId("save").addEventListener("click", () => {
    const href = URL.createObjectURL(new Blob([byId("save").file ?? ""]));
    element("a", { href, download: `${about.name}-what-if.yaml` }).click();
    URL.revokeObjectURL(href);
  });
  byId("real").addEventListener("click", async () => { await post("real", asked()); followReal(); });
}
