// The metrics as charts: which, in which order, and each of them from the question to the lines.

const firstCharts = 12;
const nearPixels = 400;
const kinds = { program: "the program's", node: "of the nodes", device: "of the devices" };
const curvePlaces = new Map();

/** The metrics that are pinned, and then those of a kind, or those of all kinds whose names have what is looked for. */
function chosenMetrics(job) {
  const charted = job.metrics.filter((each) => Object.hasOwn(kinds, each.kind));
  const pinned = state.pinned.flatMap((name) => charted.find((each) => each.name === name) ?? []);
  const words = state.wanted.toLowerCase().split(/\s+/);
  const matching = charted.filter((each) => !pinned.includes(each) && words.every((word) => each.name.toLowerCase().includes(word)));
  const rest = matching.filter((each) => each.kind === state.kind);
  if (state.wanted) rest.push(...matching.filter((each) => each.kind !== state.kind));
  return { metrics: [...pinned, ...rest].slice(0, Math.max(firstCharts, state.shown)), count: pinned.length + rest.length };
}

/** By which tags a metric's lines are told apart. */
function groupingOf(metric) {
  if (state.by === "[]") return [];
  if (state.by) return metric.by.find((tags) => JSON.stringify(tags) === state.by) ?? metric.by[0] ?? [];
  return state.axis === "launch" ? [] : metric.by[0] ?? [];
}

async function loadCurves(job, shown, isStale) {
  showControls(job);
  const { metrics, count } = chosenMetrics(job);
  const none = state.wanted ? `None has “${printable(state.wanted)}” in its name.` : "The program has sent none: Telemetry().add_data(name, value) does.";
  const left = job.n_metrics - job.metrics.length;
  const unlisted = left > 0 ? `; ${left.toLocaleString("en")} more of this job are not listed` : "";
  byId("curves-text").textContent = (count ? `${metrics.length} of ${counted(count, "metric", "metrics")}` : none) + unlisted;
  byId("curve-more").hidden = metrics.length === count;
  arrange(metrics);
  const steps = new Map();
  for (const metric of metrics) {
    const place = curvePlaces.get(metric.name);
    if (place.asked !== state.asked && isNear(place.box, nearPixels)) place.drawn = loadCurve(job, metric, shown, steps, isStale);
  }
  // Those that were asked for while the rest was loaded, since somebody scrolled, are waited for too: else the next poll drops them.
  const places = metrics.map((metric) => curvePlaces.get(metric.name));
  await Promise.all(places.filter(({ asked }) => asked === state.asked).map(({ drawn }) => drawn));
}

function showControls(job) {
  const own = job.metrics.filter((each) => Object.hasOwn(kinds, each.kind));
  byId("curves").closest("section").hidden = !own.length && !job.live;
  const there = Object.keys(kinds).filter((kind) => own.some((each) => each.kind === kind));
  if (there.length && !there.includes(state.kind)) state.kind = there[0];
  fill(byId("curve-kind"), there.map((kind) => [kind, kinds[kind]]), state.kind);
  const tags = [...new Map(own.filter((each) => each.kind === state.kind).flatMap((each) => each.by.map((by) => [JSON.stringify(by), by.at(-1)]))).entries()];
  const groupings = [["", "its own tags"], ["[]", "nothing: all together"], ...tags];
  if (!groupings.some(([by]) => by === state.by)) state.by = "";
  fill(byId("curve-by"), groupings, state.by);
  const hasSteps = job.metrics.some((each) => each.name === stepMetric);
  const axes = Object.entries(axisNames).filter(([axis]) => (axis !== "step" || hasSteps) && (axis !== "launch" || job.launches.length > 1));
  if (!axes.some(([axis]) => axis === state.axis)) state.axis = "time";
  fill(byId("curve-axis"), axes, state.axis);
  byId("curve-log").checked = state.isLog;
}

/** Give each metric its place, in order; what is there already stays, since somebody may be reading it. */
function arrange(metrics) {
  const names = metrics.map((each) => each.name);
  for (const [name, place] of curvePlaces) {
    if (names.includes(name)) continue;
    place.box.remove();
    curvePlaces.delete(name);
  }
  const holder = byId("curves");
  names.forEach((name, i) => {
    if (!curvePlaces.has(name)) curvePlaces.set(name, makeCurvePlace(name));
    const { box, pin, ahead } = curvePlaces.get(name);
    if (holder.children[i] !== box) holder.insertBefore(box, holder.children[i] ?? null);
    pin.setAttribute("aria-pressed", String(state.pinned.includes(name)));
    ahead.hidden = state.pinned.indexOf(name) < 1;
  });
}

