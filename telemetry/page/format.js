// Words and numbers, as people read them.

const escapes = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069]/g;

/** Names come from programs and networks: what would steer a terminal or turn the text around is shown as a sign. */
const printable = (text) => String(text).replace(escapes, "\ufffd");

const deviceName = (host, gpu) => printable(gpu === "" ? host : `${host} gpu ${gpu}`);

/** Significant digits, and the prefix that fits. */
const number = (value, digits = 4) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e21) return value.toExponential(digits - 2);
  for (const [limit, sign] of [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= limit) return `${plain(value / (sign === "k" ? 1e3 : limit), digits)} ${sign}`;
  }
  return size < 1e-3 ? value.toExponential(digits - 2) : plain(value, digits);
};

const plain = (value, digits = 4) => String(Number(value.toPrecision(digits)));

/** Numbers in words that tell them apart. */
const toldApart = (values, digits = 4) => {
  const words = values.map((value) => number(value, digits));
  return digits < 15 && new Set(words).size < new Set(values).size ? toldApart(values, digits + 1) : words;
};

/** A reading with its unit; times of probes are shown in milliseconds, and ratios as a distance from the peers. */
const reading = (value, unit) => {
  if (value === null || value === undefined) return "no reading";
  if (unit === "s" && Math.abs(value) < 1) return `${plain(value * 1000)} ms`;
  if (unit === "peers") return againstPeers(value);
  return `${number(value)}${unit ? ` ${unit}` : ""}`;
};

const againstPeers = (ratio) => {
  const percent = Math.round((ratio - 1) * 1000) / 10;
  if (ratio >= 3) return `${plain(ratio)} times as slow as its peers`;
  if (Math.abs(percent) < 0.1) return "as fast as its peers";
  return percent > 0 ? `${percent} % slower than its peers` : `${-percent} % faster than its peers`;
};

/** Of a link: its time against that of all links. */
const againstMedian = (ratio) => {
  if (ratio === null) return "the median is 0";
  const percent = Math.round((ratio - 1) * 1000) / 10;
  if (ratio >= 1.5) return `${Number(ratio.toPrecision(2))} times the median`;
  if (Math.abs(percent) < 0.1) return "the median";
  return percent > 0 ? `${percent} % above the median` : `${-percent} % below the median`;
};

const two = (value) => String(value).padStart(2, "0");

const clock = (ms) => {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
};

const day = (ms) => {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
};

const moment = (ms) => (day(ms) === day(Date.now()) ? clock(ms) : `${day(ms)} ${clock(ms)}`);

const span = (ms) => {
  const seconds = Math.round(ms / 1000);
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 360) / 10} h`;
  return `${Math.round(seconds / 8640) / 10} days`;
};

/** Hours, minutes and seconds. */
const stopwatch = (seconds) => {
  const whole = Math.round(seconds);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
};

const counted = (count, one, many) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

/** An element with text; text never becomes markup. */
const element = (tag, text = "", properties = {}) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.textContent = text;
  return made;
};

const byId = (id) => document.getElementById(id);
