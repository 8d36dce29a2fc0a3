// What happened: events on lanes, one for each kind, launches as bars, and what each node did in them.

const lanes = ["launch", "verdict", "failure", "xid", "other"];
const laneOf = (kind) => (kind === "launch-end" ? "launch" : lanes.includes(kind) ? kind : "other");
const laneNames = { launch: "launches", verdict: "verdicts", failure: "failures", xid: "GPU errors", other: "other" };
const kindNames = { "launch-end": "launch ended" };
const laneSigns = { launch: "▮", verdict: "▼", failure: "✕", xid: "◆", other: "●" };
const laneColours = { launch: 4, verdict: 0, failure: 2, xid: 3, other: 1 };
const nodeSigns = { nodes: "full bar: in use", reserve: "thin bar: in reserve", excluded: "dotted line: left out" };
const mostNodes = 16;
const rowHeight = 26;
const pointedPixels = 10;

/** Draw all lanes as one chart, whose axis is that of all others; return what the signs of nodes mean and what is left out. */
const drawLanes = (place, range, job) => {
  place.job = job;
  const kinds = lanes.filter((lane) => job.events.some((event) => laneOf(event.kind) === lane));
  const notable = notableNodes(job);
  const nodes = notable.slice(0, mostNodes);
  if (!kinds.length) {
    place.say("Nothing happened in this range.");
    return "";
  }
  const rows = [
    ...kinds.map((lane) => ({ name: laneNames[lane], draw: lane === "launch" ? drawLaunches : drawEvents, lane })),
    ...nodes.map((host) => ({ name: shortened(host), draw: drawNode, host })),
  ];
  const draw = (chart) => {
    const { ctx: context, bbox } = chart;
    const pixels = window.devicePixelRatio || 1;
    const height = bbox.height / rows.length;
    context.save();
    context.beginPath();
    context.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    context.clip();
    context.font = `${14 * pixels}px system-ui, sans-serif`;
    Object.assign(context, { textBaseline: "middle", textAlign: "left" });
    rows.forEach((row, number) => row.draw({ chart, context, job: place.job, row, y: bbox.top + (number + 0.5) * height, height, pixels }));
    context.restore();
  };
  const options = { ...sharedOptions(place, 58 + rowHeight * rows.length), form: rows.map((row) => row.name) };
  options.hooks.draw = [draw];
  options.cursor.y = false;
  options.scales.y = { range: [0, rows.length] };
  options.series = [{}, { stroke: "transparent", points: { show: false } }];
  options.axes = [
    horizontalAxis("time"),
    {
      stroke: theme.colour("ink"),
      size: axisWidth,
      grid: { show: false },
      ticks: { show: false },
      splits: () => rows.map((_, number) => rows.length - number - 0.5),
      values: () => rows.map((row) => row.name),
    },
  ];
  place.plot.tabIndex = -1; // the table of events has the words
  place.put(seconds(range), options, [seconds(range), [null, null]]);
  Object.assign(place, { kinds, rows: rows.length });
  const left = notable.length - nodes.length;
  const legend = Object.entries(nodeSigns).filter(([use]) => job.launches.some((launch) => nodes.some((host) => launch[use].includes(host)))).map(([, words]) => words);
  return [...legend, ...(left > 0 ? [`${left.toLocaleString("en")} more nodes changed, not drawn`] : [])].join(" · ");
};

/** The event that lies under the pointer, in words; empty if there is none. */
const eventAt = (place, event) => {
  const { chart, job, kinds, rows } = place;
  if (!chart || !job || !kinds) return "";
  const box = chart.over.getBoundingClientRect();
  const lane = kinds[Math.floor(((event.clientY - box.top) / box.height) * rows)];
  const x = event.clientX - box.left;
  let [best, nearest] = [null, pointedPixels];
  for (const each of job.events) {
    if (laneOf(each.kind) !== lane) continue;
    const distance = Math.abs(chart.valToPos(each.time / 1000, "x") - x);
    if (distance <= nearest) [best, nearest] = [each, distance];
  }
  if (!best) return "";
  const where = best.host ? `${deviceName(best.host, best.gpu)}: ` : "";
  // A launch names itself, and a verdict its device.
  const what = laneOf(best.kind) === "launch" ? "" : `${best.kind}: ${best.kind === "verdict" ? "" : where}`;
  return `${moment(best.time)} ${what}${printable(best.text)}`;
};

