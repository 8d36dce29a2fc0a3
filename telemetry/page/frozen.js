// Where the data come from in a report: they lie in the page itself, as averages over bins of time.

/** The job with the events of a range only; a launch that began before it goes on in it. */
const within = (job, range) => ({
  ...job,
  events: job.events.filter((event) => event.time <= range.end && (event.time >= range.start || event.kind === "launch")),
});

class FrozenData {
  constructor(text) {
    const { about, maps, curves, links, lines } = JSON.parse(text);
    Object.assign(this, { about, maps, curves, frozenLinks: links, errorLines: lines });
  }

  async job(range) {
    return within(this.about, range);
  }

  async map(metric) {
    return this.maps[metric];
  }

  async links(launch) {
    return this.frozenLinks[launch] ?? null;
  }

  async lines(range) {
    return this.errorLines.filter(({ time }) => time >= range.start && time <= range.end);
  }

  /** Lines by some tags, or those of devices; the band beside these is of all that were never found slow. */
  async curve(metric, range, points, { devices = [], by = [] }) {
    const found = this.curves[metric][JSON.stringify(by)];
    const { times, low, middle, high } = found;
    const inside = times.map((time) => time >= range.start && time <= range.end);
    const cut = (values) => values?.filter((_, i) => inside[i]);
    const all = this.rows(found);
    const chosen = ([host, gpu]) => all.find(({ of: [h, g] }) => h === host && g === gpu) ?? { of: [host, gpu], values: times.map(() => null) };
    const lines = (by.length ? all : devices.map(chosen)).map((line) => ({ ...line, values: cut(line.values) }));
    return { ...found, times: cut(times), low: cut(low), middle: cut(middle), high: cut(high), lines };
  }

  /** Each line is a row of 32-bit numbers, NaN for none. */
  rows(curve) {
    const { of: names, far, times, lines } = curve;
    const value = (number) => (Number.isNaN(number) ? null : number);
    const read = (numbers) => names.map((of, row) => ({ of, is_far: far[row], values: times.map((_, i) => value(numbers.getFloat32(4 * (row * times.length + i), true))) }));
    curve.read ??= read(new DataView(Uint8Array.from(atob(lines), (sign) => sign.charCodeAt(0)).buffer));
    return curve.read;
  }
}
