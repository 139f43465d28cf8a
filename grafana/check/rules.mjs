// What a panel must not show. Each rule takes what `shown.mjs` says of one panel and gives a line for each fault.

const TOO_FAR = 100; // an axis' end over what is drawn
const NEAR = 10; // CIE76: shades of a colour lie 5 apart, the first twelve of the classic palette at least 10.4
const MANY = 8; // series, of which more than these cannot all look different by their names alone
const PAGES = { dark: '#181b1f', light: '#ffffff' }; // colors.background.primary of both themes
const FAINT = 2; // contrast: the first hues of the classic palette have 1.96 at least
const SENTENCE = 4; // words
const LARGE = 24; // pixels of a font, from which on a sentence shouts
const FEW = 3; // examples of a fault

const listed = (texts) => {
  const unique = [...new Set(texts)];
  const more = unique.length > FEW ? ` and ${unique.length - FEW} more` : '';
  return unique.slice(0, FEW).map((text) => `«${text}»`).join(', ') + more;
};
const some = (texts, line) => (texts.length > 0 ? [line(listed(texts), texts.length)] : []);

/** All texts that somebody reads, but names and the text for an empty panel. */
function texts({ rows = [], values = [], series = [], axes = [], states = [], scale = [], ends = [], fields = [] }) {
  return [
    ...rows.flat().map(({ text }) => text),
    ...values.map(({ text }) => text),
    ...series.map(({ last }) => last),
    ...axes.flatMap(({ shown }) => shown),
    ...states.map(({ name }) => name),
    ...scale,
    ...ends,
    ...fields.flatMap((field) => field.texts),
  ];
}

function names({ columns = [], values = [], series = [], rows_ = [], fields = [] }) {
  const shown = values.filter(({ name }) => name !== '');
  return [...columns, ...shown, ...series.filter(({ hidden }) => !hidden), ...rows_, ...fields].map(({ name }) => name);
}

function notANumber(shown) {
  return some([...texts(shown), ...names(shown)].filter((text) => /\bNaN\b|Invalid date/.test(text)), (found) => `shows ${found}`);
}

function unreadableNumber(shown) {
  return some(texts(shown).filter((text) => /^-?0?\.0{4}\d*\D*$/.test(text)), (found) => `shows ${found}, a number that nobody can read`);
}

