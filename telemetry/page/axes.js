// What lies along the axis of a chart: time, the steps of the training, or each launch from its own start.

const axisNames = { time: "time", step: "step", launch: "time since launch" };
const smoothings = [["0", "as it is"], ["0.6", "a little"], ["0.9", "more"], ["0.97", "much"]];

/** The number of the launch of each time; -1 before the first. */
const launchesAt = (times, launches) => {
  let at = -1;
  return times.map((time) => {
    while (at + 1 < launches.length && launches[at + 1].began <= time) at += 1;
    return at;
  });
};

/** The lines of an answer, of which a band's middle is one: {name, isFar, values}. */
const linesOf = (answer, nameOf) => {
  const lines = answer.lines.map((line) => ({ name: nameOf(answer.by, line.of), of: line.of, isFar: line.is_far, values: line.values }));
  return answer.n_series ? [{ name: middleName(answer), of: [], isFar: true, isMiddle: true, values: answer.middle }, ...lines] : lines;
};

const middleName = ({ n_series: count, is_percentiles: isMedian }) => (count === 1 && !isMedian ? "value" : `${isMedian ? "median" : "mean"} of ${count.toLocaleString("en")}`);

/** Over time: a value that is missing is passed over, and only where a launch ended a line is cut. */
const overTime = (answer, lines, launches) => {
  const at = launchesAt(answer.times, launches);
  const cuts = answer.times.map((_, i) => i).filter((i) => i > 0 && at[i] !== at[i - 1] && at[i - 1] >= 0);
  const cut = (values, gap) => {
    const parts = values.map((value) => value ?? undefined);
    for (const i of [...cuts].reverse()) parts.splice(i, 0, gap);
    return parts;
  };
  const times = answer.times.map((time) => time / 1000);
  for (const i of [...cuts].reverse()) times.splice(i, 0, (times[i - 1] + times[i]) / 2);
  const band = answer.n_series > 1 ? { low: cut(answer.low, null), high: cut(answer.high, null) } : null;
  return { x: times, band, lines: lines.map((line) => ({ ...line, values: cut(line.values, null) })) };
};

/** A line for each launch, all from 0 on. */
const sinceLaunch = (answer, lines, launches, width) => {
  const at = launchesAt(answer.times, launches);
  const pieces = lines.flatMap((line) => launches.map((launch, number) => ({
    ...line,
    name: lines.length > 1 ? `${line.name}, launch ${launch.number}` : `launch ${launch.number}`,
    isFar: line.isFar || lines.length === 1,
    isMiddle: false,
    points: answer.times.flatMap((time, i) => (at[i] === number && line.values[i] !== null ? [[(time - launch.began) / 1000, line.values[i]]] : [])),
  })));
  return onGrid(pieces.filter((piece) => piece.points.length), width);
};

/** Over the steps: what a later launch did again counts, and what was lost is left out. */
const overSteps = (answer, lines, launches, steps, most) => {
  const at = launchesAt(answer.times, launches);
  const known = new Map(steps.lines.map((line) => [line.of.join("\n"), stepsAt(steps.times, line.values)]));
  const all = stepsAt(steps.times, steps.times.map((_, i) => [...steps.lines.map((line) => line.values[i]), steps.middle?.[i]].reduce((a, b) => (b !== undefined && b !== null && (a === null || b > a) ? b : a), null)));
  const pieces = lines.map((line) => {
    const stepOf = (steps.by.length && known.get(line.of.join("\n"))) || all;
    let [points, launch] = [[], null];
    answer.times.forEach((time, i) => {
      const step = stepOf(time);
      if (step === null || line.values[i] === null) return;
      if (launch !== null && at[i] !== launch) points = points.filter(([x]) => x < step);
      launch = at[i];
      points.push([step, line.values[i]]);
    });
    return { ...line, isMiddle: false, points };
  });
  const xs = pieces.flatMap((piece) => piece.points.map(([x]) => x));
  const [low, high] = [xs.reduce((a, b) => Math.min(a, b), Infinity), xs.reduce((a, b) => Math.max(a, b), -Infinity)];
  return onGrid(pieces.filter((piece) => piece.points.length), Math.max(1, Math.ceil((high - low) / most)));
};

/** The newest known step at a time; null before the first. Times are asked for in order. */
const stepsAt = (times, values) => {
  const known = times.map((time, i) => [time, values[i]]).filter(([, step]) => step !== null && step !== undefined);
  return (time) => {
    let [from, to] = [0, known.length];
    while (from < to) {
      const middle = (from + to) >> 1;
      if (known[middle][0] <= time) from = middle + 1;
      else to = middle;
    }
    return from ? known[from - 1][1] : null;
  };
};

/** Lines with points of their own on places that they share; of several points at one place the last counts. */
const onGrid = (pieces, width) => {
  const place = (x) => Math.floor(x / width);
  const places = [...new Set(pieces.flatMap((piece) => piece.points.map(([x]) => place(x))))].sort((a, b) => a - b);
  const number = new Map(places.map((each, i) => [each, i]));
  const lines = pieces.map(({ points, ...line }) => {
    const values = new Array(places.length).fill(undefined);
    for (const [x, value] of points) values[number.get(place(x))] = value;
    return { ...line, values };
  });
  return { x: places.map((each) => each * width), band: null, lines };
};

/** An exponential moving average that begins with the first value, and anew after a gap. */
const smoothed = (values, weight) => {
  let [sum, norm] = [0, 0];
  return values.map((value) => {
    if (value === null) [sum, norm] = [0, 0];
    if (value === null || value === undefined) return value;
    [sum, norm] = [weight * sum + (1 - weight) * value, weight * norm + 1 - weight];
    return sum / norm;
  });
};

/** An answer as it is drawn along the axis that is chosen. */
const drawable = (answer, { axis, launches, steps, weight, isLog, most }) => {
  const lines = linesOf(answer, lineName);
  let found = overTime(answer, lines, launches);
  if (axis === "launch") found = sinceLaunch(answer, lines, launches, Math.max(1, smallestStep(answer.times) / 1000));
  if (axis === "step") found = overSteps(answer, lines, launches, steps, most);
  const shown = (values) => (isLog ? values.map((value) => (value > 0 || value === null ? value : undefined)) : values);
  const { x, band } = found;
  return {
    x,
    band: band && { low: shown(band.low), high: shown(band.high) },
    lines: found.lines.map((line) => ({ ...line, values: shown(weight ? smoothed(line.values, weight) : line.values) })),
  };
};

const smallestStep = (times) => times.reduce((least, time, i) => (i ? Math.min(least, time - times[i - 1]) : least), Infinity);
