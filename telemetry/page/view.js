// What is looked at, and the same as the address has it after its #, so that it can be kept and sent.

const state = {
  span: 300e3, // null: from the job's start
  fixed: null, // a range that does not follow
  along: null, // of charts that do not lie along time: the part of their axis
  map: null,
  selected: new Map(),
  kind: "program", // of the charts
  pinned: [], // names of metrics, in order
  by: "", // tags that tell lines apart, as JSON; empty: each metric's own
  axis: "time",
  weight: 0,
  isLog: false,
  wanted: "", // a part of a metric's name
  shown: 0, // charts; 0: as many as at first
  find: "",
  eventKind: "",
  asksToken: false,
  job: null,
  asked: 0,
};

const texts = { map: "map", kind: "kind", by: "by", axis: "x", wanted: "metric" };
const viewDefaults = { ...state };

/** Take what the address says; what it says wrongly is passed over. */
function readView() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [name, key] of Object.entries(texts)) state[name] = given.get(key) ?? viewDefaults[name];
  if (!Object.hasOwn(axisNames, state.axis)) state.axis = "time";
  const [start, end, width] = ["start", "end", "span"].map((key) => (given.has(key) ? Number(given.get(key)) : NaN));
  state.fixed = end > start ? { start, end } : null;
  state.isSpanGiven = given.has("span");
  if (state.isSpanGiven) state.span = width > 0 ? width : null;
  state.pinned = given.getAll("pin");
  state.isLog = given.has("log");
  state.weight = smoothings.some(([weight]) => weight === given.get("smooth")) ? Number(given.get("smooth")) : 0;
  const [from, to] = ["from", "to"].map((key) => (given.has(key) ? Number(given.get(key)) : NaN));
  state.along = state.axis !== "time" && to > from ? [from, to] : null;
  state.selected = new Map(given.getAll("device").filter((text) => text.lastIndexOf("/") > 0).map((text) => {
    const at = text.lastIndexOf("/");
    return [text, [text.slice(0, at), text.slice(at + 1)]];
  }));
}

/** Put what is looked at into the address. */
function writeView() {
  const view = new URLSearchParams();
  for (const [name, key] of Object.entries(texts)) {
    if (state[name] && state[name] !== viewDefaults[name]) view.set(key, state[name]);
  }
  if (state.fixed) Object.entries(state.fixed).forEach(([key, ms]) => view.set(key, Math.round(ms)));
  else if (state.span !== viewDefaults.span) view.set("span", state.span ?? "all");
  state.along?.forEach((x, i) => view.set(["from", "to"][i], Number(x.toPrecision(6))));
  state.pinned.forEach((name) => view.append("pin", name));
  if (state.isLog) view.set("log", "1");
  if (state.weight) view.set("smooth", state.weight);
  for (const device of state.selected.keys()) view.append("device", device);
  const text = String(view);
  if (text !== location.hash.slice(1)) history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
}
