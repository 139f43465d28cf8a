// Panels of current numbers: stat (BigValue of @grafana/ui), bar gauge and gauge.
import { fontSize } from '../layout.mjs';
import { isNoValue } from './table.mjs';

const GAP = 8;
const NAME_SIZE = 30; // largest font size of a name, pixels

export function show({ data, theme }, panel, { frames, fieldConfig }, room) {
  const { reduceOptions = { calcs: [] }, orientation = 'auto', textMode = 'auto' } = panel.options ?? {};
  const found = data.getFieldDisplayValues({
    fieldConfig,
    reduceOptions: { ...reduceOptions, calcs: reduceOptions.calcs ?? [] },
    replaceVariables: (text) => text,
    theme,
    data: frames,
    timeZone: 'utc',
  });
  const empty = !frames.some(({ length, fields }) => length > 0 && fields.length > 0);
  const horizontal = orientation === 'horizontal' || (orientation === 'auto' && room.width <= room.height);
  const each = horizontal
    ? { width: room.width, height: (room.height + GAP) / found.length - GAP }
    : { width: room.width / found.length - GAP, height: room.height };
  const mode = textMode === 'auto' && panel.type === 'stat' ? (found.length === 1 ? 'value' : 'value_and_name') : textMode;
  const values = found.map(({ display, field }) => {
    const value = data.formattedValueToString(display);
    const name = display.title ?? '';
    const shown = mode === 'name' ? name : mode === 'none' ? '' : value;
    return {
      name: panel.type === 'stat' && ['value', 'name', 'none'].includes(mode) ? '' : name,
      hiddenName: name,
      text: shown,
      colour: display.color ?? '',
      size: Math.round(panel.options?.text?.valueSize ?? size(panel, shown, mode, each)),
      noValue: !empty && isNoValue({ config: field }, Number.isFinite(display.numeric) ? 0 : null, value),
    };
  });
  return empty ? { message: values[0].text, messageSize: values[0].size } : { values };
}

/** Returns the font size of the value, in pixels. */
function size(panel, text, mode, { width, height }) {
  if (panel.type !== 'stat') {
    return NAME_SIZE / 2;
  }
  const padding = height > 100 ? 12 : 8;
  const wide = width / height > 2.5;
  const named = mode === 'value_and_name';
  const share = wide && named ? 0.3 : 1;
  const title = !wide && named ? Math.min(NAME_SIZE, (height * 0.15) / 1.2) * 1.2 : 0;
  return fontSize(text || '1', (width - 2 * padding) * share, height - 2 * padding - title);
}