async function loadCurve(job, metric, shown, steps, isStale) {
  const place = curvePlaces.get(metric.name);
  place.asked = state.asked;
  const by = groupingOf(metric);
  const ask = (name) => data.curve(name, shown, points(metric.kind === "device" ? deviceMap.devices.length : 1), { by });
  const key = JSON.stringify(by);
  if (state.axis === "step" && !steps.has(key)) steps.set(key, ask(stepMetric));
  const [answer, reached] = await Promise.all([ask(metric.name), steps.get(key)]);
  if (isStale()) return;
  const ofRange = answer.is_range ? `only the lowest, the mean and the highest of ${answer.n_series.toLocaleString("en")} lines were kept` : "";
  place.note.textContent = [answer.averages_s ? approximately(answer) : "", ofRange].filter(Boolean).join("; ");
  const { axis, weight, isLog } = state;
  const drawn = drawable(answer, { axis, launches: job.launches, steps: reached, weight, isLog, most: points() });
  if (!drawn.lines.some(({ values }) => values.some(Number.isFinite))) {
    place.say(`No value of ${printable(metric.name)}${isLog ? " above 0" : ""} in this range.`);
    return;
  }
  const range = axis === "time" ? seconds(shown) : state.along;
  drawLines(place, drawn, { unit: answer.unit, isPercentiles: answer.is_percentiles, range, axis, isLog, height: 210 });
}

function makeCurvePlace(name) {
  const box = document.createElement("div");
  const title = element("p", printable(name), { className: "chart-title" });
  const holder = element("div", "", { className: "chart" });
  const place = new Place(holder, zoomChart, printable(name));
  const button = (text, what, act) => {
    const made = element("button", text, { type: "button", title: what, ariaLabel: `${what}: ${printable(name)}` });
    made.addEventListener("click", act);
    return made;
  };
  const pin = button("Pin", "Keep it first", () => repin(name, state.pinned.includes(name) ? -1 : state.pinned.length));
  const ahead = button("◂", "One place ahead", () => repin(name, state.pinned.indexOf(name) - 1));
  const csv = button("CSV", "Save its numbers", () => place.chart && keep(new Blob([place.csv()], { type: "text/csv" }), `${name}.csv`));
  const png = button("PNG", "Save a picture", () => place.chart && place.picture().toBlob((blob) => keep(blob, `${name}.png`)));
  const note = element("span", "", { className: "note" });
  title.append(pin, ahead, csv, png, note);
  box.append(title, holder);
  return Object.assign(place, { box, note, pin, ahead });
}

/** Pin a metric at a place among those that are pinned; -1: not any more. */
function repin(name, at) {
  state.pinned = state.pinned.filter((each) => each !== name);
  if (at >= 0) state.pinned.splice(at, 0, name);
  refresh();
}

function zoomChart(to, axis) {
  if (axis === "time") return zoom(to && { start: to.start * 1000, end: to.end * 1000 });
  state.along = to && [to.start, to.end];
  return refresh();
}

function listenToMetrics() {
  const change = (id, take) => byId(id).addEventListener("input", (event) => {
    take(event.target);
    refresh();
  });
  change("curve-kind", (list) => { state.kind = list.value; });
  change("curve-by", (list) => { state.by = list.value; });
  change("curve-axis", (list) => { Object.assign(state, { axis: list.value, along: null }); });
  change("curve-log", (box) => { state.isLog = box.checked; });
  change("curve-smooth", (list) => { state.weight = Number(list.value); });
  change("curve-search", (field) => { state.wanted = field.value.trim(); });
  fill(byId("curve-smooth"), smoothings, String(state.weight));
  byId("curve-search").value = state.wanted;
  byId("curve-more").addEventListener("click", () => {
    state.shown = Math.max(firstCharts, state.shown) + firstCharts;
    refresh();
  });
  let isAsked = false;
  for (const event of ["scroll", "resize"]) {
    window.addEventListener(event, () => {
      if (isAsked) return;
      isAsked = true;
      setTimeout(() => {
        isAsked = false;
        refreshCurves();
      }, 150);
    }, { passive: true });
  }
}
