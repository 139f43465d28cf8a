// Reads a list of Argo Rollouts objects as JSON, and writes a line for each fault: values that the schema refuses, and unknown
// keys. The compiled validators accept unknown keys, like an API server, which drops them. So a key that no validator reads is
// unknown.
import { readFileSync } from "node:fs";

// The package's classes check a copy. The validators below them are not exported, but read the object itself.
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
  // Metadata and pod templates have schemas of Kubernetes, which are not in this package.
  for (const path of unread) if (!/^\/(metadata|spec\/template)\//.test(path)) console.log(`${name}: ${path}: no such key`);
}
