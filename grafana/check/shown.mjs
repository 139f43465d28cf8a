// What one panel would show, with the faults that the rules find in it.
import { frames } from './frames.mjs';
import { heatmap, histogram, points, text } from './kinds/others.mjs';
import { show as stat } from './kinds/stat.mjs';
import { show as table } from './kinds/table.mjs';
import { show as timeline } from './kinds/timeline.mjs';
import { show as timeseries } from './kinds/timeseries.mjs';
import { room } from './layout.mjs';
import { prepared } from './panel.mjs';
import { faults } from './rules.mjs';

const KINDS = {
  timeseries, table, stat, gauge: stat, bargauge: stat, 'state-timeline': timeline, 'status-history': timeline,
  histogram, heatmap, xychart: points, text,
};

/** `page` is how many pixels wide the board is, `range` from when to when in Unix milliseconds. */
export async function shown(library, { panel, answers, range, variables = {} }, page) {
  const show = KINDS[panel.type];
  try {
    if (show === undefined) {
      throw new Error(`panels of the kind ${panel.type} are not known to this check: teach it (kinds/)`);
    }
    const place = room(panel, page);
    const ready = await prepared(library, panel, frames(library, answers, panel.targets ?? []), range, variables);
    const made = { kind: panel.type, ...show(library, panel, ready, place) };
    return { ...made, faults: faults(made, panel) };
  } catch (error) {
    return { kind: panel.type, faults: [{ rule: 'error', line: error.message }], stack: error.stack };
  }
}
