// The page: what it carries, numbers for people, colours, and charts that Python has drawn.
// page.js and gantt.js stand in one function of the page, in this order.

const CONFIG = {
  responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  toImageButtonOptions: { format: "svg" },
};
const PAPER_WIDTH = 680; // pixels between the margins of A4 and of US Letter
const byId = (id) => document.getElementById(id);
const charts = new Map(); // element → function that draws it anew
let printing = false, runs = [], run = 0; // labels of runs, and which one the page's switch shows

function element(tag, more = {}, ...inner) {
  const made = Object.assign(document.createElement(tag), more);
  made.append(...inner);
  return made;
}

async function inflated(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// ---- numbers for people, as the rest of simfed writes them

const digits = (x) => String(Number(x.toPrecision(3)));

function duration(s) {
  const size = Math.abs(s), whole = Math.round(size), minutes = Math.round(size / 60);
  if (size === 0) return "0 s";
  if (size >= 3599.5) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  if (size >= 59.95) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const [scale, unit] = [[1e-9, "ns"], [1e-6, "µs"], [1e-3, "ms"], [1, "s"]].find(([step]) => size < step * 999.5);
  return `${digits(s / scale)} ${unit}`;
}

function decimal(value, unit) {
  const [scale, prefix] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([step]) => Math.abs(value) >= step * 0.9995) ?? [1, ""];
  return `${digits(value / scale)} ${prefix}${unit}`;
}

const timeUnit = (s) => [[1e-3, 1e-6, "µs"], [0.8, 1e-3, "ms"], [300, 1, "s"], [10800, 60, "min"], [Infinity, 3600, "h"]].find(([below]) => s < below).slice(1);

// ---- light and dark

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isDark = () => css("color-scheme") === "dark";

function template() {
  const ink = css("--ink"), line = css("--line"), grid = css("--grid");
  const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: line, tickcolor: line, automargin: true, hoverformat: ".6~g" };
  return { layout: {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
    font: { family: css("--font"), size: 13, color: ink }, xaxis: axis, yaxis: axis,
    hoverlabel: { bgcolor: css("--panel"), bordercolor: line, font: { color: ink, size: 13 }, align: "left" },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, xanchor: "left" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--faint"), activecolor: css("--accent") },
  } };
}

// dark lines and marks are hard to see on dark ground
function lighter(colour) {
  if (colour === "#000000") return css("--ink");
  if (!isDark() || !/^#[0-9a-f]{6}$/i.test(colour)) return colour;
  const parts = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  const bright = (0.3 * parts[0] + 0.59 * parts[1] + 0.11 * parts[2]) / 255, share = Math.max(0, (0.5 - bright) / (1 - bright));
  return `#${parts.map((p) => Math.round(p + (255 - p) * share).toString(16).padStart(2, "0")).join("")}`;
}

function recoloured(trace) {
  const made = { ...trace };
  for (const part of trace.type === "scatter" ? ["line", "marker"] : []) {
    if (made[part]?.color) made[part] = { ...made[part], color: lighter(made[part].color) };
  }
  return made;
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  const button = byId("theme");
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
  button.setAttribute("aria-pressed", String(isDark()));
}

// ---- charts

function draw(chart, { data, layout }) {
  chart.dataset.drawn = "yes";
  chart.classList.remove("waiting");
  // in a narrow page the legend's entries stand below one another, and the chart keeps its height
  const names = data.filter((trace) => trace.name !== undefined && trace.showlegend !== false).length;
  const more = chart.clientWidth < 560 && !printing && !layout.legend?.fixed ? 20 * Math.max(0, names - 2) : 0;
  const drawing = Plotly.react(chart, data.map(recoloured), {
    ...layout, template: template(), height: (layout.height ?? 380) + more,
    margin: { l: 60, r: 16, t: 12, b: 48, ...layout.margin }, ...(printing ? { width: PAPER_WIDTH } : {}),
  }, CONFIG);
  // loose numbers and names tell a listener nothing: the tables say them in order
  for (const svg of chart.querySelectorAll(".main-svg")) svg.setAttribute("aria-hidden", "true");
  return drawing;
}

// a figure for each combination of what can be chosen; among runs the page's one switch chooses
function chooser(chart, { by, figures }) {
  const box = document.querySelector(`[data-controls="${chart.dataset.panel}"]`);
  const lists = by.map((name, i) => {
    const list = element("select", { onchange: () => charts.get(chart)() });
    [...new Set(figures.map(([key]) => key[i]))].forEach((label) => list.add(new Option(label)));
    if (name !== "run" && list.options.length > 1) box.append(element("label", {}, `${name} `, list));
    return list;
  });
  const wanted = (i) => (by[i] === "run" && runs.length > 1 ? runs[run] : lists[i].value);
  return () => {
    const of = figures.filter(([key]) => by.every((name, i) => name !== "run" || key[i] === wanted(i)));
    const found = of.find(([key]) => key.every((part, i) => part === wanted(i))) ?? of[0];
    const nothing = { annotations: [{ text: "Nothing of this run.", showarrow: false }], height: 160, xaxis: { visible: false }, yaxis: { visible: false } };
    return draw(chart, found ? structuredClone(found[1]) : { data: [], layout: nothing });
  };
}

// charts draw themselves when they come near
function watch(chart, drawing) {
  charts.set(chart, drawing);
  chart.classList.add("waiting");
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    if (!chart.dataset.drawn) drawing();
  }, { rootMargin: "500px" });
  observer.observe(chart);
}

const redraw = () => charts.forEach((drawing, chart) => chart.dataset.drawn && drawing());

// colours, printing, and a word where something goes wrong
async function begin(main) {
  let kept = null, before = null;
  try { kept = localStorage.getItem("simfed-theme"); } catch { /* no storage for local files: fine */ }
  setTheme(kept);
  byId("theme").addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    try { localStorage.setItem("simfed-theme", next); } catch { /* as above */ }
    setTheme(next);
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { setTheme(null); redraw(); });
  addEventListener("beforeprint", () => {
    printing = true;
    before = document.documentElement.dataset.theme ?? "";
    document.documentElement.dataset.theme = "light";
    charts.forEach((drawing) => drawing());
  });
  addEventListener("afterprint", () => {
    printing = false;
    if (before) document.documentElement.dataset.theme = before;
    else delete document.documentElement.dataset.theme;
    redraw();
  });
  try {
    await main();
    document.documentElement.dataset.ready = String(Math.round(performance.now())); // ms after the start
  } catch (error) {
    byId("failure").hidden = false;
    byId("failure").textContent = `The charts could not be drawn (${error.message}); every table below holds their numbers.`;
    console.error(error);
  }
}

async function start() {
  const payload = JSON.parse(await inflated("payload"));
  document.head.append(element("script", { textContent: await inflated("library") }));
  runs = payload.runs;
  byId("run")?.addEventListener("change", () => { run = Number(byId("run").value); redraw(); });
  for (const chart of document.querySelectorAll("[data-panel]")) watch(chart, chooser(chart, payload.panels[chart.dataset.panel]));
  if (payload.timeline) gantt(payload.timeline);
}
