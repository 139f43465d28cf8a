// Sizes in pixels of panels and texts, from Grafana's grid, font and paddings.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import opentype from 'opentype.js';

const require = createRequire(import.meta.url);
const fonts = new Map(
  [400, 500].map((weight) => {
    const { buffer } = new Uint8Array(readFileSync(require.resolve(`@fontsource/inter/files/inter-latin-${weight}-normal.woff`)));
    return [weight, opentype.parse(buffer)];
  }),
);
const widths = new Map();

const PHONE = 769; // pixels; on a narrower page, each panel has the full width
const GRID = { columns: 24, margin: 8, cell: 30, page: 32 }; // page: space to the left and right of the dashboard
const PANEL = { header: 32, padding: 8, border: 1 };

/** Returns the width of a text in Inter, Grafana's font. */
export function textWidth(text, size, weight = 400) {
  const key = `${weight} ${text}`;
  if (!widths.has(key)) {
    widths.set(key, fonts.get(weight).getAdvanceWidth(text, 100) / 100);
  }
  return widths.get(key) * size;
}

export const onPhone = (page) => page < PHONE;

/** Returns the number of lines of a wrapped text, and its widest word. A word breaks only after a hyphen or a slash. */
export function wrapped(text, width, size) {
  const words = text.split(/(?<=[\s/-])/).map((word) => ({ word, own: textWidth(word.trim(), size), whole: textWidth(word, size) }));
  let [lines, taken] = [1, 0];
  for (const { own, whole } of words) {
    if (taken > 0 && taken + own > width) {
      [lines, taken] = [lines + 1, 0];
    }
    taken += whole;
  }
  return { lines, broken: words.find(({ own }) => own > width)?.word.trim() };
}

/** Returns the space inside a panel on a page of `page` pixels; a panel without a position has half of the page's width. */
export function room(panel, page) {
  const { w: own = 12, h = 8 } = panel.gridPos ?? {};
  const w = onPhone(page) ? GRID.columns : own;
  const column = (page - GRID.page - GRID.margin * (GRID.columns - 1)) / GRID.columns;
  return {
    width: column * w + GRID.margin * (w - 1) - 2 * (PANEL.padding + PANEL.border),
    height: GRID.cell * h + GRID.margin * (h - 1) - PANEL.header - 2 * PANEL.padding - PANEL.border,
    phone: onPhone(page),
  };
}

/** Returns the largest font size in which a text fits, like calculateFontSize of @grafana/ui. */
export function fontSize(text, width, height, weight = 500) {
  return Math.min(height / 1.2, (width / (textWidth(text, 14, weight) + 2)) * 14);
}
