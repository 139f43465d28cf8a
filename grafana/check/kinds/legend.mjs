// A legend below or beside a panel, and its size (VizLegend of @grafana/ui).
import { textWidth } from '../layout.mjs';

const ICON = 14 + 8;
const GAP = 10;
const SIZE = 12;
const LINE = 23;
const PADDING = 8;
const SHARE = { bottom: 0.35, right: 1 }; // maximum share of the panel's height; the rest of the legend scrolls

const SEEN = 3; // minimum number of lines of a table that are visible without scrolling

/** Returns the needed and the available height of `entries` with a `name`; null without a legend. */
export function legend({ options = {} }, entries, room) {
  const { showLegend = true, displayMode = 'list', placement: wanted = 'bottom' } = options.legend ?? {};
  if (!showLegend || displayMode === 'hidden') {
    return null;
  }
  const placement = room.phone ? 'bottom' : wanted; // as in VizLayout
  const table = displayMode === 'table';
  const lines = table ? Math.min(entries.length, SEEN) + 1 : placement === 'right' ? entries.length : linesOf(entries, room.width - 2 * GAP);
  return { placement, height: lines * LINE + PADDING, room: Math.round(room.height * SHARE[placement]) };
}

function linesOf(entries, width) {
  let [lines, taken] = [1, 0];
  for (const { name } of entries) {
    const own = ICON + textWidth(name, SIZE) + GAP;
    if (taken > 0 && taken + own > width) {
      lines += 1;
      taken = 0;
    }
    taken += own;
  }
  return lines;
}
