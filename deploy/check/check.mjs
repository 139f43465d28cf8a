// Reads a list of objects of Argo Rollouts as JSON, and writes a line for each fault in them: what the schema refuses, and keys
// that it does not know. The validators are compiled, and let unknown keys pass, as an API server drops them: a key that no
// validator read is one.
import { readFileSync } from "node:fs";

// Its classes check a copy; the validators below them, which it does not export, read the object itself.
const SCHEMAS = "./node_modules/@kubernetes-models/argo-rollouts/_schemas/ComGithubArgoprojArgoRolloutsPkgApisRolloutsV1alpha1";

function watched(value, path, unread) {
  if (value === null || typeof value !== "object") return value;
  const children = new Map();
  for (const key of Object.keys(value)) unread.add(`${path}/${key}`);
  return new Proxy(value, {
    get(target, key) {
      if (typeof key === "symbol" || !Object.hasOwn(target, key)) return target[key];
      const below = `${path}/${key}`;
      unread.delete(below);
      if (!children.has(key)) children.set(key, watched(target[key], below, unread));
      return children.get(key);
    },
  });
}

for (const object of JSON.parse(readFileSync(0, "utf8"))) {
  const name = `${object.kind}/${object.metadata.name}`;
  const { validate } = await import(`${SCHEMAS}${object.kind}.js`);
  const unread = new Set();
  if (!validate(watched(object, "", unread)))
    for (const error of validate.errors) console.log(`${name}: ${error.instancePath} ${error.keyword} ${JSON.stringify(error.params)}`);
  // Metadata are Kubernetes' own, in a package of its own; a pod's template is not Argo's.
  for (const path of unread) if (!/^\/(metadata|spec\/template)\//.test(path)) console.log(`${name}: ${path}: no such key`);
}
