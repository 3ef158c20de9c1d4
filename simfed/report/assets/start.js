// Starting: charts draw themselves when they come near; themes and printing draw them anew.

function watch(element, drawing) {
  charts.set(element, drawing);
  element.classList.add("waiting");
  const observer = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) {
      observer.disconnect();
      if (!element.dataset.drawn) drawing();
    }
  }, { rootMargin: "500px" });
  observer.observe(element);
}

async function start() {
  const payload = JSON.parse(await inflated("payload"));
  const library = document.createElement("script");
  library.textContent = await inflated("library");
  document.head.append(library);
  if (payload.runs.length > 1) {
    shownRun.label = payload.runs[0];
    byId("run").addEventListener("change", () => {
      shownRun.index = Number(byId("run").value);
      shownRun.label = payload.runs[shownRun.index];
      redraw();
    });
  }
  for (const element of document.querySelectorAll("[data-panel]")) {
    const key = element.dataset.panel, spec = unpackedAll(payload.panels[key]);
    const box = document.querySelector(`[data-controls="${key}"]`);
    watch(element, (spec.kind === "curves" ? curves : choices)(element, box, spec));
  }
  if (payload.timeline) timeline(unpackedAll(payload.timeline));
  document.documentElement.dataset.ready = String(Math.round(performance.now())); // ms after the start
}

let kept = null;
try { kept = localStorage.getItem("simfed-theme"); } catch { /* no storage for local files: fine */ }
setTheme(kept);
byId("theme").addEventListener("click", () => {
  const next = isDark() ? "light" : "dark";
  try { localStorage.setItem("simfed-theme", next); } catch { /* as above */ }
  setTheme(next);
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { setTheme(null); redraw(); });

let before = null;
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

start().catch((error) => {
  byId("failure").hidden = false;
  byId("failure").textContent = `The charts could not be drawn (${error.message}); every table below holds their numbers.`;
  console.error(error);
});
