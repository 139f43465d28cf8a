// How much room there is, in pixels, and how much a text takes: Grafana's grid, its font, its paddings.
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

const GRID = { columns: 24, margin: 8, cell: 30, page: 32 }; // page: what the whole board has left and right of it
const PANEL = { header: 32, padding: 8, border: 1 };

/** Width of a text in Inter, which Grafana writes in. */
export function textWidth(text, size, weight = 400) {
  const key = `${weight} ${text}`;
  if (!widths.has(key)) {
    widths.set(key, fonts.get(weight).getAdvanceWidth(text, 100) / 100);
  }
  return widths.get(key) * size;
}

/** The room within a panel on a page that is `page` pixels wide; a panel without a place is half as wide as that. */
export function room(panel, page) {
  const { w = 12, h = 8 } = panel.gridPos ?? {};
  const column = (page - GRID.page - GRID.margin * (GRID.columns - 1)) / GRID.columns;
  return {
    width: column * w + GRID.margin * (w - 1) - 2 * (PANEL.padding + PANEL.border),
    height: GRID.cell * h + GRID.margin * (h - 1) - PANEL.header - 2 * PANEL.padding - PANEL.border,
  };
}

/** The largest font in which a text fits, as @grafana/ui's calculateFontSize finds it. */
export function fontSize(text, width, height, weight = 500) {
  return Math.min(height / 1.2, (width / (textWidth(text, 14, weight) + 2)) * 14);
}