function badName(shown) {
  const bad = (name) =>
    name.trim() === '' || /\b(undefined|null)\b/.test(name) || /^(Value|Value #[A-Z]+|Series \(.*\)|Field)$/.test(name) || /\w+="/.test(name);
  return some(names(shown).filter(bad), (found) => `has the name ${found}, which says nothing`);
}

function bareId(shown) {
  return some(names(shown).filter((name) => /^(sha256:)?[0-9a-f]{12,}$/.test(name)), (found) => `is named by the bare id ${found}`);
}

function cutText({ columns = [], rows = [] }) {
  const cells = rows.flat().filter(({ cut }) => cut).map(({ text }) => text);
  return [
    ...some(columns.filter(({ cut }) => cut).map(({ name }) => name), (found) => `cuts the heading ${found}`),
    ...some(cells, (found, count) => `cuts ${count} of its cells: ${found}`),
  ];
}

function tooWide({ width, taken }) {
  return taken > width + 1 ? [`its columns take ${taken} pixels of ${width}`] : [];
}

function emptyColumn({ columns = [], rows = [] }) {
  const empty = columns.filter((_, i) => rows.length > 0 && rows.every((row) => row[i].missing)).map(({ name }) => name);
  return some(empty, (found) => `has a column without a value in any row: ${found}`);
}

function noValueBesideValues({ rows = [], values = [], states = [] }) {
  const found = [...rows.flat(), ...values, ...(states.length > 1 ? states : [])].filter(({ noValue }) => noValue).map(({ text, name }) => text ?? name);
  return some(found, (which, count) => `writes the text for an empty panel beside values, ${count} times: ${which}`);
}

function sentenceInLarge({ message, messageSize = 0, values = [] }) {
  const all = [...values.map(({ text, size }) => [text, size]), [message ?? '', messageSize]];
  const large = all.filter(([text, size]) => size > LARGE && text.split(/\s+/).length >= SENTENCE);
  return large.length > 0 ? [`writes a sentence in ${large[0][1]} pixels: ${listed(large.map(([text]) => text))}`] : [];
}

function nameless({ values = [] }, { targets = [] }) {
  const telling = targets.some(({ legendFormat = '' }) => legendFormat.includes('{{')) || targets.length > 1;
  const hidden = telling ? values.filter(({ name, hiddenName, text }) => name === '' && hiddenName !== text && hiddenName !== '') : [];
  return hidden.length > 0 ? [`shows ${listed(hidden.map(({ text }) => text))} without the name ${listed(hidden.map(({ hiddenName }) => hiddenName))}`] : [];
}

function alike({ series = [] }) {
  const seen = series.filter(({ hidden, points, width }) => !hidden && points > 0 && width !== 0);
  const [different, pairs] = [[], []];
  for (const one of seen) {
    const other = different.find((before) => before.dash === one.dash && distance(before.colour, one.colour) < NEAR);
    if (other) {
      pairs.push(`${other.name} and ${one.name}`);
    } else {
      different.push(one);
    }
  }
  if (seen.length > MANY && pairs.length <= seen.length / 4) {
    return [];
  }
  return some(pairs, (found, count) => `draws ${count} of ${seen.length} series in the colour and dash of another: ${found}`);
}

function faint({ series = [], values = [] }, { options = {} }) {
  const drawn = series.filter(({ hidden, points, width }) => !hidden && points > 0 && width !== 0);
  const written = options.colorMode === 'value' ? values.filter(({ text }) => text !== '') : [];
  return Object.entries(PAGES).flatMap(([theme, page]) => {
    const faint = [...drawn, ...written].filter(({ colour }) => colour && contrast(colour, page) < FAINT);
    return some(faint.map(({ name }) => name), (found) => `can hardly be seen on a ${theme} page: ${found}`);
  });
}

function sameName({ series = [] }) {
  const all = series.filter(({ hidden }) => !hidden).map(({ name }) => name);
  return some(all.filter((name, i) => all.indexOf(name) < i), (found) => `has several series of one name: ${found}`);
}

function sameRow({ rows = [] }) {
  const all = rows.map((row) => row.map(({ text }) => text).join(' | '));
  return some(all.filter((row, i) => all.indexOf(row) < i), (found) => `has a row more than once: ${found}`);
}

function unitOnText({ columns = [], fields = [] }) {
  const wrong = [...columns, ...fields].filter(({ type, unit }) => type === 'string' && !['', 'string', 'none'].includes(unit));
  return some(wrong.map(({ name, unit }) => `${name} in ${unit}`), (found) => `has a unit on text: ${found}`);
}

function farAxis({ axes = [] }) {
  return axes.flatMap(({ log, high, limit, drawn, shown, shownDrawn, now, shownNow }) => {
    // Up to a limit that was set an axis may go: below it, little is what should be seen.
    if (log || drawn.length === 0 || (limit !== null && high <= limit)) {
      return [];
    }
    const most = Math.max(...drawn.map(Math.abs));
    if (most === 0 || high > TOO_FAR * most) {
      return [`its axis goes to ${shown[1]}, and what is drawn to ${shownDrawn[1]}`];
    }
    return now > 0 && high > TOO_FAR * now ? [`its axis goes to ${shown[1]}, which flattens what is drawn now, ${shownNow}`] : [];
  });
}

function longLegend({ legend }) {
  return legend && legend.height > legend.room ? [`its legend takes ${legend.height} pixels of ${legend.room}`] : [];
}

function labelsOverEachOther({ labels }) {
  return labels?.shown && labels.height > labels.room ? [`its ${labels.height / 14} buckets have labels that take ${labels.height} pixels of ${labels.room}`] : [];
}

function missingField({ message = '', absent = [] }) {
  return [
    ...(/time field/.test(message) ? [`says «${message}»`] : []),
    ...some(absent, (found) => `wants the field ${found}, which it does not have`),
  ];
}

function severalTables({ frames = 1 }) {
  return frames > 1 ? [`has ${frames} tables, and shows one of them`] : [];
}

export const RULES = {
  notANumber, unreadableNumber, badName, bareId, cutText, tooWide, emptyColumn, noValueBesideValues, sentenceInLarge,
  nameless, alike, faint, sameName, sameRow, unitOnText, farAxis, longLegend, labelsOverEachOther, missingField, severalTables,
};

/** Rule → its lines, of those that find something in what a panel shows. */
export function faults(shown, panel) {
  const found = Object.entries(RULES).flatMap(([rule, find]) => find(shown, panel).map((line) => ({ rule, line })));
  return found;
}

/** How far two colours are apart for the eye (CIE76, D65). */
export function distance(one, other) {
  const [a, b] = [lab(one), lab(other)];
  return Math.hypot(...a.map((value, i) => value - b[i]));
}

/** How much lighter one is than the other (WCAG 2). */
function contrast(one, other) {
  const [low, high] = [one, other].map((colour) => linear(colour)).map(([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b).sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

function linear(colour) {
  return rgb(colour).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
}

function lab(colour) {
  const [r, g, b] = linear(colour);
  const f = (t) => (t > 0.008856 ? Math.cbrt(t) : 7.787 * t + 16 / 116);
  const x = f((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505);
  const y = f(0.2126 * r + 0.7152 * g + 0.0722 * b);
  const z = f((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089);
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

function rgb(colour) {
  const hex = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})/i.exec(colour);
  const parts = hex ? hex.slice(1).map((part) => parseInt(part, 16)) : (colour.match(/[\d.]+/g) ?? [0, 0, 0]).slice(0, 3).map(Number);
  return parts.map((part) => part / 255);
}
