// The page: what is shown of which time, and asking for it again and again.

const pollMs = 2000;
const shortestMs = 10e3;
const peersPrefix = "peers ";
const spans = [["1 min", 60e3], ["5 min", 300e3], ["15 min", 900e3], ["1 h", 3600e3], ["6 h", 21600e3], ["all", null]];
const mostLines = 6;
const mostSamples = 500e3;
const mostEvidence = 6;
const stepMetric = "step";

const data = byId("frozen") ? new FrozenData(byId("frozen").textContent) : new LiveData();
const errorLines = new ErrorLines(byId("lines-panel"), byId("lines"), byId("lines-text"));
const places = {
  lane: new Place(byId("lane"), zoomChart, "what happened"),
  peers: new Place(byId("peers"), zoomChart, "devices against their peers"),
};
const deviceMap = new DeviceMap(byId("map"), byId("map-text"), select);
const linkMatrix = new LinkMatrix(byId("links"), byId("links-text"));
const eventTable = new EventTable(byId("events").tBodies[0], byId("events-text"));

function range() {
  if (state.fixed) return state.fixed;
  const end = state.job ? state.job.ended : Date.now();
  const began = state.job ? state.job.began : end - 300e3;
  const start = state.span === null ? began : Math.max(began, end - state.span);
  return { start: Math.min(start, end - shortestMs), end };
}

/** A range as charts have it. */
const seconds = ({ start, end }) => [start / 1000, end / 1000];

function zoom(to) {
  if (to === null) Object.assign(state, { fixed: null, span: null });
  else state.fixed = to;
  refresh();
}

function zoomBy(factor) {
  const { start, end } = range();
  const width = Math.max(2000, (end - start) * factor);
  if (state.fixed) zoom({ start: (start + end - width) / 2, end: (start + end + width) / 2 });
  else {
    state.span = width;
    refresh();
  }
}

function pan(share) {
  const { start, end } = range();
  const by = (end - start) * share;
  zoom({ start: start + by, end: end + by });
}

function select(device) {
  const key = `${device.host}/${device.gpu}`;
  if (!state.selected.delete(key)) state.selected.set(key, [device.host, device.gpu]);
  refresh();
}

function follow() {
  if (state.fixed) state.fixed = null;
  else state.fixed = range();
  refresh();
}

/** Ask for everything that is shown, draw it, and say what went wrong if something did. */
function refresh() {
  state.asked += 1;
  return tryTo(load);
}

/** Draw the charts that have come into the window. */
function refreshCurves() {
  return state.job && tryTo((asked) => loadCurves(state.job, range(), () => asked !== state.asked));
}

async function tryTo(act) {
  const { asked } = state;
  try {
    await act(asked);
  } catch (error) {
    if (asked !== state.asked) return;
    byId("token-form").hidden = !(error instanceof NeedsTokenError);
    const why = error instanceof NeedsTokenError ? "The token is needed." : error.message;
    const isGone = state.job?.live !== false && (error instanceof TypeError || error.name === "TimeoutError");
    say(isGone ? "No answer from the job: it has ended, or the connection is gone. Trying again." : why, true);
  }
}

async function load(asked) {
  const isStale = () => asked !== state.asked;
  const isFirst = !state.job;
  const found = await data.job(isFirst ? { start: 0, end: Date.now() } : range());
  if (isStale()) return;
  if (isFirst) state.job = found;
  if (isFirst && !found.live && !state.isSpanGiven) state.span = null; // a dump opens on its own range
  const job = isFirst ? within(found, range()) : found;
  byId("token-form").hidden = !state.asksToken;
  state.job = job;
  drawHead(job);
  const shown = range();
  byId("lane-legend").textContent = drawLanes(places.lane, shown, job);
  eventTable.show(job, state.eventKind, state.find);
  await loadMap(job, shown, isStale); // first, since the server has much to read for the rest
  await Promise.all([loadPeers(job, shown, isStale), loadLinks(job, isStale), loadCurves(job, shown, isStale), loadLines(job, shown, isStale)]);
  if (isStale()) return;
  writeView();
  markOnce("all drawn");
  document.documentElement.dataset.loaded = String(asked);
}

/** When something was first drawn; more marks would fill the memory of a page that is left open. */
const markOnce = (name) => performance.getEntriesByName(name).length || performance.mark(name);

