// Rules for the content of a panel. Each rule gets the content of one panel from `shown.mjs`, and returns a line for each
// fault.
import { onPhone } from './layout.mjs';

const TOO_FAR = 100; // maximum ratio of an axis' end to the largest drawn value
const NEAR = 10; // minimum colour difference (CIE76); shades of a colour differ by 5, the first twelve of the classic palette by 10.4
const MANY = 8; // maximum number of series that must all have different looks
const PAGES = { dark: '#181b1f', light: '#ffffff' }; // colors.background.primary of both themes
const FAINT = 2; // minimum contrast of a line; the first hues of the classic palette have at least 1.96
const SENTENCE = 4; // minimum number of words of a sentence
const LARGE = 24; // font size in pixels that is too large for a sentence
const FEW = 3; // maximum number of examples for a fault
const WORDS = 4.5; // minimum contrast of a word on its cell: WCAG AA
const COLOURED = 3; // minimum contrast of a coloured word on both pages; no colour reaches 4.5 on both
const INK = ['#f7f8fa', '#202226']; // colours of a word on a dark and on a light cell (getTextColorForAlphaBackground of @grafana/ui)
const LONG = 20; // minimum number of rows of a table that may scroll
const STRIP = 5; // height in grid rows of a table with only one or two rows
const METRICS = /\b(?:infercanary_\w+|\w+:\w+[\w:]*)/g;
const TIMES = ['s', 'ms', 'µs', 'ns', 'dtdurations', 'dthms', 'clocks'];
const UNITS = {
  seconds: TIMES, bytes: ['bytes', 'decbytes'], ratio: ['percentunit'], celsius: ['celsius'], hertz: ['hertz', 'rothz'],
  watts: ['watt'], joules: ['joule'],
};

const listed = (texts) => {
  const unique = [...new Set(texts)];
  const more = unique.length > FEW ? ` and ${unique.length - FEW} more` : '';
  return unique.slice(0, FEW).map((text) => `«${text}»`).join(', ') + more;
};
const some = (texts, line) => (texts.length > 0 ? [line(listed(texts), texts.length)] : []);

/** Returns all visible texts, except names and the text for an empty panel. */
function texts({ rows = [], values = [], series = [], axes = [], states = [] }) {
  return [
    ...rows.flat().map(({ text }) => text),
    ...values.map(({ text }) => text),
    ...series.map(({ last }) => last),
    ...axes.flatMap(({ shown }) => shown),
    ...states.map(({ name }) => name),
  ];
}

