// Colours that can be told apart with any kind of colour vision, in light and dark.

// Cividis (Nuñez, Anderton and Renslow, 2018, https://doi.org/10.1371/journal.pone.0199239) at nine places.
const sequential = [
  [0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115],
  [138, 134, 120], [165, 156, 116], [195, 179, 105], [254, 232, 56],
];
// From faster (blue) over as fast (grey) to slower (orange to dark red): brightness falls on both sides.
const diverging = [[33, 102, 172], [120, 170, 210], [205, 212, 218], [240, 165, 90], [204, 76, 2], [110, 20, 8]];
const divergingAt = [0.8, 0.9, 1.0, 1.1, 1.3, 2.0];

const mix = (from, to, share) => from.map((part, i) => Math.round(part + (to[i] - part) * share));

const css = (rgb) => `rgb(${rgb[0]} ${rgb[1]} ${rgb[2]})`;

/** A colour of a scale by its share; so few shades are all that there are that each is made, and judged, once. */
const shades = 256;
const scale = (colourAt) => {
  const made = Array.from({ length: shades + 1 }, (_, i) => css(colourAt(i / shades)));
  return (share) => made[Math.round(Math.min(1, Math.max(0, share)) * shades)];
};

const sequentialColour = scale((share) => {
  const place = share * (sequential.length - 1);
  const at = Math.min(sequential.length - 2, Math.floor(place));
  return mix(sequential[at], sequential[at + 1], place - at);
});

/** Of a share of what lies between the ends of the legend, 0.8 and 2. */
const ratioColourAt = scale((share) => {
  const ratio = 0.8 + share * 1.2;
  const at = Math.max(1, divergingAt.findIndex((each) => ratio <= each));
  return mix(diverging[at - 1], diverging[at], (ratio - divergingAt[at - 1]) / (divergingAt[at] - divergingAt[at - 1]));
});

const ratioColour = (ratio) => ratioColourAt((ratio - 0.8) / 1.2);

// What is brighter has three times the brightness of the dark panel; of red only that part counts which is seen without cones for it.
const sinking = 0.15;
const brightness = [0.114, 0.7152, 0.0722];

const linear = (part) => (part > 10 ? ((part / 255 + 0.055) / 1.055) ** 2.4 : part / 3294.6);

const judged = new Map();

/** Whether somebody could not tell a colour from the dark panel. */
const sinks = (colour) => {
  if (!judged.has(colour)) judged.set(colour, colour.match(/\d+/g).reduce((sum, part, i) => sum + brightness[i] * linear(part), 0) < sinking);
  return judged.get(colour);
};

const lineColours = {
  light: ["#b3261e", "#116b60", "#7a2f8c", "#9a5b00", "#1f5f9e", "#8a1d5b"],
  dark: ["#ff8a7a", "#5fd0bf", "#d49be0", "#f0b357", "#7db4ec", "#f08dc0"],
};
const lineDashes = [[], [8, 4], [2, 3], [10, 3, 2, 3], [4, 4], [14, 4]];

const theme = {
  chosen: "system",
  isDark: () => document.documentElement.dataset.theme === "dark",
  /** Apply the choice; every colour of the page follows from it. */
  apply() {
    const dark = this.chosen === "dark" || (this.chosen === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
  },
  next() {
    this.chosen = { system: "light", light: "dark", dark: "system" }[this.chosen];
    this.apply();
    return this.chosen;
  },
  colour: (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(),
  line: (number) => lineColours[theme.isDark() ? "dark" : "light"][number % 6],
};
