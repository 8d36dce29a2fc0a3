// Charts over time, all with the same axis: one cursor runs through all of them, and a drag zooms all of them.

const axisWidth = 74;
const syncKey = "time";

/** What all charts share: the range, the cursor, zooming by a drag, and the way back by a double click. */
const timeOptions = (place, height) => ({
  width: place.width,
  height,
  padding: [8, 10, 0, 0],
  cursor: {
    sync: { key: syncKey },
    drag: { x: true, y: false, setScale: false },
    bind: { dblclick: () => () => place.onZoom(null) },
  },
  scales: { x: { time: true, range: () => [place.range.start / 1000, place.range.end / 1000] } },
  hooks: {
    setSelect: [
      (chart) => {
        if (chart.select.width < 8) return;
        const ends = [chart.select.left, chart.select.left + chart.select.width].map((x) => chart.posToVal(x, "x") * 1000);
        chart.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        place.onZoom({ start: ends[0], end: ends[1] });
      },
    ],
  },
});

// Widths of the steps between labels, in seconds; the label of each, and what is said below where the day changes.
const timeLabels = [
  [86400, "{YYYY}-{MM}-{DD}", null],
  [3600, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}"],
  [60, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}"],
  [1, "{HH}:{mm}:{ss}", "\n{YYYY}-{MM}-{DD}"],
  [0.001, "{HH}:{mm}:{ss}.{fff}", null],
].map(([step, label, onNewDay]) => [step, label, null, null, onNewDay, null, null, null, 1]);

const timeAxis = () => ({
  values: timeLabels,
  space: 76,
  stroke: theme.colour("soft"),
  grid: { stroke: theme.colour("grid"), width: 1 },
  ticks: { stroke: theme.colour("line"), width: 1 },
});

const valueAxis = (unit) => ({
  ...timeAxis(),
  space: 30,
  size: axisWidth,
  values: (_, ticks) => ticks.map((tick) => axisNumber(tick, unit)),
});

const axisNumber = (value, unit) => {
  if (value === null) return "";
  return unit === "s" ? `${plain(value * 1000)} ms` : number(value);
};

/** A place for one chart, which is made anew only if more than its data has changed: else the cursor would jump. */
class Place {
  constructor(holder, onZoom) {
    this.holder = holder;
    this.onZoom = onZoom;
    this.range = { start: 0, end: 1 };
    this.chart = null;
    this.form = "";
  }

  put(range, options, data) {
    this.range = range;
    const form = JSON.stringify([options.width, options.height, theme.isDark(), options.series.map((each) => each.label), options.form]);
    if (this.chart && form === this.form) {
      this.chart.setData(data);
      return;
    }
    this.chart?.destroy();
    this.holder.textContent = "";
    this.form = form;
    this.chart = new uPlot(options, data, this.holder);
  }

  /** Say something in place of the chart. */
  say(text) {
    this.chart?.destroy();
    this.chart = null;
    this.holder.textContent = "";
    this.holder.append(element("p", text, { className: "soft" }));
  }

  get width() {
    return Math.max(240, this.holder.clientWidth);
  }
}

const translucent = (hex) => `${hex}73`;

/** A band with its middle, and lines on top; `answer` as the server gives it. */
const drawBand = (place, range, answer, names) => {
  const { times, low, middle, high, lines } = answer;
  if (!times.length) {
    place.say(names.empty);
    return;
  }
  const show = (_, value) => (value === null || value === undefined ? "" : reading(value, answer.unit));
  const band = theme.colour("band");
  const series = [
    { value: (_, at) => (at === null || at === undefined ? "" : moment(at * 1000)), label: "time" },
    { label: names.high, stroke: band, width: 0, points: { show: false }, value: show },
    { label: names.low, stroke: band, width: 0, points: { show: false }, value: show },
    { label: names.middle, stroke: theme.colour("blue"), width: 2, points: { show: false }, spanGaps: false, value: show },
    ...lines.map((line, i) => ({
      label: deviceName(line.host, line.gpu),
      stroke: theme.line(i),
      dash: lineDashes[i % lineDashes.length],
      width: 2,
      spanGaps: true,
      points: { size: 5 },
      value: show,
    })),
  ];
  const isBand = answer.n_series > 1;
  const options = {
    ...timeOptions(place, 230),
    series: isBand ? series : [series[0], ...series.slice(3)],
    axes: [timeAxis(), valueAxis(answer.unit)],
    bands: isBand ? [{ series: [1, 2], fill: translucent(band) }] : [],
  };
  const columns = [times.map((at) => at / 1000), ...(isBand ? [high, low] : []), middle, ...lines.map((line) => line.values)];
  place.put(range, options, columns);
};

