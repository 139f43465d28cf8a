// Converts frames to the data that a panel draws: first transformations, then field options and overrides.
import { fieldOptions } from './library.mjs';

/** Returns the panel's frames, each field with its `display`; `variables` are the dashboard's, name → value. */
export async function prepared({ data, theme }, panel, frames, range, variables) {
  const interpolate = (text) => replaced(text, variables);
  for (const { id } of panel.transformations ?? []) {
    if (!data.standardTransformersRegistry.getIfExists(id)) {
      throw new Error(`the transformation ${id} is not in @grafana/data, so this check cannot apply it`);
    }
  }
  const transformed = await new Promise((resolve, reject) => {
    data
      .transformDataFrame((panel.transformations ?? []).filter(({ disabled }) => !disabled), frames, { interpolate })
      .subscribe({ next: resolve, error: reject });
  });
  const fieldConfig = configured(panel);
  const shown = data.applyFieldOverrides({
    data: transformed,
    fieldConfig,
    fieldConfigRegistry: fieldOptions(data, fieldConfig),
    replaceVariables: interpolate,
    theme,
    timeZone: 'utc',
  });
  shown.forEach((frame) =>
    frame.fields.forEach((field) => (field.shownAs = () => data.getFieldDisplayName(field, frame, shown))),
  );
  data.cacheFieldDisplayNames(shown);
  return { frames: shown, fieldConfig, range };
}

/** Like Grafana, reads a missing value of the first threshold as -Infinity, which JSON does not have. */
function configured({ fieldConfig = {} }) {
  const { defaults = {}, overrides = [] } = structuredClone(fieldConfig);
  defaults.thresholds?.steps?.forEach((step) => (step.value ??= -Infinity));
  for (const { properties } of overrides) {
    properties.forEach(({ id, value }) => id === 'thresholds' && value.steps.forEach((step) => (step.value ??= -Infinity)));
  }
  return { defaults, overrides };
}

export function replaced(text, variables) {
  return text.replace(/\$(?:\{(\w+)(?::\w+)?\}|(\w+))/g, (whole, one, other) => variables[one ?? other] ?? whole);
}
