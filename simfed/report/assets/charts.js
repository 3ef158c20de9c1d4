// The page's charts: reading the data inside the page, light and dark, what Python has specified.
// charts.js, timeline.js and start.js stand in one function of the page, in this order.

const CONFIG = {
  responsive: true, displaylogo: false,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  toImageButtonOptions: { format: "svg" },
};
const ARRAYS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u4: Uint32Array, u2: Uint16Array, u1: Uint8Array };
const byId = (id) => document.getElementById(id);
const PAPER_WIDTH = 680; // pixels between the margins of A4 and of US Letter
const charts = new Map(); // element → function that draws it anew
let printing = false;
const shownRun = { index: 0, label: null }; // what the page's switch says
const EMPTY = { height: 160, xaxis: { visible: false }, yaxis: { visible: false } };

// ---- reading what is inside the page

function bytesOf(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function inflated(id) {
  const stream = new Blob([bytesOf(byId(id).textContent)]).stream();
  return new Response(stream.pipeThrough(new DecompressionStream("gzip"))).text();
}

const unpacked = (column) => new ARRAYS[column.dtype](bytesOf(column.bdata).buffer);

function unpackedAll(value) {
  if (Array.isArray(value)) return value.map(unpackedAll);
  if (value === null || typeof value !== "object") return value;
  if (typeof value.bdata === "string") return unpacked(value);
  return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, unpackedAll(v)]));
}

// ---- numbers for people, as the rest of simfed writes them

const digits = (x) => String(Number(x.toPrecision(3)));

