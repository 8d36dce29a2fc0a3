// The events as a table: what the lanes show, with the words.

const mostEvents = 300;

class EventTable {
  constructor(body, text) {
    this.body = body;
    this.text = text;
  }

  /** Show the newest first; what is left out is said. */
  show(job, kind, find) {
    const wanted = job.events.filter((event) => kind === "" || laneOf(event.kind) === kind);
    const found = wanted.filter((event) => find === "" || `${event.host} ${event.gpu} ${event.text}`.toLowerCase().includes(find));
    const rows = found.slice(-mostEvents).reverse();
    this.body.replaceChildren(...rows.map((event) => this.row(event)));
    const left = found.length - rows.length + job.events_left_out;
    const parts = [counted(found.length, "event", "events")];
    if (find) parts.push(`with “${printable(find)}”`);
    if (left) parts.push(`${left.toLocaleString("en")} older not shown`);
    this.text.textContent = parts.join(", ");
  }

  row(event) {
    const lane = laneOf(event.kind);
    const what = element("td");
    what.append(element("span", laneSigns[lane], { className: lane === "verdict" || lane === "failure" ? "mark bad" : "mark" }), kindNames[event.kind] ?? event.kind);
    const row = document.createElement("tr");
    row.append(
      element("td", moment(event.time)),
      what,
      element("td", event.host ? deviceName(event.host, event.gpu) : ""),
      element("td", printable(event.text)),
    );
    return row;
  }
}