function drawHead(job) {
  document.title = `${printable(job.live ? job.name : `${job.name}: ${job.state}`)} – laggard`;
  byId("name").textContent = printable(job.name);
  const { start, end } = range();
  byId("range-text").textContent = `${moment(start)} to ${moment(end)}, ${span(end - start)}, your time zone`;
  byId("follow").setAttribute("aria-pressed", String(!state.fixed));
  byId("follow").hidden = !job.live;
  for (const button of byId("spans").children) {
    button.setAttribute("aria-pressed", String(!state.fixed && button.value === String(state.span)));
  }
  const nodes = job.live && job.nodes.length ? `, ${counted(job.nodes.length, "node", "nodes")} in use` : "";
  const slow = [job.accused.filter(([, gpu]) => gpu !== ""), job.accused.filter(([, gpu]) => gpu === "")];
  const found = slow.map(({ length }, i) => length && counted(length, ...(i ? ["node", "nodes"] : ["device", "devices"]))).filter(Boolean);
  const accused = job.live && found.length ? `, ${found.join(" and ")} found slow` : "";
  const missing = job.missing.length ? `; no answer from ${job.missing.slice(0, 5).map(printable).join(", ")}${job.missing.length > 5 ? " and others" : ""}` : "";
  say(`${printable(job.state)}${nodes}${accused}${missing}`, job.missing.length > 0);
  fill(byId("map-metric"), mapChoices(job), state.map);
  state.map = byId("map-metric").value;
}

/** Fill a list and choose in it; a list that is the same is left alone, since it may be open. */
function fill(list, choices, chosen) {
  const now = JSON.stringify(choices);
  if (list.dataset.choices !== now) {
    list.dataset.choices = now;
    list.replaceChildren(...choices.map(([value, text]) => Object.assign(element("option", printable(text)), { value })));
  }
  if (list.value !== chosen && choices.some(([value]) => value === chosen)) list.value = chosen;
}

function mapChoices(job) {
  const metrics = job.metrics.filter((each) => each.on_map);
  const probes = metrics.filter((each) => each.is_probe);
  return [
    ...probes.map((each) => [`${peersPrefix}${each.name}`, probes.length > 1 ? `${each.name} against peers` : "probe time against peers"]),
    ...metrics.map((each) => [each.name, each.unit ? `${each.name}, ${each.unit}` : each.name]),
  ];
}

async function loadMap(job, shown, isStale) {
  const chosen = state.map;
  byId("map").hidden = byId("map-help").hidden = byId("map-metric").parentElement.hidden = !chosen;
  byId("peers").closest("section").hidden = !chosen;
  if (!chosen) {
    byId("map-legend").textContent = "No device has a reading: telemetry level 3 or a detector gives them.";
    return;
  }
  const isRatio = chosen.startsWith(peersPrefix);
  const metric = isRatio ? chosen.slice(peersPrefix.length) : chosen;
  const answer = await data.map(metric, shown.end);
  if (isStale()) return;
  const accused = new Set(job.accused.map(([host, gpu]) => `${host}/${gpu}`));
  const accusedHosts = new Set(job.accused.map(([host]) => host));
  const used = new Set(job.nodes);
  const devices = answer.gpus.map((gpu, at) => {
    const host = answer.hosts[answer.host_of[at]];
    return {
      host, gpu,
      value: answer.values[at],
      ratio: answer.ratios[at],
      shown: isRatio ? answer.ratios[at] : answer.values[at],
      accused: accused.has(`${host}/${gpu}`) || accused.has(`${host}/`) || (gpu === "" && accusedHosts.has(host)),
      isUsed: !used.size || used.has(host),
    };
  });
  const values = devices.map((each) => each.shown).filter((value) => value !== null);
  const [low, high] = answer.unit === "%" ? [0, 100] : [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), -Infinity)];
  const colour = isRatio ? ratioColour : (value) => sequentialColour(high > low ? (value - low) / (high - low) : 0.5);
  const describe = (each) => {
    const parts = [`${deviceName(each.host, each.gpu)}: ${reading(each.value, answer.unit)}`];
    if (answer.is_probe && each.ratio !== null) parts.push(againstPeers(each.ratio));
    if (each.accused) parts.push("found slow");
    if (!each.isUsed) parts.push("not in use");
    return parts.join(", ");
  };
  deviceMap.show(devices, colour, describe, state.selected);
  markOnce("devices drawn");
  const ends = isRatio ? ["20 % faster", "twice as slow"] : [reading(low, answer.unit), reading(high, answer.unit)];
  const isOfNodes = devices.every((each) => each.gpu === "");
  byId("map-title").textContent = isOfNodes ? "Nodes" : "Devices";
  const notes = [isOfNodes ? counted(devices.length, "node", "nodes") : counted(devices.length, "device", "devices")];
  if (!values.length) notes.push(devices.some((each) => each.value !== null) ? "no peers to compare with" : "none has a reading");
  if (devices.some((each) => each.accused)) notes.push("✕ in a frame: found slow");
  if (devices.some((each) => !each.isUsed)) notes.push("struck out: not in use");
  showLegend(byId("map-legend"), isRatio ? ratioColourAt : sequentialColour, values.length ? ends : null, notes);
  fill(byId("names"), [...new Set(devices.map((each) => each.host))].slice(0, 2000).map((name) => [name, name]), "");
}