const shortened = (host) => {
  const name = printable(host);
  return name.length > 9 ? `…${name.slice(-8)}` : name;
};

/** All nodes of a small job; of a large one those that did something other than run from start to end. */
const notableNodes = (job) => {
  const uses = job.launches.map((launch) => new Set(launch.nodes));
  const hosts = [...new Set(job.launches.flatMap((launch) => [...launch.nodes, ...launch.reserve]))];
  if (hosts.length <= mostNodes) return hosts;
  const accused = new Set(job.accused.map(([host]) => host));
  return hosts.filter((host) => accused.has(host) || new Set(uses.map((used) => used.has(host))).size > 1);
};

const xOf = (chart, ms) => chart.valToPos(ms / 1000, "x", true);

const drawEvents = ({ chart, context, job, row, y, pixels }) => {
  context.fillStyle = theme.line(laneColours[row.lane]);
  for (const event of job.events) {
    if (laneOf(event.kind) === row.lane) context.fillText(laneSigns[row.lane], xOf(chart, event.time) - 6 * pixels, y);
  }
};

/** Bars with their numbers: between two of them lies a relaunch. */
const drawLaunches = ({ chart, context, job, y, height, pixels }) => {
  const events = job.events.filter((event) => laneOf(event.kind) === "launch");
  events.forEach((event, number) => {
    if (event.kind !== "launch") return;
    const left = xOf(chart, event.time);
    const next = events[number + 1];
    const right = next ? xOf(chart, next.time) - 2 * pixels : chart.bbox.left + chart.bbox.width;
    context.fillStyle = theme.line(laneColours.launch);
    context.globalAlpha = 0.8;
    context.fillRect(left, y - height * 0.32, Math.max(3 * pixels, right - left), height * 0.64);
    context.globalAlpha = 1;
    const name = `launch ${event.launch}`;
    const shown = Math.max(left, chart.bbox.left);
    if (right - shown > context.measureText(name).width + 8 * pixels) {
      context.fillStyle = theme.colour("panel");
      context.fillText(name, shown + 5 * pixels, y);
    }
  });
};

/** What a node did in each launch: a full bar in use, a thin one in reserve, a dotted line once it was left out. */
const drawNode = ({ chart, context, job, row, y, height, pixels }) => {
  const end = chart.bbox.left + chart.bbox.width;
  job.launches.forEach((launch, number) => {
    const left = xOf(chart, launch.began);
    const next = job.launches[number + 1];
    const right = launch.ended ? xOf(chart, launch.ended) : next ? xOf(chart, next.began) : end;
    const width = Math.max(2 * pixels, right - left);
    context.fillStyle = theme.colour("blue");
    context.strokeStyle = theme.colour("accused");
    if (launch.nodes.includes(row.host)) context.fillRect(left, y - height * 0.26, width, height * 0.52);
    else if (launch.reserve.includes(row.host)) context.fillRect(left, y - height * 0.06, width, height * 0.12);
    else if (launch.excluded.includes(row.host)) drawLeftOut(context, left, right, y, pixels);
  });
};

const drawLeftOut = (context, left, right, y, pixels) => {
  context.save();
  context.setLineDash([2 * pixels, 4 * pixels]);
  context.lineWidth = 2 * pixels;
  context.beginPath();
  context.moveTo(left, y);
  context.lineTo(right, y);
  context.stroke();
  context.restore();
};
