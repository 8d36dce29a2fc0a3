// The map of all devices: a block of squares for each node. Few nodes have a row each, with a name; many are packed.

const namedNodes = 32;
const squareSizes = [18, 15, 12, 10, 8, 7, 6, 5, 4];
const packedHeight = 420;
const labelFont = "13px system-ui, sans-serif";

class DeviceMap {
  constructor(holder, text, onSelect) {
    this.holder = holder;
    this.text = text;
    this.onSelect = onSelect;
    this.canvas = holder.appendChild(document.createElement("canvas"));
    this.devices = [];
    this.places = [];
    this.cursor = -1;
    holder.addEventListener("pointermove", (event) => this.point(event));
    holder.addEventListener("pointerleave", () => this.move(-1));
    holder.addEventListener("click", () => this.cursor >= 0 && onSelect(this.devices[this.cursor]));
    holder.addEventListener("keydown", (event) => this.key(event));
  }

  /** Show devices: {host, gpu, value, shown (what is coloured), accused, isUsed}. */
  show(devices, colour, describe, selected) {
    const now = this.devices[this.cursor];
    const grown = devices.length !== this.devices.length;
    Object.assign(this, { devices, colour, describe, selected });
    this.cursor = now ? devices.findIndex((each) => each.host === now.host && each.gpu === now.gpu) : -1;
    if (grown || !this.places.length) this.arrange();
    this.draw();
  }

  /** Find a place for each square, in the width that there is. */
  arrange() {
    const width = this.room();
    const nodes = new Map();
    this.devices.forEach((each, at) => nodes.set(each.host, [...(nodes.get(each.host) ?? []), at]));
    this.isNamed = nodes.size <= namedNodes;
    this.places = [];
    this.labels = [];
    this.resize(width, this.isNamed ? this.arrangeRows(nodes, width) : this.arrangePacked(nodes, width));
  }

  room() {
    return Math.max(120, this.holder.clientWidth);
  }

  resize(width, height) {
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    Object.assign(this, { width, height });
  }

  arrangeRows(nodes, width) {
    const context = this.canvas.getContext("2d");
    context.font = labelFont;
    const names = [...nodes.keys()];
    const longest = Math.max(0, ...names.map((name) => context.measureText(printable(name)).width));
    const label = Math.min(longest + 14, width * 0.45);
    const most = Math.max(1, ...[...nodes.values()].map((list) => list.length));
    const size = 20;
    const perLine = Math.max(1, Math.min(most, Math.floor((width - label - 8) / (size + 4))));
    const block = label + perLine * (size + 4) + 22;
    const columns = Math.max(1, Math.floor(width / block));
    const lines = Math.ceil(most / perLine);
    const rowHeight = lines * (size + 4) + 6;
    names.forEach((name, number) => {
      const left = (number % columns) * block;
      const top = Math.floor(number / columns) * rowHeight + 3;
      this.labels.push({ name, left, top: top + size / 2, width: label - 8 });
      nodes.get(name).forEach((at, i) => {
        this.places[at] = [left + label + (i % perLine) * (size + 4), top + Math.floor(i / perLine) * (size + 4), size];
      });
    });
    return Math.ceil(names.length / columns) * rowHeight + 4;
  }

  arrangePacked(nodes, width) {
    const most = Math.max(...[...nodes.values()].map((list) => list.length));
    let layout;
    for (const size of squareSizes) {
      const gap = size > 6 ? 2 : 1;
      const perLine = Math.max(1, Math.min(most, Math.floor((width - 4) / (size + gap))));
      const blockWidth = perLine * (size + gap) + gap + 2;
      const blockHeight = Math.ceil(most / perLine) * (size + gap) + gap + 2;
      const columns = Math.max(1, Math.floor(width / blockWidth));
      layout = { size, gap, perLine, blockWidth, blockHeight, columns };
      layout.height = Math.ceil(nodes.size / columns) * blockHeight;
      if (layout.height <= packedHeight) break;
    }
    const { size, gap, perLine, blockWidth, blockHeight, columns } = layout;
    [...nodes.values()].forEach((list, number) => {
      const left = (number % columns) * blockWidth;
      const top = Math.floor(number / columns) * blockHeight;
      list.forEach((at, i) => {
        this.places[at] = [left + (i % perLine) * (size + gap), top + Math.floor(i / perLine) * (size + gap), size];
      });
    });
    return layout.height + 4;
  }