/** A bar of colours between its two ends, if something has a colour, and what else there is to know. */
function showLegend(legend, colourAt, ends, notes) {
  if (!ends) {
    legend.textContent = notes.join(" · ");
    return;
  }
  const bar = document.createElement("canvas");
  [bar.width, bar.height] = [120, 12];
  const context = bar.getContext("2d");
  for (let x = 0; x < bar.width; x += 1) {
    context.fillStyle = colourAt(x / (bar.width - 1));
    context.fillRect(x, 0, 1, bar.height);
  }
  const box = element("span", "", { className: "legend" });
  box.append(element("span", ends[0]), bar, element("span", ends[1]), ...notes.map((note) => element("span", `· ${note}`)));
  legend.replaceChildren(box);
}

async function loadPeers(job, shown, isStale) {
  const probe = job.metrics.find((each) => each.is_probe);
  const onMap = state.map?.startsWith(peersPrefix) ? state.map.slice(peersPrefix.length) : state.map;
  const metric = onMap || probe?.name;
  if (!metric) return;
  const accused = job.accused.filter(([host, gpu]) => !state.selected.has(`${host}/${gpu}`));
  const chosen = [...state.selected.values()].slice(-mostLines);
  const wanted = [...accused, ...state.selected.values()];
  const drawn = [...accused.slice(0, mostLines - chosen.length), ...chosen];
  const answer = await data.curve(metric, shown, points(deviceMap.devices.length), { devices: drawn });
  if (isStale()) return;
  if (answer.times.length) {
    const { unit, is_percentiles: isPercentiles } = answer;
    drawLines(places.peers, drawable(answer, { axis: "time", launches: job.launches }), { unit, isPercentiles, range: seconds(shown) });
  } else places.peers.say(`No reading of ${printable(metric)} in this range.`);
  const left = wanted.length - drawn.length;
  const parts = [printable(metric)];
  if (!wanted.length) parts.push("select one on the map to draw it");
  if (left > 0) parts.push(`${left.toLocaleString("en")} more found slow or selected, not drawn`);
  if (answer.lines.some((line) => line.values.every((value) => value === null))) parts.push("some have no reading in this range");
  if (answer.averages_s) parts.push(approximately(answer));
  byId("peers-text").textContent = parts.join("; ");
  drawEvidence(job);
}

/** What is held against each accused device; what is left out is said. */
function drawEvidence(job) {
  const rows = job.accused.slice(0, mostEvidence).map(([host, gpu], at) => {
    const row = element("li");
    const name = element("button", deviceName(host, gpu), { type: "button", title: "Draw it, or take it away" });
    name.addEventListener("click", () => select({ host, gpu }));
    const text = printable(job.evidence[at].text);
    const named = `${deviceName(host, gpu)}: `;
    row.append(name, ` ${moment(job.evidence[at].time)}: ${text.startsWith(named) ? text.slice(named.length) : text}`);
    return row;
  });
  const left = job.accused.length - rows.length;
  if (left > 0) rows.push(element("li", `and ${left.toLocaleString("en")} more, framed on the map and listed below as verdicts`));
  const list = byId("evidence");
  const now = rows.map((row) => row.textContent).join("\n");
  if (list.dataset.shown === now) return; // a list that is the same is left alone, since it may have the focus
  list.dataset.shown = now;
  list.replaceChildren(...rows);
}

