// Where the data come from: the server that served this page.

const tokenKey = "laggard-token";

class NeedsTokenError extends Error {}

class LiveData {
  constructor() {
    this.token = this.kept();
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
    const parameters = new URLSearchParams({ metric, start: Math.floor(range.start), end: Math.ceil(range.end), points });
    for (const [host, gpu] of devices) parameters.append("device", `${host}/${gpu}`);
    for (const tag of by) parameters.append("by", tag);
    return this.get("curve", parameters);
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

  async get(what, parameters) {
    const headers = this.token ? { "X-Laggard-Token": this.token } : {};
    const answer = await fetch(`page/${what}?${new URLSearchParams(parameters)}`, {
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
