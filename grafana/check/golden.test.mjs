// Frames and axes are what Grafana's own packages made of the same input. They are not installed here, for they pull in
// 700 MB; what is in golden/ was recorded with them.
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
