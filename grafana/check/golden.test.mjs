// Frames and axes must equal those that Grafana's own packages made from the same input. These packages are not installed,
// because they need 700 MB; their output was recorded in golden/.
import assert from 'node:assert';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { range } from './axis.mjs';
import { frames } from './frames.mjs';
import { load, VERSIONS } from './library.mjs';

const golden = (name) => JSON.parse(readFileSync(new URL(`golden/${name}.json`, import.meta.url)));

function plain(made) {
  const text = (value) => (typeof value === 'number' && !Number.isFinite(value) ? String(value) : value);
  const field = ({ name, type, labels, config, values }) => ({
    name,
    type,
    labels,
    config: { interval: config?.interval, name: config?.displayNameFromDS },
    values: [...values].map(text),
  });
  const frame = ({ refId, meta, fields, length }) => ({ refId, type: meta?.type, length, fields: fields.map(field) });
  return JSON.parse(JSON.stringify(made.map(frame)));
}

for (const version of VERSIONS) {
  const library = load(version);
  for (const { name, answers, targets, frames: expected } of golden('frames').cases) {
    test(`frames, ${version}: ${name}`, () => assert.deepStrictEqual(plain(frames(library, answers, targets)), expected));
  }
}

for (const { limits, low, high, range: expected } of golden('axes').cases) {
  test(`axis of ${low} to ${high} within ${JSON.stringify(limits)}`, () => {
    assert.deepStrictEqual(JSON.parse(JSON.stringify(range(limits, low, high))), expected);
  });
}
