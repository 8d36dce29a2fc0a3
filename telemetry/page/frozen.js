// Where the data come from in a report: they lie in the page itself, as averages over bins of time.

const mostLinesOfReport = 64;

/** The job with the events of a range only; a launch that began before it goes on in it. */
const within = (job, range) => ({
  ...job,
  events: job.events.filter((event) => event.time <= range.end && (event.time >= range.start || event.kind === "launch")),
});

class FrozenData {
  constructor(text) {
    const { about, maps, curves, links } = JSON.parse(text);
    Object.assign(this, { about, maps, curves, frozenLinks: links });
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

  /** The band is that of all devices that were never found slow, whatever is chosen. */
  async curve(metric, range, points, { devices = [], by = [] }) {
    const curve = this.curves[metric];
    const inside = curve.times.map((time) => time >= range.start && time <= range.end);
    const cut = (values) => values.filter((_, i) => inside[i]);
    const accused = new Set(this.about.accused.map(([host, gpu]) => `${host}/${gpu}`));
    const isFar = ([host, gpu]) => !by.length || accused.has(`${host}/${gpu}`) || accused.has(`${host}/`);
    const isAll = by.length > 0 && curve.devices.length > 0 && curve.devices.length <= mostLinesOfReport;
    const chosen = by.length ? curve.devices.filter((device) => isAll || isFar(device)) : devices;
    const lines = chosen.map((of) => ({ of, is_far: isFar(of), values: cut(this.line(curve, ...of)) }));
    const { unit, n_series: count, is_percentiles: isPercentiles, times, low, middle, high } = curve;
    const band = isAll || !count ? { n_series: 0 } : { n_series: count, is_percentiles: isPercentiles, low: cut(low), middle: cut(middle), high: cut(high) };
    return { unit, by: ["host", "gpu"], times: cut(times), lines, ...band };
  }

  /** One device's values: a row of 16-bit numbers between the lowest and the highest value, 65535 for none. */
  line(curve, host, gpu) {
    const row = curve.devices.findIndex(([h, g]) => h === host && g === gpu);
    if (row < 0) return curve.times.map(() => null);
    curve.codes ??= new DataView(Uint8Array.from(atob(curve.lines), (sign) => sign.charCodeAt(0)).buffer);
    const width = curve.times.length;
    return curve.times.map((_, i) => {
      const code = curve.codes.getUint16(2 * (row * width + i), true);
      return code === 65535 ? null : curve.lowest + (code / 65534) * (curve.highest - curve.lowest);
    });
  }
}
