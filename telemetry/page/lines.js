// What the program wrote to standard error, beside the charts: the newest lines of a range, and a moment's place in them.

const mostErrorLines = 300;

class ErrorLines {
  constructor(panel, list, text) {
    Object.assign(this, { panel, list, text, found: [], lines: [], shown: "", moment: null });
  }

  /** Show lines, or, if they are null, that they need the token. */
  show(found, find) {
    this.found = found;
    this.panel.hidden = found?.length === 0;
    byId("lines-token").hidden = found !== null;
    const speaker = ({ host, rank }) => (rank === null ? host : `${host} rank ${rank}`);
    const wanted = (found ?? []).filter((line) => `${speaker(line)} ${line.text}`.toLowerCase().includes(find));
    const lines = wanted.slice(-mostErrorLines);
    const left = wanted.length - lines.length;
    this.text.textContent = found === null ? "" : counted(wanted.length, "line", "lines") + (left ? `; ${left.toLocaleString("en")} older are shown if you zoom in` : "");
    const shown = JSON.stringify(lines);
    if (shown === this.shown) return;
    const isAtEnd = this.list.scrollTop + this.list.clientHeight >= this.list.scrollHeight - 4;
    Object.assign(this, { lines, shown });
    this.list.replaceChildren(...lines.map((line) => {
      const row = element("li");
      row.append(element("span", `${moment(line.time)} ${printable(speaker(line))} `, { className: "soft" }), printable(line.text));
      return row;
    }));
    this.mark();
    if (isAtEnd) this.list.scrollTop = this.list.scrollHeight;
  }

  /** Bring the newest line of a moment into view, and mark it. */
  goTo(ms) {
    if (ms === this.moment) return;
    this.moment = ms;
    const row = this.mark();
    this.list.scrollTop = row ? row.offsetTop - this.list.offsetTop - this.list.clientHeight / 2 : 0;
  }

  mark() {
    this.list.querySelector(".now")?.classList.remove("now");
    const row = this.list.children[this.lines.findLastIndex((line) => line.time <= this.moment)];
    row?.classList.add("now");
    return row;
  }
}

async function loadLines(job, shown, isStale) {
  const found = await data.lines(shown, job.live);
  if (!isStale()) errorLines.show(found, state.find);
}