function duration(s) {
  const size = Math.abs(s);
  if (size === 0) return "0 s";
  for (const [scale, unit] of [[1e-6, "ns"], [1e-3, "µs"], [1, "ms"]]) {
    if (size < scale * 0.9995) return `${digits(s / (scale * 1e-3))} ${unit}`;
  }
  if (size < 59.95) return `${digits(s)} s`;
  const whole = Math.round(size);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(size / 60);
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function decimal(value, unit) {
  for (const [scale, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= scale * 0.9995) return `${digits(value / scale)} ${prefix}${unit}`;
  }
  return `${digits(value)} ${unit}`;
}

function timeUnit(s) {
  if (s < 1e-3) return [1e-6, "µs"];
  if (s < 0.8) return [1e-3, "ms"];
  if (s < 300) return [1, "s"];
  return s < 10800 ? [60, "min"] : [3600, "h"];
}

// ---- light and dark

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isDark = () => css("color-scheme") === "dark";
const inked = (colour) => (colour === "ink" ? css("--ink") : colour);

function themed(layout) {
  const ink = css("--ink"), grid = css("--grid"), line = css("--line");
  const made = {
    margin: { l: 60, r: 16, t: 12, b: 48 }, height: 380, hovermode: "closest",
    ...layout,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, xanchor: "left", ...layout.legend },
    ...(printing ? { width: PAPER_WIDTH } : {}),
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: css("--font"), size: 13, color: ink },
    hoverlabel: { bgcolor: css("--panel"), bordercolor: line, font: { color: ink, size: 13 }, align: "left" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--faint"), activecolor: css("--accent") },
  };
  for (const name of ["xaxis", "yaxis", ...Object.keys(made).filter((k) => /^[xy]axis\d+$/.test(k))]) {
    made[name] = {
      gridcolor: grid, zerolinecolor: grid, linecolor: line, tickcolor: line, automargin: true, ...made[name],
    };
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

const redraw = () => charts.forEach((draw, element) => element.dataset.drawn && draw());

// ---- charts that Python has specified

const draw = (element, data, layout) => {
  element.dataset.drawn = "yes";
  element.classList.remove("waiting");
  const drawing = Plotly.react(element, data.map(recoloured), themed(roomed(element, data, layout)), CONFIG);
  // loose numbers and names tell a listener nothing: the tables say them in order
  for (const svg of element.querySelectorAll(".main-svg")) svg.setAttribute("aria-hidden", "true");
  return drawing;
};

// on a narrow page the legend's entries stand below one another, and the chart keeps its height
function roomed(element, data, layout) {
  const names = data.filter((t) => t.name !== undefined && t.showlegend !== false).length;
  const inPage = layout.showlegend && !layout.legend && element.clientWidth < 560 && !printing;
  return inPage ? { ...layout, height: (layout.height ?? 380) + 20 * Math.max(0, names - 2) } : layout;
}

// dark lines and marks are hard to see on dark ground
function recoloured(trace) {
  if (!isDark() || trace.type !== "scatter") return trace;
  const made = { ...trace };
  for (const part of ["line", "marker", "error_y", "textfont"]) {
    if (made[part]?.color) made[part] = { ...made[part], color: lighter(made[part].color) };
  }
  return made;
}

function lighter(colour) {
  if (!/^#[0-9a-f]{6}$/i.test(colour)) return colour;
  const parts = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  const bright = (0.3 * parts[0] + 0.59 * parts[1] + 0.11 * parts[2]) / 255;
  const share = Math.max(0, (0.5 - bright) / (1 - bright));
  return "#" + parts.map((p) => Math.round(p + (255 - p) * share).toString(16).padStart(2, "0")).join("");
}

function select(box, label, options, changed) {
  const name = document.createElement("label"), list = document.createElement("select");
  name.append(`${label} `, list);
  options.forEach((text, i) => list.add(new Option(text, String(i))));
  list.addEventListener("change", changed);
  if (options.length > 1) box.append(name);
  return list;
}

const decoded = (text) => {
  const holder = document.createElement("textarea");
  holder.innerHTML = text; // Plotly's labels come escaped; a textarea runs nothing
  return holder.value;
};

function curves(element, box, spec) {
  const show = () => charts.get(element)();
  const y = select(box, "show", spec.y.map((axis) => axis.label), show);
  const x = select(box, "against", spec.x.map((axis) => axis.label), show);
  return () => {
    const across = spec.x[Number(x.value)], up = spec.y[Number(y.value)];
    const data = spec.series.flatMap((line) => traces(line, across, up, spec.band));
    const percent = up.key === "accuracy" ? { range: [0, 1], tickformat: ".0%" } : {};
    const lines = ["accuracy", "measure"].includes(up.key) ? spec.targets ?? [] : [];
    return draw(element, data, {
      shapes: lines.map((y) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { width: 1, dash: "dash", color: css("--faint") } })),
      xaxis: { title: { text: across.label }, rangemode: "tozero" },
      yaxis: { title: { text: up.label }, ...percent },
      showlegend: true,
      uirevision: `${across.key} ${up.key}`,
    });
  };
}

function traces(line, across, up, band) {
  const values = line.columns[up.key];
  const kept = Array.from(values.keys()).filter((i) => !Number.isNaN(values[i]));
  const pick = (column) => kept.map((i) => column[i]);
  const visible = line.hidden ? "legendonly" : true;
  const base = { type: "scatter", mode: kept.length < 25 ? "lines+markers" : "lines", x: pick(line.columns[across.key]), visible, legendgroup: line.label };
  const colour = inked(line.colour);
  const made = [];
  if (band) {
    const edge = { ...base, mode: "lines", line: { width: 0, color: colour }, hoverinfo: "skip", showlegend: false };
    made.push({ ...edge, y: pick(line.columns[band[0]]) });
    made.push({ ...edge, y: pick(line.columns[band[1]]), fill: "tonexty", fillcolor: `${colour}30` });
  }
  made.push({
    ...base, y: pick(values), name: line.label, line: { color: colour, dash: line.dash, width: line.width },
    marker: { size: 5, color: colour },
    hovertemplate: `${line.label}<br>${up.label}: %{y:.4g}<br>${across.label}: %{x:.4g}<extra></extra>`,
  });
  return made;
}

// options of the run that the page's switch shows, chosen among by their labels
function choices(element, box, spec) {
  const runs = new Set(spec.options.map((o) => o.run));
  const parts = [...new Set(spec.options.map((o) => (o.run === o.label ? "" : o.label)))];
  const list = select(box, spec.of, parts, () => charts.get(element)());
  return () => {
    const here = spec.options.filter((o) => runs.size < 2 || o.run === shownRun.label);
    const option = here.find((o) => o.run === o.label || o.label === parts[Number(list.value)]);
    if (!option) return draw(element, [], { ...EMPTY, annotations: [{ text: "Nothing of this run.", showarrow: false }] });
    return draw(element, option.data, structuredClone(option.layout));
  };
}
