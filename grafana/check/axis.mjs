// The range of an axis. @grafana/ui computes it with uPlot's functions from the limits of the fields on this axis.
// @grafana/ui itself is not installed, because it needs 500 MB and a dependency that is in no registry. golden/axes.json
// has the ranges that its UPlotScaleBuilder (12.4.0) computed from the same limits and data.
import { uPlot } from './library.mjs';

const PADDING = 0.1;

/** Returns the lowest and highest value of the axis; `low` and `high` are the limits of the data (null without data). */
export function range({ min, max, softMin, softMax, log, centred, decimals }, low, high) {
  if (log) {
    const to = (value, round) => (value > 0 ? log ** round(power(value, log)) : null);
    min = to(min, Math.floor);
    max = to(max, Math.ceil);
  }
  const onlyMin = softMin == null && min != null;
  const onlyMax = softMax == null && max != null;
  if (low == null && high == null && !(onlyMin && onlyMax)) {
    return [low, high];
  }
  if (centred && !log) {
    const far = Math.max(Math.abs(low), Math.abs(high)) || 80;
    [low, high] = [-far, far];
  }
  let found;
  if (log) {
    found = uPlot.rangeLog(min ?? low, max ?? high, log, true);
  } else {
    const side = (hard, soft, none) => ({ pad: PADDING, hard: hard ?? none, soft: soft ?? 0, mode: soft == null ? 3 : 1 });
    const limits = { min: side(min, softMin, -Infinity), max: side(max, softMax, Infinity) };
    found = uPlot.rangeNum(onlyMin ? min : low, onlyMax ? max : high, limits);
  }
  if (decimals === 0) {
    found = log ? wholeLog(found, log) : [Math.floor(found[0]), Math.ceil(found[1])];
  }
  if (!log) {
    found = [onlyMin ? min : found[0], onlyMax ? max : found[1]];
  }
  return found[0] >= found[1] ? [log ? 1 : 0, 100] : found;
}

function wholeLog([low, high], base) {
  const from = low <= 1 ? 1 : base ** Math.floor(power(low, base));
  const to = base ** Math.ceil(power(high, base));
  return [from, from === to ? to * base : to];
}

function power(value, base) {
  return base === 2 ? Math.log2(value) : Math.log10(value);
}
