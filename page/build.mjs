// Writes ../service/page from the sources: `node build.mjs`. With --check it writes nothing, and
// fails if the files there are not what the sources give.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "..", "service", "page");

async function bundled(entry, define = {}) {
  const made = await build({
    absWorkingDir: here,
    entryPoints: [entry],
    define,
    bundle: true,
    minify: true,
    format: "esm",
    target: ["chrome115", "firefox121", "safari17"],
    charset: "utf8",
    legalComments: "none",
    write: false,
    logLevel: "warning",
  });
  return Buffer.from(made.outputFiles[0].contents);
}

const named = (stem, end, body) => {
  const digest = createHash("sha256").update(body).digest("hex").slice(0, 12);
  return [`${stem}-${digest}.${end}`, body];
};
const worker = named("compare", "js", await bundled("src/worker.ts"));
const script = named("page", "js", await bundled("src/main.ts", { WORKER: JSON.stringify(`page/${worker[0]}`) }));
const style = named("page", "css", await bundled("src/page.css"));
const icon = named("icon", "svg", readFileSync(join(here, "src", "icon.svg")));
const html = readFileSync(join(here, "src", "index.html"), "utf8")
  .replace("page.js", `page/${script[0]}`)
  .replace("page.css", `page/${style[0]}`)
  .replace("icon.svg", `page/${icon[0]}`);
const files = new Map([script, worker, style, icon, ["index.html", Buffer.from(html)]]);

const isBuilt = (name) => /\.(html|js|css|svg)$/.test(name);
mkdirSync(target, { recursive: true });
const there = readdirSync(target).filter(isBuilt);
const wrong = [
  ...there.filter((name) => !files.has(name)),
  ...[...files].filter(([name, body]) => !there.includes(name) || !readFileSync(join(target, name)).equals(body)).map(([name]) => name),
];
if (process.argv.includes("--check")) {
  if (wrong.length) {
    console.error(`service/page is not what page/ gives (${wrong.join(", ")}): run make page`);
    process.exit(1);
  }
  console.log("service/page is what page/ gives");
} else {
  for (const name of there) rmSync(join(target, name));
  for (const [name, body] of files) writeFileSync(join(target, name), body);
  for (const [name, body] of files) console.log(`${name} ${body.length} bytes`);
}
