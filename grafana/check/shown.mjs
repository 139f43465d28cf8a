// Content that one panel would show, with the faults found by the rules.
import { frames } from './frames.mjs';
import { show as stat } from './kinds/stat.mjs';
import { show as table } from './kinds/table.mjs';
import { show as timeline } from './kinds/timeline.mjs';
import { show as timeseries } from './kinds/timeseries.mjs';
import { room } from './layout.mjs';
import { prepared } from './panel.mjs';
import { faults } from './rules.mjs';

const KINDS = { timeseries, table, stat, 'state-timeline': timeline };

/** `pages` are widths of the dashboard in pixels; the first page is shown. `range` has begin and end in Unix milliseconds. */
export async function shown(library, { panel, answers, range, variables = {} }, pages) {
  try {
    const show = KINDS[panel.type];
    if (show === undefined) {
      throw new Error(`this check does not support panels of the kind ${panel.type}: add the kind to kinds/`);
    }
    const made = [];
    for (const page of pages) {
      const ready = await prepared(library, panel, frames(library, answers, panel.targets ?? []), range, variables);
      const units = ready.frames.flatMap(({ refId, fields }) =>
        fields.filter(({ type }) => type === 'number').map(({ config }) => ({ refId, unit: config.unit ?? '' })),
      );
      const drawn = { kind: panel.type, ...show(library, panel, ready, room(panel, page)) };
      made.push({ ...drawn, faults: faults(drawn, panel, { answers, units, page }) });
    }
    const [first, ...others] = made;
    const lines = new Set(first.faults.map(({ line }) => line));
    const narrow = others.flatMap(({ faults }, i) => faults.map((fault) => ({ ...fault, page: pages[i + 1] })));
    return { ...first, faults: [...first.faults, ...narrow.filter(({ line }) => !lines.has(line))] };
  } catch (error) {
    return { kind: panel.type, faults: [{ rule: 'error', line: error.message }], stack: error.stack };
  }
}
