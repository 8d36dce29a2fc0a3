// Who sends to whom how fast: senders in rows, receivers in columns, coloured by the time over the median of all links.

const largestCell = 34;
const smallestNamedCell = 11;
const matrixHeight = 900;
const markWidth = 16;
const linksEveryMs = 10e3;

class LinkMatrix extends DeviceMap {
  constructor(holder, text) {
    super(holder, text, () => {});
    Object.assign(this, { names: [], shortNames: [], accused: {} });
  }

  /** Show a matrix as the server gives it. */
  showLinks({ names, seconds, median, kind, accused }) {
    const cells = names.flatMap((host, row) => names.map((gpu, column) => {
      const value = seconds[row * names.length + column];
      return { host, gpu, row, column, value, shown: value === null || !(median > 0) ? null : value / median };
    }));
    const isSame = JSON.stringify(names) === JSON.stringify(this.names);
    Object.assign(this, { names, accused });
    if (!isSame || this.width !== this.room()) this.places = [];
    this.show(cells.filter((each) => kind === "leaves" || each.row !== each.column), ratioColour, this.describe, new Set());
    const pointed = this.devices[this.cursor];
    this.text.textContent = pointed ? this.describe(pointed) : "";
  }

  describe({ host, gpu, value, shown }) {
    const which = host === gpu ? `below ${printable(host)}` : `${printable(host)} → ${printable(gpu)}`;
    const slow = [...new Set([host, gpu])].flatMap((name) => this.slowOf(name)).map((name) => `; ${printable(name)} was found slow`);
    return `${which}: ${value === null ? "never met" : `${reading(value, "s")}, ${againstMedian(shown)}`}${slow.join("")}`;
  }

  /** The nodes of a row that were found slow. */
  slowOf(name) {
    return Object.hasOwn(this.accused, name) ? this.accused[name] : [];
  }

  arrange() {
    const width = this.room();
    const count = Math.max(1, this.names.length);
    const context = this.canvas.getContext("2d");
    context.font = labelFont;
    this.shortNames = withoutDomains(this.names).map(printable);
    const longest = Math.ceil(Math.max(0, ...this.shortNames.map((name) => context.measureText(name).width)));
    const label = Math.floor(Math.min(longest + markWidth + 6, width * 0.35));
    const fitting = (room) => Math.max(3, Math.min(largestCell, Math.floor(matrixHeight / count), Math.floor(room / count)));
    this.isNamed = fitting(width - label - 2) >= smallestNamedCell;
    this.left = this.isNamed ? label : markWidth;
    this.top = this.isNamed ? Math.min(longest + markWidth + 6, 120) : markWidth;
    this.step = fitting(width - this.left - 2);
    const size = this.step - (this.step > 6 ? 2 : 1);
    this.places = this.devices.map(({ row, column }) => [this.left + column * this.step, this.top + row * this.step, size]);
    this.labels = [];
    this.resize(width, this.top + count * this.step + 4);
  }

  draw() {
    const context = this.begin();
    this.devices.forEach((each, at) => {
      const [x, y, size] = this.places[at];
      if (each.shown === null) this.drawMissing(context, x, y, size);
      else this.drawMet(context, x, y, size, each.shown);
    });
    this.shortNames.forEach((name, number) => this.drawName(context, name, number));
    this.focusCursor(context);
  }

  drawMet(context, x, y, size, ratio) {
    this.square(context, x, y, size, ratioColour(ratio));
    if (size < 28 || ratio < 1.05) return;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = ratio < 1.2 ? "#000000" : "#ffffff";
    context.textAlign = "center";
    context.fillText(shortRatio(ratio), x + size / 2, y + size / 2, size - 2);
    context.textAlign = "left";
  }

  /** A pair that never met: a dot on the panel's own ground, which no time has. */
  drawMissing(context, x, y, size) {
    const dot = size > 6 ? 2 : 1;
    context.fillStyle = theme.colour("soft");
    context.fillRect(x + (size - dot) / 2, y + (size - dot) / 2, dot, dot);
  }

