// Grafana's own library for fields, units, mappings, colours, overrides and transformations, in the versions of
// package.json. The library needs a browser, which jsdom replaces.
import Module, { createRequire } from 'node:module';
import { JSDOM } from 'jsdom';

const require = createRequire(import.meta.url);
export const VERSIONS = ['compose', 'newest'];

const { window } = new JSDOM('<!doctype html>', { url: 'http://localhost/' });
const matchMedia = () => ({ matches: false, addEventListener() {}, removeEventListener() {} });
const { document, navigator, CustomEvent } = window;
// uPlot reads the pixel ratio of the screen while it is loaded.
for (const [name, value] of Object.entries({ window, document, navigator, CustomEvent, matchMedia, devicePixelRatio: 1 })) {
  Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
}

export const uPlot = require('uplot');

// Node 18 cannot require() a pure ES module, but the library requires some.
const imported = new Map();
for (const name of ['d3-interpolate', 'd3-scale-chromatic', 'marked']) {
  imported.set(name, await import(name));
}
const loadModule = Module._load;
Module._load = (name, ...rest) => imported.get(name) ?? loadModule(name, ...rest);

/** Loads one version: `compose` is the version in the Compose file, `newest` the newest checked version. */
export function load(version) {
  const name = `grafana-data-${version}`;
  const data = require(name);
  const { version: number } = require(`${name}/package.json`);
  // Some transformers are listed under two names, and the registry refuses duplicates.
  const byId = new Map(Object.values(data.standardTransformers).map((each) => [each.id, each]));
  const loaded = (each) => (Number.parseInt(number, 10) < 13 ? each : () => each); // version 13 loads transformers when they are needed
  data.standardTransformersRegistry.setInit(() =>
    [...byId.values()].map((each) => ({ id: each.id, name: each.name, transformation: loaded(each) })),
  );
  const theme = data.createTheme({ colors: { mode: 'dark' } });
  return { data, theme, version: number };
}

/** Registers the field options and their readers, like Grafana's app, because no package has this list. */
export function fieldOptions(data, fieldConfig) {
  const isNumber = (field) => field.type === data.FieldType.number;
  const always = () => true;
  const standard = [
    ['displayName', data.displayNameOverrideProcessor, always, { expandTemplateVars: true }],
    ['unit', data.stringOverrideProcessor, always],
    ['fieldMinMax', data.booleanOverrideProcessor, isNumber],
    ['min', data.numberOverrideProcessor, isNumber],
    ['max', data.numberOverrideProcessor, isNumber],
    ['decimals', data.numberOverrideProcessor, isNumber],
    ['noValue', data.stringOverrideProcessor, always],
    ['color', data.identityOverrideProcessor, always],
    ['links', data.dataLinksOverrideProcessor, always],
    ['mappings', data.valueMappingsOverrideProcessor, (field) => field.type !== data.FieldType.time],
    ['thresholds', data.thresholdsOverrideProcessor, isNumber],
  ].map(([id, process, shouldApply, settings = {}]) => ({ id, path: id, name: id, process, shouldApply, settings }));

  const named = fieldConfig.overrides.flatMap(({ properties }) => properties.map(({ id }) => id));
  const defaults = Object.keys(fieldConfig.defaults.custom ?? {}).map((key) => `custom.${key}`);
  const own = [...new Set([...named, ...defaults])].filter((id) => id.startsWith('custom.'));
  const custom = own.map((id) => ({
    id,
    path: id.slice('custom.'.length),
    name: id,
    isCustom: true,
    process: data.identityOverrideProcessor,
    shouldApply: always,
    settings: {},
  }));
  const registry = new data.FieldConfigOptionsRegistry();
  [...standard, ...custom].forEach((item) => registry.register(item));
  return registry;
}