  /** Clear the canvas for a new drawing, and return its context. */
  begin() {
    const scale = window.devicePixelRatio || 1;
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.font = labelFont;
    context.textBaseline = "middle";
    this.edge = theme.isDark() ? theme.colour("soft") : null;
    return context;
  }

  /** A square; one that would sink into the dark panel has an edge, in the gap around it. */
  square(context, x, y, size, colour, edge = this.edge) {
    if (edge && sinks(colour)) {
      context.fillStyle = edge;
      context.fillRect(x - 1, y - 1, size + 2, size + 2);
    }
    context.fillStyle = colour;
    context.fillRect(x, y, size, size);
  }

  draw() {
    const context = this.begin();
    context.fillStyle = theme.colour("ink");
    for (const label of this.labels) context.fillText(printable(label.name), label.left, label.top, label.width);
    const [empty, accused, ink] = [theme.colour("empty"), theme.colour("accused"), theme.colour("ink")];
    this.devices.forEach((each, at) => {
      const [x, y, size] = this.places[at];
      if (each.shown === null) this.square(context, x, y, size, empty, null);
      else this.square(context, x, y, size, this.colour(each.shown));
      if (!each.isUsed) this.cross(context, x, y, size, 0);
      if (each.accused) this.frame(context, x, y, size, accused, 3);
      if (each.accused && size >= 10) this.cross(context, x, y, size, 3);
      if (this.selected.has(`${each.host}/${each.gpu}`)) this.frame(context, x, y, size, ink, 3);
    });
    this.focusCursor(context);
  }

  focusCursor(context) {
    if (this.cursor < 0) return;
    const [x, y, size] = this.places[this.cursor];
    this.frame(context, x, y, size, theme.colour("focus"), 3);
  }

  frame(context, x, y, size, colour, width) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
  }

  /** A cross, or a stroke alone if it has no margin, that is seen on any colour, which so is not the only sign. */
  cross(context, x, y, size, margin) {
    const [near, far] = [margin, size - margin];
    for (const [colour, width] of [["#ffffff", margin ? 4 : 3], ["#000000", margin ? 1.6 : 1]]) {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.beginPath();
      context.moveTo(x + near, y + far);
      context.lineTo(x + far, y + near);
      if (margin) {
        context.moveTo(x + near, y + near);
        context.lineTo(x + far, y + far);
      }
      context.stroke();
    }
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    this.move(this.places.findIndex(([x, y, size]) => px >= x - 1 && px <= x + size + 1 && py >= y - 1 && py <= y + size + 1));
  }

  move(at) {
    if (at === this.cursor) return;
    this.cursor = at;
    const device = this.devices[at];
    this.text.textContent = device ? this.describe(device) : "";
    this.draw();
  }

  key(event) {
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (step && this.devices.length) this.move(this.cursor < 0 ? 0 : this.neighbour(...step));
    else if (event.key === "Enter" && this.cursor >= 0) this.onSelect(this.devices[this.cursor]);
    else return;
    event.preventDefault();
  }

  /** The nearest square in a direction, or the same one at the edge. */
  neighbour(dx, dy) {
    const [x, y] = this.places[this.cursor];
    let [best, nearest] = [this.cursor, Infinity];
    this.places.forEach(([px, py], at) => {
      const along = (px - x) * dx + (py - y) * dy;
      const aside = Math.abs((px - x) * dy) + Math.abs((py - y) * dx);
      if (along > 0 && along + 4 * aside < nearest) [best, nearest] = [at, along + 4 * aside];
    });
    return best;
  }

  /** Put the cursor on a device, as a search does. */
  goTo(at) {
    this.move(at);
    const place = this.places[at];
    if (place) this.holder.scrollTop = Math.max(0, place[1] - this.holder.clientHeight / 2);
  }
}
