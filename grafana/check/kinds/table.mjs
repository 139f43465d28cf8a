// A table: each cell's text and colour, each column's width (TableNG of @grafana/ui).
import { textWidth, wrapped } from '../layout.mjs';

const WIDTH = 150; // minimum width of a column without a width of its own
const PADDING = 2 * 6 + 1;
const ICON = 20; // width of the icon for sorting, and of the icon for a filter
const SIZE = 14;
const BORDER = 1;
const LINE = 22;
const HEADING = LINE + 12;
const ROW = { sm: 36, md: 42, lg: 48 }; // cellHeight

export function show({ data }, panel, { frames }, room) {
  const [frame] = frames; // Grafana shows only one of several frames, with a menu for the others
  const fields = (frame?.fields ?? []).filter(({ config }) => !config.custom?.hideFrom?.viz && !config.custom?.hidden);
  if (fields.length === 0 || frame.length === 0) {
    return { message: data.formattedValueToString({ text: nothing(panel) }) };
  }
  const sorted = panel.options?.sortBy?.map(({ displayName }) => displayName) ?? [];
  const available = room.width - 2 * BORDER;
  const widths = columnWidths(fields, available);
  const columns = fields.map((field, i) => {
    const name = field.shownAs();
    const icons = ICON * (sorted.includes(name) + Boolean(field.config.custom?.filterable));
    return {
      name,
      type: field.type,
      unit: field.config.unit ?? '',
      width: Math.round(widths[i]),
      cut: wraps(panel, field, 'wrapHeaderText') ? false : textWidth(name, SIZE, 500) + icons > widths[i] - PADDING,
    };
  });
  const { rows: indices, ordered } = order(panel, fields, frame.length);
  const least = ROW[panel.options?.cellHeight] ?? HEADING;
  const heights = [];
  const rows = indices.map((row) => {
    let lines = 0;
    const cells = fields.map((field, i) => {
      const value = field.values[row];
      const display = field.display(value);
      const text = data.formattedValueToString(display);
      const { type = 'auto' } = field.config.custom?.cellOptions ?? {};
      const inner = widths[i] - PADDING;
      const flow = drawsText(type) && wraps(panel, field, 'wrapText') ? wrapped(text, inner, SIZE) : null;
      lines = Math.max(lines, flow?.lines ?? 0);
      return {
        text,
        colour: type.startsWith('color') ? display.color : '',
        painted: type === 'color-background',
        missing: value === null || value === undefined || value === '',
        noValue: isNoValue(field, value, text),
        broken: flow?.broken,
        cut: drawsText(type) && !flow && textWidth(text, SIZE) > inner,
      };
    });
    heights.push(Math.max(least, lines > 0 ? lines * LINE + 12 : 0));
    return cells;
  });
  const taken = widths.reduce((sum, width) => sum + width, 0);
  const body = Math.round(room.height - HEADING - 2 * BORDER);
  const paged = Boolean(panel.options?.enablePagination);
  return { columns, rows, heights, body, paged, ordered, width: Math.round(available), taken: Math.round(taken), frames: frames.length };
}

export function nothing(panel) {
  return panel.fieldConfig?.defaults?.noValue || 'No data';
}

/** True if a missing value is shown as the text for an empty panel. */
export function isNoValue({ config }, value, text) {
  const none = value === null || value === undefined || value === '' || Number.isNaN(value);
  return none && Boolean(config.noValue) && text === config.noValue;
}

function wraps({ options = {} }, { config }, key) {
  return Boolean(config.custom?.[key] ?? config.custom?.cellOptions?.[key] ?? options[key]);
}

function drawsText(type) {
  return !['gauge', 'sparkline', 'image', 'actions', 'markdown'].includes(type);
}

function columnWidths(fields, available) {
  const own = fields.map(({ config }) => config.custom?.width ?? 0);
  const rest = available - own.reduce((sum, width) => sum + width, 0);
  const shared = rest / own.filter((width) => width === 0).length;
  return own.map((width, i) => width || Math.max(fields[i].config.custom?.minWidth ?? WIDTH, shared));
}

/** Sorts rows by all sort columns, the first column first. */
function order({ options = {} }, fields, length) {
  const keys = (options.sortBy ?? [])
    .map(({ displayName, desc }) => ({ field: fields.find((each) => each.shownAs() === displayName), sign: desc ? -1 : 1 }))
    .filter(({ field }) => field !== undefined);
  const known = ({ values }, row) => values[row] !== null && values[row] !== undefined;
  const compared = (field, one, other) => {
    if (!known(field, one) || !known(field, other)) {
      return Number(known(field, one)) - Number(known(field, other));
    }
    const [a, b] = [field.values[one], field.values[other]];
    return typeof a === 'number' ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  };
  const rows = [...Array(length).keys()].sort((one, other) =>
    keys.reduce((found, { field, sign }) => found || sign * compared(field, one, other), 0),
  );
  return { rows, ordered: keys.length > 0 };
}