  drawName(context, name, number) {
    const isAccused = this.slowOf(this.names[number]).length > 0;
    const middle = number * this.step + this.step / 2 - 1;
    const length = this.names.length * this.step;
    context.fillStyle = theme.colour(isAccused ? "accused" : "ink");
    context.font = isAccused ? `bold ${labelFont}` : labelFont;
    const text = (room) => `${this.isNamed ? fittedTo(context, name, room - markWidth) : ""}${isAccused ? " ▸" : ""}`;
    context.textAlign = "right";
    context.fillText(text(this.left), this.left - 4, this.top + middle);
    context.save();
    context.translate(this.left + middle, this.top - 4);
    context.rotate(-Math.PI / 2);
    context.textAlign = "left";
    context.fillText(isAccused ? `◂ ${text(this.top).slice(0, -2)}` : text(this.top), 0, 0);
    context.restore();
    context.textAlign = "left";
    if (!isAccused) return;
    context.strokeStyle = theme.colour("accused");
    context.lineWidth = 2;
    context.strokeRect(this.left - 1.5, this.top + number * this.step - 1.5, length + 1, this.step + 1);
    context.strokeRect(this.left + number * this.step - 1.5, this.top - 1.5, this.step + 1, length + 1);
  }
}

/** Names up to their first dot, if they differ there. */
const withoutDomains = (names) => {
  const short = names.map((name) => name.split(".")[0]);
  return new Set(short).size === names.length && !short.includes("") ? short : names;
};

/** The end of a name that fits, since the names of a job's nodes begin alike. */
const fittedTo = (context, name, width) => {
  if (context.measureText(name).width <= width) return name;
  let kept = name.slice(1);
  while (kept.length > 1 && context.measureText(`…${kept}`).width > width) kept = kept.slice(1);
  return `…${kept}`;
};

const shortRatio = (ratio) => `${ratio < 9.95 ? ratio.toFixed(1) : Math.min(999, Math.round(ratio))}×`;

const links = { launch: null, shown: "", due: 0 };

/** The launches, the newest first; of a job that has ended, the one in which a node was found slow is shown first. */
const launchOf = (job) => {
  const accused = new Set(job.accused.filter(([, gpu]) => gpu === "").map(([host]) => host));
  const found = job.live ? null : job.launches.findLast((launch) => launch.nodes.some((host) => accused.has(host)));
  return String((found ?? job.launches.at(-1))?.number ?? "");
};

async function loadLinks(job, isStale) {
  const panel = byId("links-panel");
  panel.hidden = !job.metrics.some((each) => each.kind === "link");
  if (panel.hidden) return;
  const choices = job.launches.map(({ number }) => [String(number), `launch ${number}`]).reverse();
  const launch = links.launch ?? launchOf(job);
  fill(byId("links-launch"), choices, launch);
  byId("links-launch").value = launch;
  byId("links-launch").parentElement.hidden = choices.length < 2;
  const wanted = JSON.stringify([launch, job.accused]);
  if (wanted === links.shown && Date.now() < links.due) {
    linkMatrix.draw(); // in the colours of now
    return;
  }
  const found = await data.links(launch);
  if (isStale()) return;
  const nextMs = found ? linksEveryMs : 0;
  Object.assign(links, { shown: wanted, due: job.live ? Date.now() + nextMs : Infinity });
  drawLinks(found);
}

function drawLinks(found) {
  byId("links").hidden = !found;
  byId("links-help").hidden = !found;
  if (!found) {
    byId("links-legend").replaceChildren();
    byId("links-text").textContent = "No link was measured yet in this launch.";
    return;
  }
  linkMatrix.showLinks(found);
  const { kind, left_out: leftOut, n_links: count } = found;
  const notes = [`${counted(count, "link", "links")}, median ${reading(found.median, "s")}`];
  if (linkMatrix.devices.some((each) => each.value === null)) notes.push("dot: never met");
  if (Object.keys(found.accused).length) notes.push("▸ and a frame: found slow");
  if (kind === "leaves") notes.push("each square: the links from a leaf switch to another");
  if (leftOut) notes.push(`the slowest first, each with those that it has met; ${counted(leftOut, ...(kind === "leaves" ? ["leaf", "leaves"] : ["node", "nodes"]))} left out`);
  showLegend(byId("links-legend"), ratioColourAt, ["20 % below the median", "twice the median"], notes);
}
