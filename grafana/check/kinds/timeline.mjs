// States over time: rows, and a legend with an entry for each state that occurs. For a missing value, Grafana uses `noValue`
// as a number if possible (an empty text is 0), otherwise as text. The code that draws the blocks is not in a package, but in
// Grafana's app (public/app/core/components/TimelineChart).
import { legend } from './legend.mjs';
import { nothing } from './table.mjs';

export function show({ data, theme }, panel, { frames, range }, room) {
  if (frames.length === 0) {
    return { message: nothing(panel) };
  }
  const timed = frames.filter(({ fields }) => fields.some(({ type, values }) => type === 'time' && typeof values[0] === 'number'));
  if (timed.length === 0) {
    return { message: 'Data does not have a time field' };
  }
  const fields = timed.flatMap((frame) => {
    const gaps = data.applyNullInsertThreshold({ frame, refFieldPseudoMin: range.from, refFieldPseudoMax: range.to });
    return data.nullToValue(gaps).fields.filter(({ type }) => type !== 'time');
  });
  const states = new Map();
  for (const field of fields) {
    for (const value of field.values) {
      const { text, color } = field.display(value);
      if (color && text) {
        states.set(text, { name: text, colour: color, noValue: text === panel.fieldConfig?.defaults?.noValue });
      }
    }
  }
  const entries = [...states.values()];
  const series = fields.map((field) => ({ name: field.shownAs(), last: lastState(field) }));
  return { states: entries, rows_: series, legend: legend(panel, entries, room) };
}

function lastState(field) {
  const last = [...field.values].reverse().find((value) => value !== null && value !== undefined);
  return last === undefined ? '' : field.display(last).text;
}