const lanes = ["launch", "verdict", "failure", "xid", "other"];
const laneOf = (kind) => (kind === "launch-end" ? "launch" : lanes.includes(kind) ? kind : "other");
const laneNames = { launch: "launches", verdict: "verdicts", failure: "failures", xid: "GPU errors", other: "other" };
const laneSigns = { launch: "▮", verdict: "▼", failure: "✕", xid: "◆", other: "●" };
const laneColours = { launch: 4, verdict: 0, failure: 2, xid: 1, other: 3 };

/** Events on lanes, one for each kind, and launches as bars: between two of them lies a relaunch. */
const drawLanes = (place, range, job) => {
  place.job = job;
  const present = lanes.filter((lane) => job.events.some((event) => laneOf(event.kind) === lane));
  if (!present.length) {
    place.say("Nothing happened in this range.");
    return;
  }
  const draw = (chart) => {
    const { ctx: context, bbox } = chart;
    const pixels = window.devicePixelRatio || 1;
    const height = bbox.height / present.length;
    context.save();
    context.beginPath();
    context.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    context.clip();
    context.font = `${14 * pixels}px system-ui, sans-serif`;
    Object.assign(context, { textBaseline: "middle", textAlign: "left" });
    present.forEach((lane, row) => {
      const y = bbox.top + (row + 0.5) * height;
      const events = place.job.events.filter((event) => laneOf(event.kind) === lane);
      context.fillStyle = theme.line(laneColours[lane]);
      if (lane === "launch") drawLaunches(chart, context, events, y, height, pixels);
      else for (const event of events) context.fillText(laneSigns[lane], chart.valToPos(event.time / 1000, "x", true) - 6 * pixels, y);
    });
    context.restore();
  };
  const options = { ...timeOptions(place, 58 + 26 * present.length), form: present };
  options.hooks.draw = [draw];
  options.legend = { show: false };
  options.scales.y = { range: [0, present.length] };
  options.series = [{}, { stroke: "transparent", points: { show: false } }];
  options.axes = [
    timeAxis(),
    {
      stroke: theme.colour("ink"),
      size: axisWidth,
      grid: { show: false },
      ticks: { show: false },
      splits: () => present.map((_, row) => present.length - row - 0.5),
      values: () => present.map((lane) => laneNames[lane]),
    },
  ];
  place.put(range, options, [[range.start / 1000, range.end / 1000], [null, null]]);
};

const drawLaunches = (chart, context, events, y, height, pixels) => {
  events.forEach((event, number) => {
    if (event.kind !== "launch") return;
    const left = chart.valToPos(event.time / 1000, "x", true);
    const next = events[number + 1];
    const right = next ? chart.valToPos(next.time / 1000, "x", true) - 2 * pixels : chart.bbox.left + chart.bbox.width;
    context.globalAlpha = 0.8;
    context.fillRect(left, y - height * 0.32, Math.max(3 * pixels, right - left), height * 0.64);
    context.globalAlpha = 1;
    const name = `launch ${event.text.split(" ")[0]}`;
    const shown = Math.max(left, chart.bbox.left);
    if (right - shown > context.measureText(name).width + 8 * pixels) {
      const before = context.fillStyle;
      context.fillStyle = theme.colour("panel");
      context.fillText(name, shown + 5 * pixels, y);
      context.fillStyle = before;
    }
  });
};
