// Lines over time: name, colour, dash and last value of each line, and the range of each axis.
import { range as axisRange } from '../axis.mjs';
import { legend } from './legend.mjs';
import { nothing } from './table.mjs';

export function show({ data, theme }, panel, { frames, range }, room) {
  const drawn = frames.filter(({ fields }) => fields.some(({ type }) => type === 'time')).flatMap(numbers);
  drawn.forEach((field, i) => (field.state = { ...field.state, seriesIndex: i }));
  if (drawn.length === 0) {
    const withoutTime = frames.some(({ fields }) => fields.length > 0);
    return { message: withoutTime ? 'Data is missing a time field' : nothing(panel) };
  }
  const series = drawn.map((field) => series_(data, theme, field));
  const entries = series.filter(({ hidden }) => !hidden);
  return {
    series,
    legend: legend(panel, entries, room),
    axes: axes(data, drawn.filter(({ config }) => !config.custom?.hideFrom?.viz)),
    range,
  };
}

function numbers({ fields }) {
  return fields.filter(({ type }) => type === 'number');
}

function series_(data, theme, field) {
  const last = lastOf(field);
  const { lineStyle, hideFrom } = field.config.custom ?? {};
  return {
    name: field.shownAs(),
    colour: theme.visualization.getColorByName(data.getFieldSeriesColor(field, theme).color),
    dash: lineStyle?.fill && lineStyle.fill !== 'solid' ? `${lineStyle.fill} ${lineStyle.dash ?? ''}`.trim() : 'solid',
    width: field.config.custom?.lineWidth ?? 1,
    fill: field.config.custom?.fillOpacity ?? 0,
    last: last === undefined ? '' : data.formattedValueToString(field.display(last)),
    points: field.values.filter((value) => Number.isFinite(value)).length,
    hidden: Boolean(hideFrom?.legend),
  };
}

function lastOf({ values }) {
  return [...values].reverse().find((value) => Number.isFinite(value));
}

/** Fields with the same unit and the same limits share an axis. */
function axes(data, fields) {
  const groups = new Map();
  for (const field of fields) {
    const { unit = '', min, max, custom = {} } = field.config;
    const key = JSON.stringify([unit, min, max, custom.axisSoftMin, custom.axisSoftMax, custom.axisPlacement, custom.scaleDistribution]);
    groups.set(key, [...(groups.get(key) ?? []), field]);
  }
  return [...groups.values()].map((sharing) => {
    const [{ config, display }] = sharing;
    const { custom = {} } = config;
    const values = stacked(sharing);
    const scale = custom.scaleDistribution ?? {};
    const [low, high] = axisRange(
      {
        min: config.min,
        max: config.max,
        softMin: custom.axisSoftMin,
        softMax: custom.axisSoftMax,
        centred: custom.axisCenteredZero,
        decimals: config.decimals,
        log: scale.type === 'log' ? (scale.log ?? 2) : undefined,
      },
      ...(values.length > 0 ? [values[0], values[values.length - 1]] : [null, null]),
    );
    const text = (value) => (value === null || value === undefined ? '' : data.formattedValueToString(display(value)));
    const now = Math.max(...sharing.map((field) => Math.abs(lastOf(field) ?? 0)));
    return {
      unit: config.unit ?? '',
      log: scale.type === 'log',
      symlog: scale.type === 'symlog',
      low,
      high,
      limit: config.max ?? custom.axisSoftMax ?? null,
      drawn: values.length > 0 ? [values[0], values[values.length - 1]] : [],
      now,
      shownNow: text(now),
      shown: [text(low), text(high)],
      shownDrawn: values.length > 0 ? [text(values[0]), text(values[values.length - 1])] : [],
    };
  });
}

/** Returns all drawn values in ascending order; stacked values are summed. */
function stacked(fields) {
  const found = [];
  const sums = new Map();
  for (const { config, values } of fields) {
    const stacks = (config.custom?.stacking?.mode ?? 'none') !== 'none';
    values.forEach((value, i) => {
      if (Number.isFinite(value)) {
        const below = stacks ? (sums.get(i) ?? 0) : 0;
        found.push(below + value);
        sums.set(i, below + value);
      }
    });
  }
  return Float64Array.from(found).sort();
}
