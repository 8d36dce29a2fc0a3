// Where the data come from: the server that served this page.

const tokenKey = "laggard-token";

class NeedsTokenError extends Error {}

class LiveData {
  constructor() {
    this.token = this.kept();
    this.waiting = []; // curves that are asked for
  }

  /** The token outlives a reload of the tab, and nothing else. */
  kept() {
    try {
      return sessionStorage.getItem(tokenKey) ?? "";
    } catch {
      return "";
    }
  }

  useToken(token) {
    this.token = token;
    try {
      sessionStorage.setItem(tokenKey, token);
    } catch {
      // a browser without storage asks again after a reload
    }
  }

  /** The job: its range, metrics, events and accused devices. */
  job(range) {
    return this.get("job", { start: Math.floor(range.start), end: Math.ceil(range.end) });
  }

  /** The newest reading of every device. */
  map(metric, end) {
    return this.get("map", { metric, end: Math.ceil(end) });
  }

  /** One metric over time: lines by some tags, or of single devices, and a band of all other series. */
  curve(metric, range, points, { devices = [], by = [] }) {
    const asked = new URLSearchParams({ metric, start: Math.floor(range.start), end: Math.ceil(range.end), points });
    for (const [host, gpu] of devices) asked.append("device", `${host}/${gpu}`);
    for (const tag of by) asked.append("by", tag);
    return new Promise((resolve, reject) => {
      this.waiting.push({ asked: String(asked), resolve, reject });
      if (this.waiting.length === 1) setTimeout(() => this.askForCurves());
    });
  }

  /** Ask for all that were wanted at once, in one request. */
  async askForCurves() {
    const waiting = this.waiting.splice(0);
    try {
      const found = await this.get("curves", {}, JSON.stringify(waiting.map(({ asked }) => asked)));
      waiting.forEach(({ resolve, reject }, i) => (found[i].error ? reject(new Error(found[i].error.message)) : resolve(found[i])));
    } catch (error) {
      for (const { reject } of waiting) reject(error);
    }
  }

  /** The matrix of links at the end of a launch, or now; null if there is none. */
  async links(launch) {
    return (await this.get("links", { launch })).links;
  }

  /** What was written to standard error; null: it needs the token. */
  async lines(range, isLive) {
    if (!isLive) return [];
    if (!this.token) return null;
    try {
      return await this.get("lines", { start: Math.floor(range.start), end: Math.ceil(range.end) });
    } catch (error) {
      if (!(error instanceof NeedsTokenError)) throw error;
      this.token = "";
      return null;
    }
  }

  async get(what, parameters, body) {
    const headers = this.token ? { "X-Laggard-Token": this.token } : {};
    const answer = await fetch(`page/${what}?${new URLSearchParams(parameters)}`, {
      method: body ? "POST" : "GET",
      body,
      headers,
      cache: "no-store",
      signal: AbortSignal.timeout(30000),
    });
    if (answer.status === 401) throw new NeedsTokenError();
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error?.message ?? `the server answered with status ${answer.status}`);
    return found;
  }
}
