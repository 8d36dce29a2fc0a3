// Charts, with what they say in words below: at the pointer, where the arrow keys went, or else the newest values.

const axisWidth = 74;
const mostNamed = 6;
const signWidth = 30; // as in page.css

/** What all charts share: the range, the cursor, zooming by a drag, and the way back by a double click. */
const sharedOptions = (place, height, axis = "time") => ({
  width: place.width,
  height,
  padding: [8, 28, 0, 0], // room for half a label
  legend: { show: false },
  cursor: {
    sync: { key: axis }, // one cursor runs through all charts of an axis
    drag: { x: true, y: false, setScale: false },
    bind: { dblclick: () => () => place.onZoom(null, axis) },
  },
  scales: { x: { time: axis === "time", range: (_, low, high) => place.range ?? [low, high > low ? high : low + 1] } },
  hooks: {
    setCursor: [() => place.read(true)],
    setSelect: [
      (chart) => {
        if (chart.select.width < 8) return;
        const [start, end] = [chart.select.left, chart.select.left + chart.select.width].map((x) => chart.posToVal(x, "x"));
        chart.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        place.onZoom({ start, end }, axis);
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

// uPlot's own have nothing between one minute and five, where a narrow chart would have one label.
const timeSteps = [0.001, 0.01, 0.1, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, ...[1, 2, 5, 10, 30, 90, 365].map((days) => days * 86400)];

/** Room between labels in pixels, by the seconds of a pixel: hours and minutes alone need less. */
const timeSpace = (pixel) => (50 * pixel > 30 && 50 * pixel <= 43200 ? 50 : 76);

const axisOptions = (values, more) => ({
  values,
  space: 76,
  stroke: theme.colour("soft"),
  grid: { stroke: theme.colour("grid"), width: 1 },
  ticks: { stroke: theme.colour("line"), width: 1 },
  ...more,
});

const horizontalAxis = (axis) => {
  const value = axisReading[axis];
  if (axis !== "time") return axisOptions((_, ticks) => ticks.map(value));
  return axisOptions(timeLabels, { incrs: timeSteps, space: (_, __, low, high, width) => timeSpace((high - low) / width) });
};

const valueAxis = (unit) => axisOptions(
  (_, ticks) => {
    const words = toldApart(ticks.map((tick) => (tick !== null && unit === "s" ? tick * 1000 : tick)));
    return ticks.map((tick, i) => (tick === null ? "" : unit === "s" ? `${words[i]} ms` : words[i]));
  },
  { space: 30, size: axisWidth },
);

/** uPlot's own range, except that it would draw nothing but zeros from 0 to 100. */
const valueRange = (_, low, high) => (low === null ? [null, null] : low === 0 && high === 0 ? [0, 1] : uPlot.rangeNum(low, high, 0.1, true));

const axisReading = { time: (x) => moment(x * 1000), step: (x) => x.toLocaleString("en"), launch: (x) => stopwatch(x) };
const axisWords = { time: "", step: "step ", launch: "after " };

/** A place for one chart, which is made anew only if more than its data has changed: else the cursor would jump. */
class Place {
  constructor(holder, onZoom, name = "") {
    this.holder = holder;
    this.onZoom = onZoom;
    this.name = name;
    this.range = null;
    this.chart = null;
    this.form = "";
    this.plot = holder.appendChild(element("div", "", { className: "plot", tabIndex: 0, role: "img" }));
    this.words = holder.appendChild(element("p", "", { className: "values" }));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    // Only who reads a chart by keys hears it: elsewhere the newest values change all the time.
    this.plot.addEventListener("focus", () => this.words.setAttribute("aria-live", "polite"));
    this.plot.addEventListener("blur", () => this.words.removeAttribute("aria-live"));
  }

  /** Show a chart; `rowsAt` says in words what lies at a place, or is newest: [name, text, colour, dash]. */
  put(range, options, data, rowsAt = () => []) {
    Object.assign(this, { range, rowsAt, series: options.series, isAlongTime: options.scales.x.time });
    const form = JSON.stringify([options.width, options.height, theme.isDark(), options.series.map((each) => each.label), options.form]);
    if (this.chart && form === this.form) {
      this.chart.setData(data);
    } else {
      this.chart?.destroy();
      this.plot.textContent = "";
      this.form = form;
      this.chart = new uPlot(options, data, this.plot);
    }
    this.plot.setAttribute("aria-label", `Chart of ${this.name}; the arrow keys read its values`);
    this.read();
  }

  /** Say something in place of the chart. */
  say(text) {
    this.chart?.destroy();
    this.chart = null;
    this.plot.textContent = "";
    this.plot.append(element("p", text, { className: "soft" }));
    this.words.replaceChildren();
    this.said = "";
  }

  /** Put what lies under the cursor into words; without a cursor, the newest values. */
  read(isMove = false) {
    if (!this.chart || (isMove && !isNear(this.words, 0))) return;
    const { idx, left, top } = this.chart.cursor;
    const at = left >= 0 ? idx ?? null : null;
    const y = at !== null && top >= 0 && this.chart.over.matches(":hover") ? this.chart.posToVal(top, "y") : null;
    if (isMove && at === this.at && y === null) return;
    this.at = at;
    if (at !== null && this.isAlongTime) errorLines.goTo(this.chart.data[0][at] * 1000);
    const rows = this.rowsAt(at, y);
    const said = JSON.stringify(rows);
    if (said === this.said) return; // who hears it hears it once
    Object.assign(this, { rows, said });
    this.words.replaceChildren(...rows.map(([name, text, colour, dash]) => {
      const row = element("span", "", { className: "value" });
      if (colour) {
        const sign = element("span", "", { className: "sign" });
        sign.style.background = striped(colour, dash);
        row.append(sign);
      }
      row.append(element("span", name ? `${name} ` : ""), element("b", text), " ");
      return row;
    }));
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (!step || !this.chart || event.ctrlKey || event.metaKey || event.altKey) return;
    const { data, cursor } = this.chart;
    const last = data[0].length - 1;
    const at = Math.min(last, Math.max(0, (cursor.idx ?? (step > 0 ? -1 : last + 1)) + step));
    this.chart.setCursor({ left: this.chart.valToPos(data[0][at], "x"), top: -1 }, true, true);
    this.read(); // wherever the words are
    this.words.scrollIntoView({ block: "nearest" });
    event.preventDefault();
    event.stopPropagation();
  }

  get width() {
    return Math.max(240, this.holder.clientWidth);
  }

  /** The chart's numbers as text, one line for each place on its axis. */
  csv() {
    const cell = (value) => (typeof value === "string" ? `"${value.replaceAll('"', '""')}"` : value ?? "");
    const head = this.series.map((each) => each.label);
    return [head, ...this.chart.data[0].map((_, i) => this.chart.data.map((column) => column[i]))].map((row) => row.map(cell).join(",")).join("\r\n");
  }

  /** The chart with its name and what is said of it, as a picture. */
  picture() {
    const chart = this.chart.ctx.canvas;
    const scale = window.devicePixelRatio || 1;
    const canvas = Object.assign(document.createElement("canvas"), { width: chart.width, height: chart.height + (30 + 20 * this.rows.length) * scale });
    const context = canvas.getContext("2d");
    context.fillStyle = theme.colour("panel");
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(chart, 0, 26 * scale);
    context.scale(scale, scale);
    context.font = "14px system-ui, sans-serif";
    context.fillStyle = theme.colour("ink");
    context.fillText(this.name, 10, 18);
    context.lineWidth = 3;
    this.rows.forEach(([name, text, colour, dash], i) => {
      const y = chart.height / scale + 40 + 20 * i;
      context.strokeStyle = colour ?? "transparent";
      context.setLineDash(dash ?? []);
      context.beginPath();
      context.moveTo(10, y - 5);
      context.lineTo(10 + signWidth, y - 5);
      context.stroke();
      context.fillText(`${name} ${text}`.trim(), 18 + signWidth, y);
    });
    return canvas;
  }
}

/** Whether something is in the window or so close to it: what nobody sees is neither asked for nor put into words. */
const isNear = (box, pixels) => {
  const { top, bottom } = box.getBoundingClientRect();
  return bottom > -pixels && top < window.innerHeight + pixels;
};

/** Let the browser keep a file of this page's own. */
const keep = (blob, name) => {
  const link = element("a", "", { href: URL.createObjectURL(blob), download: name.replace(/[^\w.-]+/g, "_") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60e3);
};

/** A piece of a line as the background of a legend's sign: its colour may look like another's, its dashes do not. */
const striped = (colour, dash) => {
  if (!dash?.length) return colour;
  let at = 0;
  const stripes = dash.map((length, i) => `${i % 2 ? "transparent" : colour} ${at}px ${(at += length)}px`);
  return `repeating-linear-gradient(90deg, ${stripes.join(", ")})`;
};

const translucent = (hex) => `${hex}73`;

/** The name of a line of an answer, by the tags that tell its lines apart. */
const lineName = (by, of) => {
  if (by[0] === "host") return by[1] === "gpu" ? deviceName(of[0], of[1]) : printable(by.length > 1 ? `${of[0]} ${by[1]} ${of[1]}` : of[0]);
  return printable(by.map((name, i) => `${name} ${of[i]}`).join(" "));
};

/** Draw lines, those that are far from the others with names, and a band; `drawn` as `drawable` returns it. */
const drawLines = (place, drawn, { unit, isPercentiles, range, axis = "time", isLog = false, height = 230 }) => {
  const { x, band, lines } = drawn;
  const named = lines.length <= mostNamed ? lines : lines.filter((line) => line.isFar).slice(0, 2 * mostNamed);
  const others = lines.filter((line) => !named.includes(line));
  const [blue, ground] = [theme.colour("blue"), theme.colour("band")];
  const looks = named.filter((line) => !line.isMiddle);
  const look = (line) => (line.isMiddle ? [blue, []] : [theme.line(looks.indexOf(line)), lineDashes[looks.indexOf(line) % lineDashes.length]]);
  const plain = { points: { show: false }, spanGaps: false };
  const series = [
    { label: axisNames[axis] },
    ...(band ? [{ ...plain, label: "high", stroke: ground, width: 0 }, { ...plain, label: "low", stroke: ground, width: 0 }] : []),
    ...others.map((line) => ({ ...plain, label: line.name, stroke: translucent(blue), width: 1 })),
    ...named.map((line) => {
      const [stroke, dash] = look(line);
      return { label: line.name, stroke, dash, width: 2, spanGaps: false, points: line.isMiddle ? { show: false } : { size: 5 } };
    }),
  ];
  const options = {
    ...sharedOptions(place, height, axis),
    form: [axis, isLog, Boolean(band), named.length],
    series,
    axes: [horizontalAxis(axis), valueAxis(unit)],
    bands: band ? [{ series: [1, 2], fill: translucent(ground) }] : [],
  };
  options.scales.y = isLog ? { distr: 3 } : { range: valueRange };
  const words = (value) => reading(value, unit);
  const rowsAt = (at, y) => {
    const isNewest = at === null;
    const pick = (values) => (isNewest ? values.findLast((value) => value !== null && value !== undefined) : values[at]) ?? null;
    const read = (list) => list.map((line) => ({ line, value: pick(line.values) })).filter(({ value }) => value !== null);
    const rows = [["", isNewest ? "newest" : `${axisWords[axis]}${axisReading[axis](x[at])}`]];
    for (const { line, value } of read(named)) rows.push([line.name, words(value), ...look(line)]);
    const rest = read(others);
    const most = (isMore, list = rest) => list.reduce((a, b) => (isMore(b.value, a.value) ? b : a));
    if (rest.length) {
      const ends = [most((a, b) => a < b), most((a, b) => a > b)];
      const [low, high] = ends.map(({ value }) => words(value));
      const text = low === high ? low : ends.map(({ line, value }) => `${words(value)} (${line.name})`).join(" to ");
      const many = named.length ? counted(rest.length, "other", "others") : counted(rest.length, "line", "lines");
      rows.push([many, text, translucent(blue)]);
    }
    if (rest.length && y !== null) {
      const near = most((a, b) => Math.abs(a - y) < Math.abs(b - y), [...read(named), ...rest]);
      rows.push([`at the pointer: ${near.line.name}`, words(near.value)]);
    }
    const [low, high] = band ? [pick(band.low), pick(band.high)] : [null, null];
    if (low !== null && high !== null) rows.push([isPercentiles ? "5th to 95th percentile" : "lowest to highest", `${words(low)} to ${words(high)}`, ground]);
    return rows;
  };
  place.put(range, options, [x, ...(band ? [band.high, band.low] : []), ...[...others, ...named].map((line) => line.values)], rowsAt);
};
