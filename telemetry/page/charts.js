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
