// Reads panels as JSON from standard input, and writes the content that Grafana would show as JSON to standard output:
//   {"library": "compose", "pages": [1600, 420], "panels": [{"panel": …, "answers": […], "range": {…}, "variables": {…}}]}
import { load } from './library.mjs';
import { shown } from './shown.mjs';

// Messages of libraries must not get into the output.
console.log = console.info = console.warn = console.debug = () => {};
const chunks = [];
for await (const chunk of process.stdin) {
  chunks.push(chunk);
}
const { library, pages, panels } = JSON.parse(Buffer.concat(chunks).toString());
const loaded = load(library);
const all = [];
for (const each of panels) {
  Date.now = () => each.range.to; // the current time is the end of the shown time range
  all.push(await shown(loaded, each, pages));
}
process.stdout.write(JSON.stringify({ version: loaded.version, panels: all }));
