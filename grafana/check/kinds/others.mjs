// Kinds of which Grafana's app draws most: histogram, heatmap, points of one number against another, text.
import { legend } from './legend.mjs';
import { nothing } from './table.mjs';

const LABEL = 14; // pixels that the label of a bucket takes
const AXIS = 40; // and the time axis with the colours' scale below

export function histogram({ data, theme }, panel, { frames }, room) {
  const made = data.buildHistogram(frames, { bucketCount: 30, ...panel.options }, theme);
  if (made === null || made.counts.length === 0 || made.counts.every(({ values }) => values.length === 0)) {
    return { message: nothing(panel) };
  }
  const source = frames.flatMap(({ fields }) => fields.filter(({ type }) => type === 'number'));
  const series = made.counts.map((field, i) => ({
    name: source[i].shownAs(),
    colour: theme.visualization.getColorByName(data.getFieldSeriesColor(source[i], theme).color),
    dash: 'solid',
    width: 1,
    last: '',
    points: source[i].values.length,
  }));
  const ends = [made.xMin.values[0], made.xMax.values[made.xMax.values.length - 1]];
  return {
    series,
    legend: legend(panel, series, room),
    buckets: made.xMin.values.length,
    ends: ends.map((end) => data.formattedValueToString(source[0].display(end))),
  };
}

export function heatmap({ data }, panel, { frames }, room) {
  const [frame] = frames.filter(({ length, fields }) => length > 0 && fields.length > 1);
  if (frame === undefined) {
    return { message: nothing(panel) };
  }
  const buckets = frame.fields.filter(({ type }) => type === 'number');
  const { filterValues = {}, cellValues = {}, yAxis = {} } = panel.options ?? {};
  const format = data.getValueFormat(cellValues.unit ?? 'short');
  const values = buckets.flatMap((field) => field.values).filter((value) => value > (filterValues.le ?? -Infinity));
  const unit = data.getValueFormat(yAxis.unit ?? 'short');
  const bound = ({ name }) => (Number.isFinite(Number(name)) ? data.formattedValueToString(unit(Number(name), yAxis.decimals)) : name);
  return {
    buckets: buckets.length,
    bounds: buckets.map(bound),
    labels: { height: buckets.length * LABEL, room: Math.round(room.height - AXIS), shown: yAxis.axisPlacement !== 'hidden' },
    scale: values.length === 0 ? [] : [least(values), most(values)].map((v) => data.formattedValueToString(format(v, cellValues.decimals))),
  };
}

export function points({ data }, panel, { frames }) {
  const names = frames.flatMap(({ fields }) => fields.map((field) => field.shownAs()));
  const empty = frames.every(({ length, fields }) => length === 0 || fields.length === 0);
  if (empty) {
    return { message: nothing(panel) };
  }
  const wanted = (panel.options?.series ?? []).flatMap(({ x, y }) => [x, y]).map((field) => field?.matcher?.options);
  const columns = frames.flatMap(({ fields }) => fields).map((field) => ({
    name: field.shownAs(),
    type: field.type,
    unit: field.config.unit ?? '',
    texts: [...field.values].slice(0, 5).map((value) => data.formattedValueToString(field.display(value))),
  }));
  return { points: frames[0].length, fields: columns, absent: wanted.filter((name) => typeof name === 'string' && !names.includes(name)) };
}

export function text(_, panel) {
  return { content: panel.options?.content ?? '' };
}

const least = (values) => values.reduce((one, other) => Math.min(one, other), Infinity);
const most = (values) => values.reduce((one, other) => Math.max(one, other), -Infinity);