/** One point in three pixels, and fewer of very many series: the server reads every one of them. */
const points = (series = 1) => {
  const wanted = Math.max(60, Math.round(byId("lane").clientWidth / 3));
  return Math.round(Math.min(600, wanted, Math.max(40, mostSamples / series)));
};

/** Said where the server could only estimate what was asked for. */
const approximately = (answer) => `from averages of ${answer.averages_s} s, since finer values are no longer kept`;

function say(text, isBad = false) {
  byId("state").textContent = text;
  byId("state").className = isBad ? "bad" : "";
}

function search(text) {
  state.find = text.trim().toLowerCase();
  const at = state.find === "" ? -1 : deviceMap.devices.findIndex((each) => deviceName(each.host, each.gpu).toLowerCase().includes(state.find));
  deviceMap.goTo(at);
  if (state.job) eventTable.show(state.job, state.eventKind, state.find);
  errorLines.show(errorLines.found, state.find);
  return at;
}

function listen() {
  for (const [text, width] of spans) {
    const button = element("button", text, { type: "button", value: String(width) });
    button.addEventListener("click", () => {
      Object.assign(state, { fixed: null, span: width });
      refresh();
    });
    byId("spans").append(button);
  }
  byId("event-kind").append(...[["", "all kinds"], ...Object.entries(laneNames)].map(([value, text]) => Object.assign(element("option", text), { value })));
  byId("event-kind").addEventListener("change", (event) => {
    state.eventKind = event.target.value;
    if (state.job) eventTable.show(state.job, state.eventKind, state.find);
  });
  byId("map-metric").addEventListener("change", (event) => {
    state.map = event.target.value;
    refresh();
  });
  byId("links-launch").addEventListener("change", (event) => {
    links.launch = event.target.value;
    refresh();
  });
  listenToMetrics();
  byId("search").addEventListener("input", (event) => search(event.target.value));
  byId("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const at = search(byId("search").value);
    if (at >= 0) select(deviceMap.devices[at]);
  });
  byId("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (state.asksToken) byId("lines-panel").scrollIntoView({ block: "nearest" }); // it is for these
    state.asksToken = false;
    data.useToken(byId("token").value.trim());
    refresh();
  });
  byId("lines-ask").addEventListener("click", () => {
    state.asksToken = true;
    byId("token-form").hidden = false;
    byId("token").focus();
  });
  byId("follow").addEventListener("click", follow);
  byId("theme").addEventListener("click", changeTheme);
  byId("help-button").addEventListener("click", () => byId("help").showModal());
  byId("lane").addEventListener("pointermove", (event) => {
    byId("lane-text").textContent = eventAt(places.lane, event);
  });
  byId("lane").addEventListener("pointerleave", () => {
    byId("lane-text").textContent = "";
  });
  document.addEventListener("keydown", key);
  window.addEventListener("hashchange", () => {
    readView();
    refresh();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  new ResizeObserver(fit).observe(document.querySelector("main"));
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
}

function changeTheme() {
  byId("theme").textContent = `Theme: ${theme.next()}`;
  repaint();
}

function repaint() {
  theme.apply();
  refresh();
}

let lastWidth = byId("map").clientWidth;

/** Arrange everything anew if the width has changed; the height changes with what is drawn. */
function fit() {
  const width = byId("map").clientWidth;
  if (width === lastWidth) return;
  lastWidth = width;
  for (const each of [deviceMap, linkMatrix]) {
    if (!each.devices.length) continue;
    each.arrange();
    each.draw(); // a canvas that changes its size is empty
  }
  refresh();
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  if (["INPUT", "SELECT"].includes(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const action = {
    "/": () => byId("search").focus(),
    "m": () => byId("curve-search").focus(),
    "f": follow,
    "+": () => zoomBy(0.5),
    "=": () => zoomBy(0.5),
    "-": () => zoomBy(2),
    "[": () => pan(-0.5),
    "]": () => pan(0.5),
    "a": () => zoom(null),
    "t": changeTheme,
    "?": () => byId("help").showModal(),
    "Escape": () => {
      state.selected.clear();
      refresh();
    },
  }[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

/** One request at a time, and none while nobody looks: a page that is left open costs the job nothing. */
async function poll() {
  for (;;) {
    await new Promise((resume) => setTimeout(resume, pollMs));
    const isFixedPast = state.fixed || (state.job && !state.job.live);
    if (!document.hidden && (!isFixedPast || !state.job)) await refresh();
  }
}

theme.apply();
readView();
listen();
refresh();
poll();
