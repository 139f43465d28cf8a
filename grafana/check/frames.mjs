// Converts Prometheus' answers to data frames, like Grafana's Prometheus data source, in the same two steps. The back end
// makes one frame for each series (pkg/promlib/converter/prom.go and querydata/response.go of grafana/grafana). The front
// end makes tables and heatmaps from these frames (packages/grafana-prometheus/src/result_transformer.ts).
// golden/frames.json has the frames that the real front end made from the same input.

const LEGEND = /\{\{\s*(.+?)\s*\}\}/g;

/** Returns the frames of a panel's answers. An answer has `refId`, `step` in seconds, and `data` from Prometheus' API. */
export function frames({ data }, answers, targets) {
  const target = (frame) => targets.find(({ refId }) => refId === frame.refId) ?? {};
  const all = answers.flatMap((answer) => fromBackEnd(answer, target(answer)));
  all.filter((frame) => target(frame).legendFormat === '__auto').forEach((frame) => nameByMetric(data, frame, all));
  const asTable = (frame) => target(frame).format === 'table';
  return [...all.filter((frame) => !asTable(frame)), ...tables(all.filter(asTable))];
}

export function fromBackEnd({ refId, step, data }, target) {
  if (data.result.length === 0) {
    return [{ refId, meta: {}, fields: [], length: 0 }]; // an empty answer is a frame without fields
  }
  return data.result.map(({ metric, values, value }) => {
    const points = values ?? [value];
    const label = legend(target, metric);
    return {
      refId,
      meta: {
        type: data.resultType === 'vector' ? 'numeric-multi' : 'timeseries-multi',
        typeVersion: [0, 1],
        custom: { resultType: data.resultType },
      },
      fields: [
        { name: 'Time', type: 'time', config: { interval: step * 1000 }, values: points.map(([at]) => Math.trunc(at * 1000)) },
        {
          name: metric.__name__ ?? 'Value',
          type: 'number',
          labels: metric,
          config: label ? { displayNameFromDS: label } : {},
          values: points.map(([, text]) => sample(text)),
        },
      ],
      length: points.length,
    };
  });
}

/** Returns a series' name; empty if Grafana makes the name from the labels. */
function legend({ legendFormat = '', expr }, labels) {
  if (legendFormat === '__auto') {
    return Object.keys(labels).length > 0 ? '' : expr;
  }
  if (legendFormat !== '') {
    return legendFormat.replace(LEGEND, (_, name) => labels[name] ?? '');
  }
  const { __name__: name = '', ...others } = labels;
  const pairs = Object.keys(others).sort().map((key) => `${key}=${JSON.stringify(others[key])}`);
  return pairs.length > 0 ? `${name}{${pairs.join(', ')}}` : name || expr;
}

/** A field with the metric's name gets its display name from its labels, like a field with the name Value. */
function nameByMetric(data, frame, all) {
  for (const field of frame.fields) {
    if (field.labels?.__name__ !== undefined && field.labels.__name__ === field.name) {
      field.config.displayNameFromDS = data.getFieldDisplayName({ ...field, name: 'Value' }, frame, all);
    }
  }
}

function sample(text) {
  const number = Number(text.replace(/Inf$/, 'Infinity'));
  return text === 'NaN' ? NaN : number;
}

function grouped(items, key) {
  const groups = new Map();
  for (const item of items) {
    groups.set(key(item), [...(groups.get(key(item)) ?? []), item]);
  }
  return groups;
}

/** Returns a table for each query: a row for each point, and a column for each label of its series. */
function tables(parts) {
  if (parts.length === 0 || (parts.length === 1 && parts[0].length === 0)) {
    return parts;
  }
  const queries = grouped(parts, ({ refId }) => refId);
  return [...queries].map(([refId, series]) => {
    const names = [...new Set(series.flatMap(({ fields }) => Object.keys(fields[1]?.labels ?? {}).sort()))];
    const rows = series.flatMap(({ fields: [time, value] }) =>
      (time?.values ?? []).map((at, i) => ({ at, labels: value.labels, value: value.values[i] })),
    );
    rows.sort((one, other) => one.at - other.at);
    return {
      refId,
      meta: { ...series[0].meta, preferredVisualisationType: 'rawPrometheus' },
      fields: [
        { name: 'Time', type: 'time', config: { interval: series[0].fields[0]?.config.interval }, values: rows.map(({ at }) => at) },
        ...names.map((name) => ({
          name,
          type: 'string',
          config: { filterable: true },
          values: rows.map(({ labels }) => labels[name] ?? ''),
        })),
        {
          name: queries.size > 1 ? `Value #${refId}` : 'Value',
          type: 'number',
          config: {},
          values: rows.map(({ value }) => value),
        },
      ],
      length: rows.length,
    };
  });
}