function names({ columns = [], values = [], series = [], rows_ = [] }) {
  const shown = values.filter(({ name }) => name !== '');
  return [...columns, ...shown, ...series.filter(({ hidden }) => !hidden), ...rows_].map(({ name }) => name);
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

function tooWide({ width, taken }, { gridPos = {} }, { page }) {
  const scrolls = onPhone(page) && gridPos.h > STRIP; // on a phone, a list may scroll
  return taken > width + 1 && !scrolls ? [`its columns take ${taken} pixels of ${width}`] : [];
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

function faint({ series = [], values = [], rows = [] }, { options = {} }) {
  const drawn = series.filter(({ hidden, points, width }) => !hidden && points > 0 && width !== 0);
  const cells = rows.flat().filter(({ colour, painted, text }) => colour && !painted && text !== '');
  const written = [...(options.colorMode === 'value' ? values : []), ...cells].filter(({ text }) => text !== '');
  return Object.entries(PAGES).flatMap(([theme, page]) => {
    const below = (least) => ({ colour }) => colour && contrast(colour, page) < least;
    const faint = [...drawn.filter(below(FAINT)), ...written.filter(below(COLOURED))];
    return some(faint.map(({ name, text }) => name || text), (found) => `can hardly be seen on a ${theme} page: ${found}`);
  });
}

function wordOnCell({ rows = [], values = [] }, { options = {} }) {
  const tiles = /^background/.test(options.colorMode ?? '') ? values : [];
  const painted = [...rows.flat().filter((cell) => cell.painted), ...tiles].filter(({ colour, text }) => colour && text !== '');
  const bad = painted.filter(({ colour }) => contrast(colour, INK[Number(brightness(colour) > 180)]) < WORDS);
  return some(bad.map(({ text, colour }) => `${text} on ${colour}`), (found) => `has words with less contrast than ${WORDS}: ${found}`);
}

function brokenWord({ rows = [] }) {
  return some(rows.flat().map(({ broken }) => broken).filter(Boolean), (found) => `has words that are wider than their cell: ${found}`);
}

function hiddenRows({ rows = [], heights = [], body, paged }) {
  let taken = 0;
  const fit = heights.filter((height) => (taken += height) <= body).length;
  return [
    ...(paged ? ['is paged'] : []),
    ...(Math.max(...heights) > body ? [`has a row of ${Math.max(...heights)} pixels in ${body}`] : []),
    ...(fit < rows.length && rows.length < LONG ? [`shows ${fit} of its ${rows.length} rows`] : []),
  ];
}

function noOrder({ rows = [], ordered }, { targets = [], transformations = [] }) {
  const sorts = transformations.some(({ id }) => id === 'sortBy') || targets.some(({ expr }) => /\b(sort\w*|topk|bottomk)\s*\(/.test(expr));
  return rows.length > targets.length && !ordered && !sorts ? [`has ${rows.length} rows in no order`] : [];
}

/** Finds numbers of one column or legend with the same unit, but a different number of decimals. */
function mixedDecimals({ columns = [], rows = [], series = [] }) {
  const lists = [...columns.map((_, i) => rows.map((row) => row[i].text)), series.filter(({ hidden }) => !hidden).map(({ last }) => last)];
  return lists.flatMap((list) => {
    const numbers = list.map((text) => /^[-+−]?[\d,]+(\.\d+)?(\D*)$/.exec(text)).filter(Boolean);
    const bad = numbers.find(([, part = '', unit]) => numbers.some(([, other = '', same]) => same === unit && other.length !== part.length));
    return bad ? [`has numbers with different decimals: ${listed(numbers.filter(([, , unit]) => unit === bad[2]).map(([text]) => text))}`] : [];
  });
}

function symlogAxis({ axes = [] }) {
  return axes.some(({ symlog }) => symlog) ? ['has a symlog axis'] : [];
}

/** Finds buckets with missing points. Grafana subtracts buckets by position, so it would subtract values of different times. */
function unequalBuckets(_, __, { answers }) {
  return answers.flatMap(({ refId, data }) => {
    const lengths = data.result.filter(({ metric }) => 'le' in metric).map(({ values = [] }) => values.length);
    return new Set(lengths).size > 1 ? [`has buckets of unequal length in ${refId}`] : [];
  });
}

/** Compares the unit in a metric's name with the field's unit, if the query does not divide, count or make a rate. */
function otherUnit(_, { targets = [] }, { units }) {
  return some(targets.flatMap(({ refId, expr }) => {
    const found = [...new Set(units.filter((each) => each.refId === refId).map(({ unit }) => unit))];
    const endings = (expr.match(METRICS) ?? []).map((name) => name.replace(/:\w*$/, '').match(/[a-z]+$/)[0]);
    const counts = /^\s*count\b/.test(expr) || (/\b(increase|rate)\(/.test(expr) && !/_(seconds|bytes|joules)/.test(expr));
    const wrong = counts
      ? found.filter((unit) => Object.values(UNITS).flat().includes(unit) && unit !== 'percentunit')
      : /[/*-]\s|rate|increase|count|time\(\)/.test(expr) || endings.length !== 1 || !(endings[0] in UNITS)
        ? []
        : found.filter((unit) => !UNITS[endings[0]].includes(unit));
    return wrong.map((unit) => `${refId} in ${unit || 'no unit'}`);
  }), (which) => `has a query in another unit: ${which}`);
}

/** Finds lines whose values depend on the shown time range. */
function rangeInLines(_, { targets = [] }) {
  return targets.some(({ expr, instant }) => !instant && /\$\{?__range|@\s*(end|start)\(\)/.test(expr)) ? ['draws lines that depend on the time range'] : [];
}

function sameName({ series = [] }) {
  const all = series.filter(({ hidden }) => !hidden).map(({ name }) => name);
  return some(all.filter((name, i) => all.indexOf(name) < i), (found) => `has several series with one name: ${found}`);
}

function sameRow({ rows = [] }) {
  const all = rows.map((row) => row.map(({ text }) => text).join(' | '));
  return some(all.filter((row, i) => all.indexOf(row) < i), (found) => `has a row more than once: ${found}`);
}

function unitOnText({ columns = [] }) {
  const wrong = columns.filter(({ type, unit }) => type === 'string' && !['', 'string', 'none'].includes(unit));
  return some(wrong.map(({ name, unit }) => `${name} in ${unit}`), (found) => `has a unit on text: ${found}`);
}

function farAxis({ axes = [] }) {
  return axes.flatMap(({ log, high, limit, drawn, shown, shownDrawn, now, shownNow }) => {
    // An axis may extend to a configured limit, because small values should then look small.
    if (log || drawn.length === 0 || (limit !== null && high <= limit)) {
      return [];
    }
    const most = Math.max(...drawn.map(Math.abs));
    if (most === 0 || high > TOO_FAR * most) {
      return [`its axis ends at ${shown[1]}, far above the largest drawn value, ${shownDrawn[1]}`];
    }
    return now > 0 && high > TOO_FAR * now ? [`its axis ends at ${shown[1]}, far above the current value, ${shownNow}`] : [];
  });
}

function longLegend({ legend }) {
  return legend && legend.height > legend.room ? [`its legend takes ${legend.height} pixels of ${legend.room}`] : [];
}

function missingField({ message = '' }) {
  return /time field/.test(message) ? [`says «${message}»`] : [];
}

function severalTables({ frames = 1 }) {
  return frames > 1 ? [`has ${frames} tables, and shows one of them`] : [];
}

export const RULES = {
  notANumber, unreadableNumber, badName, bareId, cutText, tooWide, emptyColumn, noValueBesideValues, sentenceInLarge,
  nameless, alike, faint, sameName, sameRow, unitOnText, farAxis, longLegend, missingField, severalTables,
  wordOnCell, brokenWord, hiddenRows, noOrder, mixedDecimals, symlogAxis, unequalBuckets, otherUnit, rangeInLines,
};

/** Returns rule → faults in a panel's content; `context` has the answers, the units and the page. */
export function faults(shown, panel, context) {
  return Object.entries(RULES).flatMap(([rule, find]) => find(shown, panel, context).map((line) => ({ rule, line })));
}

/** Returns the visible distance of two colours (CIE76, D65). */
export function distance(one, other) {
  const [a, b] = [lab(one), lab(other)];
  return Math.hypot(...a.map((value, i) => value - b[i]));
}

/** Returns the contrast of two colours (WCAG 2). */
function contrast(one, other) {
  const [low, high] = [one, other].map((colour) => linear(colour)).map(([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b).sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

/** Returns the brightness from 0 to 255, like tinycolor. */
function brightness(colour) {
  const [r, g, b] = rgb(colour);
  return 255 * (0.299 * r + 0.587 * g + 0.114 * b);
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
